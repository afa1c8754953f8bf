-- Begins an admission: purges every lock and counter, and keeps high (rule 11).
--
-- KEYS  none
-- ARGV  cluster, incarnation, view, founded, floor, "1" if only an empty database
--       will do, the view in which it was away during the founding or 0
-- Reply "OK"; "RACED" when this is another incarnation, no master, admitted
--       already, or staged under a larger view; "FOREIGN" when the database
--       holds what is not this cluster's
local role, replid = replication()
if role ~= 'master' or replid ~= ARGV[2] then return 'RACED' end
local size = redis.call('DBSIZE')
if ARGV[6] == '1' and size > 0 then return 'RACED' end
local state = { false, false, false, false, false, false }
if size > 0 then
  if redis.call('TYPE', STATE)['ok'] ~= 'hash' then return 'FOREIGN' end
  state = redis.call('HMGET', STATE, 'cluster', 'replid', 'view', 'high', 'max_ttl', 'staged')
  if state[1] ~= ARGV[1] then return 'FOREIGN' end
end
local away = state[3] == ARGV[7] and tonumber(state[3]) < tonumber(ARGV[4])
if state[2] == replid and not away then return 'RACED' end
if tonumber(state[6] or 0) > tonumber(ARGV[3]) then return 'RACED' end
redis.call('FLUSHDB', 'ASYNC')
redis.call('HSET', STATE, 'cluster', ARGV[1], 'staged', ARGV[3],
  'high', text(math.max(tonumber(state[4] or 0), tonumber(ARGV[5]))), 'max_ttl', state[5] or '0')
return 'OK'
