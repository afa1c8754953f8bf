-- Rewrites a stored value unchanged. A node that cannot write refuses.
--
-- KEYS  none
-- ARGV  none
-- Reply OK
local cluster = redis.call('HMGET', STATE, 'cluster')[1] -- deploy/redis/users.acl allows no HGET
if cluster then redis.call('HSET', STATE, 'cluster', cluster) end
return 'OK'
