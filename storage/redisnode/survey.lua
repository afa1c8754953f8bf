-- One page of the locks of an admitted node, for a survey (rule 21) or a listing.
--
-- KEYS  none
-- ARGV  cluster, epoch ("" for a listing: any), SCAN cursor, MATCH pattern, COUNT
-- Reply {"L", next cursor, {resource, record, remaining ms}, …}; {"S", epoch}; {"X"}
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'epoch')
if not ours(state[1], ARGV[1]) or not admitted(state[2]) then return { 'X' } end
if ARGV[2] ~= '' and state[3] ~= ARGV[2] then return { 'S', state[3] } end
local page = redis.call('SCAN', ARGV[3], 'MATCH', ARGV[4], 'COUNT', ARGV[5])
local reply = { 'L', page[1] }
for _, lock in ipairs(page[2]) do
  local value = redis.call('GET', lock)
  if value then
    reply[#reply + 1] = { string.sub(lock, 3), value, math.max(redis.call('PTTL', lock), 0) }
  end
end
return reply
