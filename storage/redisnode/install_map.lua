-- Installs a map of the node sets (rule 30).
--
-- KEYS  none
-- ARGV  cluster, epoch, name of the map, floor, generation
-- Reply {"OK"}; {"S", epoch} if the node is not in exactly this epoch; {"X"} if it is
--       not admitted
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'epoch', 'floor', 'high_water')
if not ours(state[1], ARGV[1]) or not admitted(state[2]) then return { 'X' } end
if state[3] ~= ARGV[2] then return { 'S', state[3] } end
local floor = math.max(tonumber(state[4] or 0), tonumber(ARGV[4]))
redis.call('HSET', STATE, 'cluster', ARGV[1] .. '+', 'map', ARGV[3], 'map_epoch', ARGV[2], 'floor', text(floor), 'generation', ARGV[5],
  'high_water', text(math.max(tonumber(state[5] or 0), floor)))
return { 'OK' }
