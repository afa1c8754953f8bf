-- Writes what is there already, which a node that takes no writes refuses.
--
-- KEYS  none
-- ARGV  none
-- Reply OK
local cluster = redis.call('HMGET', STATE, 'cluster')[1] -- deploy/redis/users.acl allows no HGET
if cluster then redis.call('HSET', STATE, 'cluster', cluster) end
return 'OK'
