-- The prelude of every script: Redis runs it before the file that follows. The
-- constants MAX_TOKEN, MAX_SHOWN, MAX_ATTEMPTS, TICKET_TTL, ENQUEUED_TTL, ENQUEUED_AGAIN (all ms) and
-- MAX_TOKENS_AHEAD come before it, from Go (script.go).
--
-- What the dedicated database holds:
--   fencelock          hash: cluster       the node set to which this node belongs; with "+" behind it once a
--                                          map was installed, so that a version without maps is refused
--                            replid        the incarnation that was admitted
--                            epoch         the epoch of its admission, or a larger one that was installed
--                            bootstrapped  the epoch of the last bootstrap that it knows of
--                            max_ttl       the longest TTL in use, milliseconds
--                            high_water    the largest counter or token ever seen here
--                            queued_until  no queue has a ticket after this time, Unix seconds
--                            secrets       the cluster's, which seal lease ids
--                            map           the name of the map of the node sets
--                            map_epoch     the epoch in which it was installed
--                            generation    its number
--                            floor         of the counters of resources that are not locked
--                            staged        the epoch of an admission that has not ended
--                            note          of its quarantine, until it is admitted
--   l:<resource>       string "grant owner note ttl meta", the lock; its PX is what
--                      remains. The note is empty without an idempotency key, else
--                      the attempts separated by commas, or "=": too many or unknown.
--   cl:<resource>      string: the last grant. A missing counter reads as high_water.
--   ql:<resource>      sorted set: the queue, members "id server holder" by arrival.
--   i:<owner>          string: the scope that an idempotency key is used for.
--   s:<server>         string: this server is alive.
--   p:<id>             string "arrival member": the place of a keyed ticket.
--   p:<id> servers     string "server server …": where else the request of a keyed ticket waits.
--
-- Every number goes through text(): Lua's own conversion keeps 14 digits only.
-- (%d is exact up to MAX_TOKEN, and several times faster than %.0f.)
local STATE = 'fencelock'

local function text(number) return string.format('%d', number) end

local function replication()
  local info = redis.call('INFO', 'replication')
  return string.match(info, 'role:(%a+)'), string.match(info, 'master_replid:(%x+)')
end

-- Reports whether the database, which has this many keys, is blank: it is empty, or holds only the note of a
-- quarantine. A blank database belongs to no cluster.
local function blank(size)
  if size == 0 then return true end
  if size > 1 or redis.call('TYPE', STATE)['ok'] ~= 'hash' then return false end
  local state = redis.call('HMGET', STATE, 'cluster', 'note')
  return state[2] and not state[1]
end

-- Reports whether the stored mark is the given cluster's, with or without a map.
local function ours(stored, mark) return stored == mark or stored == mark .. '+' end

-- The gate (rule 6): the node is a master that was admitted in its present incarnation. It runs in every call,
-- and searching for whole lines is cheaper than parsing them.
local function admitted(replid)
  if not replid then return false end
  local info = redis.call('INFO', 'replication')
  return string.find(info, '\nrole:master\r', 1, true) and
    string.find(info, '\nmaster_replid:' .. replid .. '\r', 1, true) and true or false
end
