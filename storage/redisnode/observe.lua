-- The node's state. Changes nothing.
--
-- KEYS  none
-- ARGV  none
-- Reply INFO of the sections server, memory, cluster and replication as one
--       text; the number of keys, 0 if there is nothing but the note of a
--       quarantine; then cluster, replid, epoch, bootstrapped, max_ttl, high_water,
--       staged, note and secrets, each false if missing; and 1 if the gate is open.
local info = {}
for _, section in ipairs({ 'server', 'memory', 'cluster', 'replication' }) do
  info[#info + 1] = redis.call('INFO', section)
end
info = table.concat(info, '\r\n')
-- In cluster mode a script must not use keys that it did not declare.
if string.find(info, 'cluster_enabled:1', 1, true) then
  return { info, 0, false, false, false, false, false, false, false, false, false, 0 }
end
local kind = redis.call('TYPE', STATE)['ok']
local state = { false, false, false, false, false, false, false, false, false }
if kind == 'hash' then
  state = redis.call('HMGET', STATE, 'cluster', 'replid', 'epoch', 'bootstrapped', 'max_ttl', 'high_water', 'staged', 'note', 'secrets')
end
local size = redis.call('DBSIZE')
return {
  info, blank(size) and 0 or size,
  state[1], state[2], state[3], state[4], state[5], state[6], state[7], state[8], state[9],
  admitted(state[2]) and 1 or 0,
}
