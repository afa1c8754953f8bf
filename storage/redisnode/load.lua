-- Writes a page of carried counters, and reserves locks, on a staged node (rule 21).
--
-- KEYS  none
-- ARGV  incarnation, epoch, counter time to live (ms), then for each resource:
--       resource counter owner grant left ttl note meta; owner "" reserves no lock
-- Reply "OK"; "RACED" when this is not the node that was staged
local role, replid = replication()
local state = redis.call('HMGET', STATE, 'staged', 'high_water')
if role ~= 'master' or replid ~= ARGV[1] or state[1] ~= ARGV[2] then return 'RACED' end
local high_water = tonumber(state[2])
for at = 4, #ARGV, 8 do
  local resource, counter, owner, grant, left, ttl, note, meta =
    ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6], ARGV[at + 7]
  redis.call('SET', 'c:' .. resource, counter, 'PX', ARGV[3])
  high_water = math.max(high_water, tonumber(counter))
  if owner ~= '' then
    redis.call('SET', 'l:' .. resource, grant .. ' ' .. ttl .. ' ' .. owner .. ' ' .. note .. ' ' .. meta, 'PX', left)
  end
end
redis.call('HSET', STATE, 'high_water', text(high_water))
return 'OK'
