-- A fenced read of the marks (rules 7 and 8): installs the epoch.
--
-- KEYS  none
-- ARGV  cluster, epoch
-- Reply {"M", high_water, max_ttl, bootstrapped, secrets, map, map_epoch, floor, generation};
--       {"S", epoch} if the node's own epoch is not smaller; {"X"} if it is not admitted
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'epoch', 'high_water', 'max_ttl', 'bootstrapped', 'secrets', 'map', 'map_epoch', 'floor', 'generation')
if not ours(state[1], ARGV[1]) or not admitted(state[2]) then return { 'X' } end
if tonumber(state[3]) >= tonumber(ARGV[2]) then return { 'S', state[3] } end
redis.call('HSET', STATE, 'epoch', ARGV[2])
return { 'M', state[4], state[5], state[6], state[7] or '', state[8] or '', state[9] or '0', state[10] or '0', state[11] or '0' }
