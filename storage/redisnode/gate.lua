-- The prelude of every script: Redis prepends it to the file that follows.
--
-- State in the dedicated database:
--   fencelock          hash: cluster  which node set this node belongs to
--                            replid   the incarnation that was admitted
--                            epoch     the epoch it was admitted or fenced under
--                            bootstrapped  the epoch of the last bootstrap it knows of
--                            max_ttl  the longest TTL in use, milliseconds
--                            high_water     the largest counter or token ever seen here
--                            secrets  the cluster's, by which lease ids are sealed
--                            staged   the epoch of an admission under way
--                            note     of its quarantine, until it is admitted
--   l:<resource>       string "grant ttl owner note meta", PX what is left: the
--                      lock. note is empty without an idempotency key, else the
--                      attempts with commas between them, "=" for any.
--   c:<resource>       string: the last grant. A missing one reads as high_water.
--   i:<owner>          string: the scope an idempotency key is used for.
--   q:<resource>       sorted set: the queue, "id server holder" by arrival.
--   s:<server>         string: this server's tickets are alive.
--
-- Every number goes through text(): Lua's own conversion keeps 14 digits only.
-- (%d is exact up to MAX, and several times faster than %.0f.)
local STATE = 'fencelock'
local MAX = 9007199254740991

local function text(number) return string.format('%d', number) end

local function replication()
  local info = redis.call('INFO', 'replication')
  return string.match(info, 'role:(%a+)'), string.match(info, 'master_replid:(%x+)')
end

-- Whether the database, of that many keys, holds nothing but perhaps the note of
-- a quarantine: then it is nobody's yet.
local function blank(size)
  if size == 0 then return true end
  if size > 1 or redis.call('TYPE', STATE)['ok'] ~= 'hash' then return false end
  local state = redis.call('HMGET', STATE, 'cluster', 'note')
  return state[2] and not state[1]
end

-- The gate (rule 6): admitted in this very incarnation, and a master. Looking for
-- the whole lines is cheaper than taking them apart, and this runs in every call.
local function admitted(replid)
  if not replid then return false end
  local info = redis.call('INFO', 'replication')
  return string.find(info, '\nrole:master\r', 1, true) and
    string.find(info, '\nmaster_replid:' .. replid .. '\r', 1, true) and true or false
end
