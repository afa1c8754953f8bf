-- A batch of operations on locks; the gate is looked at once for all of them.
-- Each operation stands or falls alone.
--
-- KEYS  none: the database is dedicated, and what is touched follows from ARGV.
-- ARGV  cluster, view, counter time to live (ms), then for each operation:
--       a resource lease ttl attempt meta   acquire; attempt "-" without an idempotency key
--       c resource lease token              confirm
--       e resource lease token ttl          extend
--       r resource lease attempt            release; attempt "" deletes whatever the note says
--       g resource                          read
-- Reply an array, a string an operation:
--       G grant left meta                   granted, extended, confirmed, released
--       E grant left ttl meta               acquire: this lease had it already
--       C grant left                        extend: made again
--       H grant left ttl lease meta         held (acquire), locked (read)
--       N                                   not this lease's, or no lock
--       O                                   the idempotency key holds another resource
--       Q                                   the counter is used up
--       S view                              the node is in a larger view
--       X view                              not admitted, or in a smaller view
--       ! message                           the operation failed
local cluster, view, keep = ARGV[1], ARGV[2], ARGV[3]
local state = redis.call('HMGET', STATE, 'cluster', 'replid', 'view', 'max_ttl', 'high')
local own = state[3] or '0'
local longest = tonumber(state[4] or 0)
local high = tonumber(state[5] or 0)
local before = high
local behind = 'X ' .. own
local open = state[1] == cluster and admitted(state[2])
local shut = false -- what an operation that needs the view is told instead
if not open then
  shut = behind
elseif own ~= view then
  shut = tonumber(own) > tonumber(view) and 'S ' .. own or behind
end

local function split(value)
  return string.match(value, '^(%d+) (%d+) (%S+) (%S+) (.*)$')
end

local function join(grant, ttl, lease, note, meta)
  return grant .. ' ' .. ttl .. ' ' .. lease .. ' ' .. note .. ' ' .. meta
end

local function left(lock)
  return text(math.max(redis.call('PTTL', lock), 0))
end

-- The effective counter (rule 4), and whether there is one of its own.
local function effective(counter)
  local value = redis.call('GET', counter)
  if value then return tonumber(value), true end
  return high, false
end

local function count(counter, value)
  redis.call('SET', counter, text(value), 'PX', keep)
  if value > high then high = value end
end

local function taken(lock, value, lease)
  local grant, ttl, holder, note, meta = split(value)
  if holder ~= lease then
    return 'H ' .. grant .. ' ' .. left(lock) .. ' ' .. ttl .. ' ' .. holder .. ' ' .. meta
  end
  if note ~= '-' and note ~= '=' then
    redis.call('SET', lock, join(grant, ttl, holder, '=', meta), 'KEEPTTL')
  end
  return 'E ' .. grant .. ' ' .. left(lock) .. ' ' .. ttl .. ' ' .. meta
end

local run = {}

function run.a(at)
  local resource, lease, ttl, attempt, meta = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  if shut then return shut end
  if tonumber(ttl) > longest then return behind end
  local lock, counter = 'l:' .. resource, 'c:' .. resource
  local value = redis.call('GET', lock)
  if value then return taken(lock, value, lease) end
  if attempt ~= '-' then
    local other = redis.call('GET', 'i:' .. lease)
    if other and other ~= resource then return 'O' end
  end
  local grant = effective(counter) + 1
  if grant > MOST then return 'Q' end
  count(counter, grant)
  redis.call('SET', lock, join(text(grant), ttl, lease, attempt, meta), 'PX', ttl)
  if attempt ~= '-' then redis.call('SET', 'i:' .. lease, resource, 'PX', ttl) end
  return 'G ' .. text(grant) .. ' ' .. ttl .. ' '
end

function run.c(at)
  local resource, lease, token = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if shut then return shut end
  local lock, counter = 'l:' .. resource, 'c:' .. resource
  local value = redis.call('GET', lock)
  if not value then return 'N' end
  local grant, ttl, holder, note, meta = split(value)
  if holder ~= lease or tonumber(grant) > token then return 'N' end -- rules 2 and 3
  local own_count = effective(counter)
  if own_count < token then count(counter, token) end
  if tonumber(grant) < token then -- so that a retry and a reader see the token
    redis.call('SET', lock, join(text(token), ttl, holder, note, meta), 'KEEPTTL')
  end
  return 'G ' .. text(token) .. ' ' .. left(lock) .. ' '
end

function run.e(at)
  local resource, lease, token, ttl = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  if shut then return shut end
  if tonumber(ttl) > longest then return behind end
  local lock, counter = 'l:' .. resource, 'c:' .. resource
  local value = redis.call('GET', lock)
  if value then
    local grant, _, holder, note, meta = split(value)
    if holder ~= lease or tonumber(grant) > token then return 'N' end -- rule 3
    redis.call('SET', lock, join(grant, ttl, holder, note, meta), 'PX', ttl)
    if note ~= '-' then redis.call('SET', 'i:' .. lease, resource, 'PX', ttl) end
    redis.call('PEXPIRE', counter, keep)
    return 'G ' .. grant .. ' ' .. ttl .. ' ' .. meta
  end
  local own_count, present = effective(counter)
  if own_count > token then return 'N' end -- rule 5
  redis.call('SET', lock, join(text(token), ttl, lease, '-', ''), 'PX', ttl)
  if present then redis.call('PEXPIRE', counter, keep) end
  return 'C ' .. text(token) .. ' ' .. ttl
end

-- Taking a vote back is sound on any node and in any view, so it is done even
-- where the gate is shut; but then it does not count as an answer.
function run.r(at)
  local lock, lease, attempt = 'l:' .. ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local reply = 'N'
  local value = redis.call('GET', lock)
  if value then
    local grant, _, holder, note = split(value)
    if holder == lease and (attempt == '' or attempt == note) then
      redis.call('DEL', lock)
      if note ~= '-' then redis.call('DEL', 'i:' .. lease) end
      reply = 'G ' .. grant .. ' 0 '
    end
  end
  return open and reply or behind
end

function run.g(at)
  if not open then return behind end
  local lock = 'l:' .. ARGV[at]
  local value = redis.call('GET', lock)
  if not value then return 'N' end
  local grant, ttl, holder, _, meta = split(value)
  return 'H ' .. grant .. ' ' .. left(lock) .. ' ' .. ttl .. ' ' .. holder .. ' ' .. meta
end

local width = { a = 5, c = 3, e = 4, r = 3, g = 1 }
local replies, at = {}, 4
while at <= #ARGV do
  local kind = ARGV[at]
  local ok, reply = pcall(run[kind], at + 1)
  if not ok then
    reply = '! ' .. tostring(type(reply) == 'table' and reply.err or reply)
  end
  replies[#replies + 1] = reply
  at = at + 1 + width[kind]
end
if high > before then redis.call('HSET', STATE, 'high', text(high)) end
return replies
