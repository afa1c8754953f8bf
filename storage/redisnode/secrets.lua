-- Replaces the cluster's secrets, by compare-and-set.
--
-- KEYS  none
-- ARGV  cluster, the secrets that it has, those that it is to have
-- Reply "OK"; "RACED" when it has others; "SHUT" when the node is not admitted
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'secrets')
if state[1] ~= ARGV[1] or not admitted(state[2]) then return 'SHUT' end
if (state[3] or '') ~= ARGV[2] then return 'RACED' end
redis.call('HSET', STATE, 'secrets', ARGV[3])
return 'OK'
