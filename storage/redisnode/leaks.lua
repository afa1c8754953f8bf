-- One page of a look for locks that would stay for ever: those without an expiry.
--
-- KEYS  none
-- ARGV  cluster, SCAN cursor, COUNT
-- Reply {"L", next cursor, resource, …}; {"X"} when the node is not admitted
local state = redis.call('HMGET', STATE, 'cluster', 'replid')
if state[1] ~= ARGV[1] or not admitted(state[2]) then return { 'X' } end
local page = redis.call('SCAN', ARGV[2], 'MATCH', 'l:*', 'COUNT', ARGV[3])
local reply = { 'L', page[1] }
for _, lock in ipairs(page[2]) do
  if redis.call('PTTL', lock) == -1 then reply[#reply + 1] = string.sub(lock, 3) end
end
return reply
