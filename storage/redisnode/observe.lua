-- The node's state. Changes nothing.
--
-- KEYS  none
-- ARGV  none
-- Reply INFO of the sections server, memory, cluster and replication as one
--       text; the number of keys, 0 if the database is empty or holds only the note of a
--       quarantine; then cluster, replid, epoch, bootstrapped, max_ttl, high_water,
--       staged, note, secrets, map, map_epoch, floor and generation, each false if missing;
--       and 1 if the gate is open.
local info = {}
for _, section in ipairs({ 'server', 'memory', 'cluster', 'replication' }) do
  info[#info + 1] = redis.call('INFO', section)
end
info = table.concat(info, '\r\n')
-- In cluster mode a script must not use keys that it did not declare.
if string.find(info, 'cluster_enabled:1', 1, true) then
  return { info, 0, false, false, false, false, false, false, false, false, false, false, false, false, false, 0 }
end
local kind = redis.call('TYPE', STATE)['ok']
local state = {}
if kind == 'hash' then
  state = redis.call('HMGET', STATE, 'cluster', 'replid', 'epoch', 'bootstrapped', 'max_ttl', 'high_water', 'staged', 'note', 'secrets', 'map', 'map_epoch', 'floor', 'generation')
end
local size = redis.call('DBSIZE')
return {
  info, blank(size) and 0 or size,
  state[1] or false, state[2] or false, state[3] or false, state[4] or false, state[5] or false, state[6] or false,
  state[7] or false, state[8] or false, state[9] or false, state[10] or false, state[11] or false, state[12] or false,
  state[13] or false,
  admitted(state[2]) and 1 or 0,
}
