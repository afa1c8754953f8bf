-- Replaces the cluster's secrets, by compare-and-set.
--
-- KEYS  none
-- ARGV  cluster, the present secrets, the new ones
-- Reply "OK"; "RACED" if the node has other secrets; "SHUT" if the node is not admitted
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'secrets')
if not ours(state[1], ARGV[1]) or not admitted(state[2]) then return 'SHUT' end
if (state[3] or '') ~= ARGV[2] then return 'RACED' end
redis.call('HSET', STATE, 'secrets', ARGV[3])
return 'OK'
