-- Notes on a node that is not admitted, and bears no such note, that its
-- silence has begun (rule 13). FLUSHALL and an admission take the note away.
--
-- KEYS  none
-- ARGV  cluster, note
-- Reply "OK"; "RACED" when this is no master, or admitted; "FOREIGN" when the
--       database holds what is not this cluster's
local role, replid = replication()
if role ~= 'master' then return 'RACED' end
if not blank(redis.call('DBSIZE')) then
  if redis.call('TYPE', STATE)['ok'] ~= 'hash' then return 'FOREIGN' end
  local state = redis.call('HMGET', STATE, 'cluster', 'replid')
  if state[1] ~= ARGV[1] then return 'FOREIGN' end
  if state[2] == replid then return 'RACED' end
end
if not redis.call('HMGET', STATE, 'note')[1] then redis.call('HSET', STATE, 'note', ARGV[2]) end
return 'OK'
