-- Writes the locks that move to this node's set (rule 30).
--
-- KEYS  none
-- ARGV  cluster, epoch, name of the map, counter TTL (ms), then for each resource:
--       resource counter owner grant remaining ttl note meta; owner "" deletes the lock
-- Reply {"OK"}; {"S", epoch} if the node is not in exactly this epoch; {"X"} if it is
--       not admitted, or has another map
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'epoch', 'map', 'high_water')
if not ours(state[1], ARGV[1]) or not admitted(state[2]) then return { 'X' } end
if state[3] ~= ARGV[2] then return { 'S', state[3] } end
if (state[4] or '') ~= ARGV[3] then return { 'X' } end
local high_water = tonumber(state[5] or 0)
for at = 5, #ARGV, 8 do
  local resource, counter, owner, grant, remaining, ttl, note, meta = unpack(ARGV, at, at + 7)
  local lock = 'l:' .. resource
  local value = redis.call('GET', lock)
  local holder, last_note = string.match(value or '', '^%d+ (%S+) (%S*) ')
  if value and holder ~= owner then
    redis.call('DEL', lock, 'cl:' .. resource)
    if last_note ~= '' then redis.call('DEL', 'i:' .. holder) end
  end
  if owner ~= '' then
    redis.call('SET', 'cl:' .. resource, counter, 'PX', ARGV[4])
    high_water = math.max(high_water, tonumber(counter))
    redis.call('SET', lock, grant .. ' ' .. owner .. ' ' .. note .. ' ' .. ttl .. ' ' .. meta, 'PX', remaining)
  end
end
redis.call('HSET', STATE, 'high_water', text(high_water))
return { 'OK' }
