-- A fenced read of the marks (rules 7 and 8): installs the view.
--
-- KEYS  none
-- ARGV  cluster, view
-- Reply {"M", high, max_ttl, founded, secrets}; {"S", view} when the node's own view is
--       not smaller; {"X"} when it is not admitted
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'view', 'high', 'max_ttl', 'founded', 'secrets')
if state[1] ~= ARGV[1] or not admitted(state[2]) then return { 'X' } end
if tonumber(state[3]) >= tonumber(ARGV[2]) then return { 'S', state[3] } end
redis.call('HSET', STATE, 'view', ARGV[2])
return { 'M', state[4], state[5], state[6], state[7] or '' }
