-- One claim or write of a record, and its line in the history. A refusal
-- changes nothing but the history.
--
-- KEYS  1 mark; 2 record (hash: value, version); 3 history (list, newest
--       first); 4 the largest mark of all records
-- ARGV  1 token; 2 "claim" or "write"; 3 value (JSON, of a write);
--       4 how many attempts are kept
-- Reply {compared, version, value}: the mark that the token was compared with
--       (larger than the token: refused), the version after it, and the value,
--       nil before the first write. Numbers are decimal strings.
local live, compared = claim(KEYS[1], ARGV[1])
if live then
  if ARGV[2] == 'write' then
    redis.call('HINCRBY', KEYS[2], 'version', 1)
    redis.call('HSET', KEYS[2], 'value', ARGV[3])
  end
  if tonumber(ARGV[1]) > tonumber(redis.call('GET', KEYS[4]) or '0') then redis.call('SET', KEYS[4], ARGV[1]) end
end
local record = redis.call('HMGET', KEYS[2], 'version', 'value')
local version = record[1] or '0'
local now = redis.call('TIME')
local mark = string.format('%.0f', compared)
redis.call('LPUSH', KEYS[3], table.concat({ ARGV[2], ARGV[1], mark, version, now[1], now[2] }, ' '))
redis.call('LTRIM', KEYS[3], 0, tonumber(ARGV[4]) - 1)
return { mark, version, record[2] }
