-- Begins an admission: purges every lock and counter, and keeps high_water (rule 11).
--
-- KEYS  none
-- ARGV  cluster, incarnation, epoch, bootstrapped, floor, "1" if the database must be
--       empty, and the note of its quarantine ("" if it has none); for a node that is
--       admitted in an epoch smaller than bootstrapped, "missed" and that epoch;
--       "+" if a map is to be installed, else ""
-- Reply "OK", and the note is stored; "RACED" if the node has another incarnation, is not a
--       master, is admitted in an epoch that is not smaller, has another note, or is staged
--       under a larger epoch; "FOREIGN" if the database belongs to another cluster
local role, replid = replication()
if role ~= 'master' or replid ~= ARGV[2] then return 'RACED' end
local free = blank(redis.call('DBSIZE'))
if ARGV[6] == '1' and not free then return 'RACED' end
if not free and redis.call('TYPE', STATE)['ok'] ~= 'hash' then return 'FOREIGN' end
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'epoch', 'high_water', 'max_ttl', 'staged', 'note')
if not free and not ours(state[1], ARGV[1]) then return 'FOREIGN' end
local note = state[7] or ''
local open = state[2] == replid
if open then note = 'missed ' .. (state[3] or '') end
if note ~= ARGV[7] then return 'RACED' end
if open and tonumber(state[3]) >= tonumber(ARGV[4]) then return 'RACED' end
if tonumber(state[6] or 0) > tonumber(ARGV[3]) then return 'RACED' end
redis.call('FLUSHDB', 'ASYNC')
redis.call('HSET', STATE, 'cluster', ARGV[1] .. ARGV[8], 'staged', ARGV[3],
  'high_water', text(math.max(tonumber(state[4] or 0), tonumber(ARGV[5]))), 'max_ttl', state[5] or '0')
if note ~= '' then redis.call('HSET', STATE, 'note', note) end
return 'OK'
