-- One page of a search for locks without an expiry, which would stay for ever.
--
-- KEYS  none
-- ARGV  cluster, SCAN cursor, COUNT
-- Reply {"L", next cursor, resource, …}; {"X"} if the node is not admitted
local state = redis.call('HMGET', STATE, 'cluster', 'replid')
if not ours(state[1], ARGV[1]) or not admitted(state[2]) then return { 'X' } end
local page = redis.call('SCAN', ARGV[2], 'MATCH', 'l:*', 'COUNT', ARGV[3])
local reply = { 'L', page[1] }
for _, lock in ipairs(page[2]) do
  if redis.call('PTTL', lock) == -1 then reply[#reply + 1] = string.sub(lock, 3) end
end
return reply
