-- Ends an admission: writes the record, by compare-and-set on the pinned incarnation (rule 10). This opens the
-- gate.
--
-- KEYS  none
-- ARGV  incarnation, epoch, bootstrapped, longest TTL (ms), secrets, and the map's
--       name, epoch, floor and generation; epoch 0 if there is no map
-- Reply "OK"; "RACED" if the node is not the one that was staged
local role, replid = replication()
local state = redis.call('HMGET', STATE, 'staged', 'max_ttl')
if role ~= 'master' or replid ~= ARGV[1] or state[1] ~= ARGV[2] then return 'RACED' end
redis.call('HSET', STATE, 'replid', replid, 'epoch', ARGV[2], 'bootstrapped', ARGV[3], 'secrets', ARGV[5],
  'max_ttl', text(math.max(tonumber(state[2]), tonumber(ARGV[4]))))
if ARGV[7] ~= '0' then redis.call('HSET', STATE, 'map', ARGV[6], 'map_epoch', ARGV[7], 'floor', ARGV[8], 'generation', ARGV[9]) end
redis.call('HDEL', STATE, 'staged', 'note')
return 'OK'
