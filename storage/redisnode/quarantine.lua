-- Begins the quarantine of a node that is not admitted: stores the note, unless it has a note already (rule
-- 13). FLUSHALL and an admission delete the note.
--
-- KEYS  none
-- ARGV  cluster, note
-- Reply "OK"; "RACED" if it is not a master, or admitted; "FOREIGN" if the database is
--       not this cluster's
local role, replid = replication()
if role ~= 'master' then return 'RACED' end
if not blank(redis.call('DBSIZE')) then
  if redis.call('TYPE', STATE)['ok'] ~= 'hash' then return 'FOREIGN' end
  local state = redis.call('HMGET', STATE, 'cluster', 'replid')
  if not ours(state[1], ARGV[1]) then return 'FOREIGN' end
  if state[2] == replid then return 'RACED' end
end
if not redis.call('HMGET', STATE, 'note')[1] then redis.call('HSET', STATE, 'note', ARGV[2]) end
return 'OK'
