-- The prelude of every script: Redis prepends it to the file that follows.
--
-- State in the dedicated database:
--   fencelock          hash: cluster  which node set this node belongs to
--                            replid   the incarnation that was admitted
--                            view     the view it was admitted or fenced under
--                            founded  the view of the last founding it knows of
--                            max_ttl  the longest TTL in use, milliseconds
--                            high     the largest counter or token ever seen here
--                            staged   the view of an admission under way
--   l:<resource>       string "grant ttl lease note meta", PX what is left:
--                      the lock. note is "-" for a lease of its own, else the
--                      attempt of an idempotency key, "=" once shared.
--   c:<resource>       string: the last grant. A missing one reads as high.
--   i:<lease>          string: the resource an idempotency key is used for.
--
-- Every number goes through text(): Lua's own conversion keeps 14 digits only.
local STATE = 'fencelock'
local MOST = 9007199254740991

local function text(number) return string.format('%.0f', number) end

local function replication()
  local info = redis.call('INFO', 'replication')
  return string.match(info, 'role:(%a+)'), string.match(info, 'master_replid:(%x+)')
end

-- The gate (rule 6): admitted in this very incarnation, and a master.
local function admitted(replid)
  local role, now = replication()
  return replid and role == 'master' and now == replid
end
