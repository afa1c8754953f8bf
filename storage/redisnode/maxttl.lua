-- Raises the recorded longest TTL to at least the given TTL (rule 13).
--
-- KEYS  none
-- ARGV  cluster, TTL (ms)
-- Reply {"OK"}; {"X"} if the node is not admitted
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'max_ttl')
if not ours(state[1], ARGV[1]) or not admitted(state[2]) then return { 'X' } end
if tonumber(state[3]) < tonumber(ARGV[2]) then redis.call('HSET', STATE, 'max_ttl', ARGV[2]) end
return { 'OK' }
