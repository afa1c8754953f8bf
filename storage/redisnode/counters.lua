-- The effective counters of resources (rules 4 and 21).
--
-- KEYS  none
-- ARGV  cluster, epoch, resource…
-- Reply {"V", counter…}, in the order of the resources; {"S", epoch}; {"X"}
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'epoch', 'high_water', 'floor')
if not ours(state[1], ARGV[1]) or not admitted(state[2]) then return { 'X' } end
if state[3] ~= ARGV[2] then return { 'S', state[3] } end
local reply = { 'V' }
for i = 3, #ARGV do
  local counter = redis.call('GET', 'cl:' .. ARGV[i]) or state[4] or '0'
  if state[5] and tonumber(counter) < tonumber(state[5]) and redis.call('EXISTS', 'l:' .. ARGV[i]) == 0 then
    counter = state[5]
  end
  reply[#reply + 1] = counter
end
return reply
