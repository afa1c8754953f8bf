-- The prelude of every guarded script.
--
-- claim(mark_key, token) compares a token with the high-water mark in a key of its own
-- (a decimal string), and raises the mark to it unless it is stale.
--   token    a string of decimal digits, 1 to 2^53-1 (Lua counts in doubles)
--   returns  true, mark before (0 before the first) when the token is live
--            false, mark                             when it is stale
--   raises   "FENCING malformed token" for anything else; nothing was written
local function claim(mark_key, token)
  local presented = tonumber(token)
  if not string.match(token, '^[1-9]%d*$') or presented > 9007199254740991 then
    error({ err = 'FENCING malformed token' })
  end
  local mark = tonumber(redis.call('GET', mark_key) or '0')
  if presented < mark then return false, mark end
  if presented > mark then redis.call('SET', mark_key, token) end
  return true, mark
end
