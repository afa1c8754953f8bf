-- The effective counters of resources (rules 4 and 21).
--
-- KEYS  none
-- ARGV  cluster, epoch, resource…
-- Reply {"V", counter…}, in the order of the resources; {"S", epoch}; {"X"}
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'epoch', 'high_water')
if state[1] ~= ARGV[1] or not admitted(state[2]) then return { 'X' } end
if state[3] ~= ARGV[2] then return { 'S', state[3] } end
local reply = { 'V' }
for i = 3, #ARGV do
  reply[#reply + 1] = redis.call('GET', 'cl:' .. ARGV[i]) or state[4] or '0'
end
return reply
