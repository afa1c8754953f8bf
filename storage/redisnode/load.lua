-- Writes a page of carried counters and locks on a staged node (rule 21).
--
-- KEYS  none
-- ARGV  incarnation, epoch, counter TTL (ms), then for each resource:
--       resource counter owner grant remaining ttl note meta; owner "" if it is not locked
-- Reply "OK"; "RACED" if the node is not the one that was staged
local role, replid = replication()
local state = redis.call('HMGET', STATE, 'staged', 'high_water')
if role ~= 'master' or replid ~= ARGV[1] or state[1] ~= ARGV[2] then return 'RACED' end
local high_water = tonumber(state[2])
for at = 4, #ARGV, 8 do
  local resource, counter, owner, grant, remaining, ttl, note, meta =
    unpack(ARGV, at, at + 7)
  redis.call('SET', 'cl:' .. resource, counter, 'PX', ARGV[3])
  high_water = math.max(high_water, tonumber(counter))
  if owner ~= '' then
    redis.call('SET', 'l:' .. resource, grant .. ' ' .. owner .. ' ' .. note .. ' ' .. ttl .. ' ' .. meta, 'PX', remaining)
  end
end
redis.call('HSET', STATE, 'high_water', text(high_water))
return 'OK'
