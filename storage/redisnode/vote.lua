-- A batch of operations on locks; the gate is looked at once for all of them.
-- Each operation stands or falls alone.
--
-- KEYS  none: the database is dedicated, and what is touched follows from ARGV.
-- ARGV  cluster, view, counter time to live (ms), and the operations: a
--       MessagePack array of strings, which Lua reads several times faster than
--       as many arguments. For each operation:
--       a resource lease ttl attempt scope meta   acquire at once; attempt "-" without an idempotency key
--       w resource lease ttl attempt scope meta id server arrival holder   acquire in turn
--       c resource lease token                    confirm
--       e resource lease token ttl                extend
--       h resource lease token hold               add a hold
--       r resource lease attempt hold token       release; attempt "" deletes whatever the note says,
--                                                 hold "" whatever the holds; the counter
--                                                 passes the token, 0 for none; with an attempt
--                                                 and a token only a lock granted above it
--       n resource id server arrival holder       stand in line, without asking for the lock
--       l resource id server holder               leave the line
--       k server ttl                              keep the server's tickets alive
--       g resource                                read
-- Reply a MessagePack array, a string an operation (for g an array, the string first):
--       G grant left holds meta                   granted, extended, confirmed, held, released
--       E grant left ttl meta                     acquire: this lease had it already; keep: "E 0 0 0 "
--       U grant left holds                        a hold released, of a lock that was made again: its holds
--                                                 are these, and "?" for those that nobody knows of
--       C grant left                              extend: made again
--       H grant left ttl waiting lease meta       held (acquire), locked (read)
--       W                                         free, but others are first in line
--       N [holds]                                 not this lease's, or no lock; holds: its, without that one
--       O                                         the idempotency key is used for something else
--       Q                                         the counter is used up
--       S view                                    the node is in a larger view
--       X view                                    not admitted, or in a smaller view
--       ! message                                 the operation failed
--       For g the string is followed by how many wait, then member and arrival
--       of the first hundred.
-- Sends "fencelock:wake:<server>": the resource and the member whose turn it
--       is, with a line feed between.
--
-- An acquire of a free lock, an extend and a release, which most batches consist
-- of, stand first. The rest is made by others(), once a batch and only where
-- something of it is wanted: to make forty functions costs as much as to run two
-- operations.
local call = redis.call
local cluster, view, keep = ARGV[1], ARGV[2], ARGV[3]
local keep_ms = tonumber(keep)
local ARGV = cmsgpack.unpack(ARGV[4])
local state = call('HMGET', STATE, 'cluster', 'replid', 'view', 'max_ttl', 'high', 'lines')
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
-- Until when there may be lines at all (seconds on this node's clock): where
-- nobody waits, no operation looks for one.
local lines = tonumber(state[6] or 0)
local lined = lines
local clock = lines > 0 and tonumber(call('TIME')[1]) or 1
local rest -- what others() has made

local function split(value)
  return string.match(value, '^(%d+) (%d+) (%S+) (%S+) (%S+) (.*)$')
end

local function join(grant, ttl, lease, note, holds, meta)
  return grant .. ' ' .. ttl .. ' ' .. lease .. ' ' .. note .. ' ' .. holds .. ' ' .. meta
end

-- The effective counter (rule 4), and whether there is one of its own.
local function effective(counter)
  local value = call('GET', counter)
  if value then return tonumber(value), true end
  return high, false
end

local function count(counter, value)
  call('SET', counter, text(value), 'PX', keep)
  if value > high then high = value end
end

-- Counts up and returns the grant as text, nil when the counter is used up. A
-- new time to live costs four times as much as the counting, so it is given
-- when half of the old one has passed.
local function up(counter)
  local grant = call('INCR', counter)
  if grant == 1 then -- it was missing
    grant = high + 1
    if grant > MOST then
      call('DEL', counter) -- and must be still: it would read as 0
      return nil
    end
    count(counter, grant)
  elseif grant > MOST then
    call('DECR', counter)
    return nil
  elseif call('PTTL', counter) * 2 < keep_ms then
    call('PEXPIRE', counter, keep)
  end
  if grant > high then high = grant end
  return text(grant)
end

-- Takes the counter past the token of a lease that has been given back, so that
-- no late extend brings it to life again (rule 5). Nearly always the counter is
-- the token, so it is counted up first and looked at then.
local function pass(counter, token)
  if token == 0 or not open then return end
  local value = call('INCR', counter)
  if value == token + 1 then
    if value > high then high = value end
  elseif value == 1 then -- it was missing, and reads as high
    call('DEL', counter)
    if high <= token then count(counter, token + 1) end
  elseif value > token then -- it was past the token already
    call('DECR', counter)
  else
    count(counter, token + 1)
  end
end

-- What holds a lease has outlives its lock, so that an extend which makes the lock
-- again makes it with them. The acquirer's own alone need not be remembered.
local function remember(resource, lease, holds)
  if holds == '.' then
    call('DEL', 'i:holds:' .. resource)
  else
    call('SET', 'i:holds:' .. resource, lease .. ' ' .. holds, 'PX', keep)
  end
end

-- The holds that a lease had here: "?" where it was not seen, or not with this token.
local function remembered(resource, lease, seen)
  local holder, holds = string.match(call('GET', 'i:holds:' .. resource) or '', '^(%S+) (%S+)$')
  if holder == lease then return holds end
  return seen and '.' or '?'
end

local others

-- The common case: a free lock, no idempotency key, and no lines on this node.
local function acquire(at)
  local resource, lease, ttl, attempt = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  if shut then return shut end
  if tonumber(ttl) > longest then return behind end
  local lock = 'l:' .. resource
  local value = call('GET', lock)
  if value or attempt ~= '-' or lines >= clock then
    rest = rest or others()
    return rest.acquire(at, value, false)
  end
  local grant = up('c:' .. resource)
  if not grant then return 'Q' end
  call('SET', lock, grant .. ' ' .. ttl .. ' ' .. lease .. ' - . ' .. ARGV[at + 5], 'PX', ttl)
  return 'G ' .. grant .. ' ' .. ttl .. ' 1 '
end

local function extend(at)
  local resource, lease, token, ttl = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  if shut then return shut end
  if tonumber(ttl) > longest then return behind end
  local lock, counter = 'l:' .. resource, 'c:' .. resource
  local value = call('GET', lock)
  if value then
    local grant, _, holder, note, holds, meta = split(value)
    if holder ~= lease or tonumber(grant) > token then return 'N' end -- rule 3
    call('PEXPIRE', counter, keep)
    local remaining = call('PTTL', lock)
    if remaining >= tonumber(ttl) then -- an extend never shortens: it may be an old one, late
      return 'G ' .. grant .. ' ' .. text(remaining) .. ' 1 ' .. meta
    end
    call('SET', lock, join(grant, ttl, holder, note, holds, meta), 'PX', ttl)
    if note ~= '-' then call('PEXPIRE', 'i:' .. lease, ttl) end
    if holds ~= '.' then call('PEXPIRE', 'i:holds:' .. resource, keep) end
    return 'G ' .. grant .. ' ' .. ttl .. ' 1 ' .. meta
  end
  local own_count, present = effective(counter)
  if own_count > token then return 'N' end -- rule 5
  local holds = remembered(resource, lease, present and own_count == token)
  call('SET', lock, join(text(token), ttl, lease, '=', holds, ''), 'PX', ttl) -- of a key or not, nobody knows
  remember(resource, lease, holds)
  if present then call('PEXPIRE', counter, keep) end
  return 'C ' .. text(token) .. ' ' .. ttl
end

-- Taking a vote back is sound on any node and in any view, so it is done even
-- where the gate is shut; but then it does not count as an answer.
-- Most locks bear no note and no hold but the acquirer's: no need to take them
-- apart. A lease value occurs nowhere but in its place.
local function release(at)
  local resource, lease, attempt, hold, token = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  local lock = 'l:' .. resource
  local value = call('GET', lock)
  local reply = 'N'
  if not value then
    if attempt == '' then pass('c:' .. resource, token) end
  elseif attempt == '' and (hold == '.' or hold == '') and lines < clock and
    string.find(value, ' ' .. lease .. ' - . ', 1, true) then
    call('DEL', lock) -- first: a full node refuses to count, but not to delete
    pass('c:' .. resource, token)
    reply = 'G ' .. string.match(value, '^%d+') .. ' 0 0 '
  else
    rest = rest or others()
    reply = rest.release(resource, value, lease, attempt, hold, token)
  end
  return open and reply or behind
end

function others()
  local QUEUE_TTL = 660000 -- longer than anybody may wait
  local TICKET_TTL = 3000
  local MOST_HOLDS = 64
  local MOST_ATTEMPTS = 8
  clock = tonumber(call('TIME')[1])

  local function left(lock)
    return text(math.max(call('PTTL', lock), 0))
  end

  -- The first in line whose server lives; the dead before it leave.
  local function head(queue)
    if lines < clock then return nil end
    while true do
      local first = call('ZRANGE', queue, 0, 0)[1]
      if not first then return nil end
      if call('EXISTS', 's:' .. string.match(first, '^%S+ (%S+) ')) == 1 then return first end
      call('ZREM', queue, first)
    end
  end

  local function wake(queue, member)
    local server = string.match(member, '^%S+ (%S+) ')
    call('PUBLISH', 'fencelock:wake:' .. server, string.sub(queue, 3) .. '\n' .. member)
  end

  -- A server that stands in line is alive, whenever it last said so.
  local function stand(queue, ticket, arrival)
    call('SET', 's:' .. string.match(ticket, '^%S+ (%S+) '), '', 'PX', TICKET_TTL, 'NX')
    call('ZADD', queue, 'NX', arrival, ticket)
    call('PEXPIRE', queue, QUEUE_TTL)
    lines = clock + QUEUE_TTL / 1000 + 20 -- more than what is left unwritten below
  end

  local function locked(value, lock, queue)
    local grant, ttl, holder, _, _, meta = split(value)
    return 'H ' .. grant .. ' ' .. left(lock) .. ' ' .. ttl .. ' ' .. call('ZCARD', queue) .. ' ' .. holder .. ' ' .. meta
  end

  -- Holds, and the attempts of a note, are a list of ids with commas around it
  -- while it is worked on.
  local function has(list, id) return string.find(',' .. list .. ',', ',' .. id .. ',', 1, true) end

  local function number_of(list)
    local _, commas = string.gsub(list, ',', '')
    return list == '' and 0 or commas + 1
  end

  local function without(list, id)
    local from, to = has(list, id)
    local framed = ',' .. list .. ','
    framed = string.sub(framed, 1, from) .. string.sub(framed, to + 1)
    return string.sub(framed, 2, -2)
  end

  -- The note of a lock that this attempt was told of, too.
  local function noted(note, attempt)
    if note == '-' or note == '=' or has(note, attempt) then return note end
    if attempt == '-' or number_of(note) >= MOST_ATTEMPTS then return '=' end
    return note .. ',' .. attempt
  end

  local function again(value, lock, attempt)
    local grant, ttl, holder, note, holds, meta = split(value)
    local all = noted(note, attempt)
    if all ~= note then
      call('SET', lock, join(grant, ttl, holder, all, holds, meta), 'KEEPTTL')
    end
    return 'E ' .. grant .. ' ' .. left(lock) .. ' ' .. ttl .. ' ' .. meta
  end

  -- Whether somebody living stands in line before the ticket (false: anybody).
  -- The first is told, since the lock is free.
  local function overtakes(queue, ticket, arrival)
    local first = head(queue)
    if not first or first == ticket then return false end
    if ticket then
      local score = tonumber(call('ZSCORE', queue, first))
      if arrival < score or (arrival == score and ticket < first) then return false end
    end
    wake(queue, first)
    return true
  end

  -- Whether the lease value is that of an idempotency key in use for something else.
  local function misused(lease, attempt, scope)
    if attempt == '-' then return false end
    local other = call('GET', 'i:' .. lease)
    return other and other ~= scope
  end

  -- Acquires where the lock has this value, false if it is free.
  local function turn(at, value, ticket, arrival)
    local resource, lease, ttl, attempt, scope, meta = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
    local lock, queue = 'l:' .. resource, 'q:' .. resource
    if value and select(3, split(value)) ~= lease then
      if ticket then stand(queue, ticket, arrival) end
      return locked(value, lock, queue)
    end
    if misused(lease, attempt, scope) then return 'O' end
    if value then return again(value, lock, attempt) end
    if (ticket or lines >= clock) and overtakes(queue, ticket, tonumber(arrival)) then
      if ticket then stand(queue, ticket, arrival) end
      return 'W'
    end
    local grant = up('c:' .. resource)
    if not grant then return 'Q' end
    call('SET', lock, join(grant, ttl, lease, attempt, '.', meta), 'PX', ttl)
    if attempt ~= '-' then call('SET', 'i:' .. lease, scope, 'PX', ttl) end
    if ticket then call('ZREM', queue, ticket) end
    return 'G ' .. grant .. ' ' .. ttl .. ' 1 '
  end

  -- Releases where the lock has this value.
  local function give_back(resource, value, lease, attempt, hold, token)
    local lock, queue = 'l:' .. resource, 'q:' .. resource
    local grant, ttl, holder, note, holds, meta = split(value)
    if holder ~= lease then return 'N' end
    if token > 0 then -- a later lease under the key; an attempt asks for what was granted above the token
      local above = tonumber(grant) > token
      if attempt ~= '' and not above or attempt == '' and note ~= '-' and above then return 'N' end
    end
    local unsure = has(holds, '?')
    if hold ~= '' and not has(holds, hold) and not unsure then return 'N ' .. number_of(holds) end
    if attempt ~= '' then
      if not has(note, attempt) then return 'N' end
      local remain = without(note, attempt)
      if remain ~= '' then -- other attempts may count on it
        call('SET', lock, join(grant, ttl, holder, remain, holds, meta), 'KEEPTTL')
        return 'N'
      end
    end
    if hold ~= '' then
      local kept = has(holds, hold) and without(holds, hold) or holds
      if kept ~= '' then
        call('SET', lock, join(grant, ttl, holder, note, kept, meta), 'KEEPTTL')
        remember(resource, lease, kept)
        return (unsure and 'U ' or 'G ') .. grant .. ' ' .. left(lock) .. ' ' .. number_of(kept) .. ' '
      end
    end
    call('DEL', lock) -- first, as above
    if holds ~= '.' then remember(resource, lease, '.') end
    if note ~= '-' then call('DEL', 'i:' .. lease) end
    if attempt == '' then pass('c:' .. resource, token) end
    local first = head(queue)
    if first then wake(queue, first) end
    return 'G ' .. grant .. ' 0 0 '
  end

  local run = {}

  function run.w(at)
    local id, server, arrival, holder = ARGV[at + 6], ARGV[at + 7], ARGV[at + 8], ARGV[at + 9]
    if shut then return shut end
    if tonumber(ARGV[at + 2]) > longest then return behind end
    return turn(at, call('GET', 'l:' .. ARGV[at]), id .. ' ' .. server .. ' ' .. holder, arrival)
  end

  function run.c(at)
    local resource, lease, token = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
    if shut then return shut end
    local lock, counter = 'l:' .. resource, 'c:' .. resource
    local value = call('GET', lock)
    if not value then return 'N' end
    local grant, ttl, holder, note, holds, meta = split(value)
    if holder ~= lease or tonumber(grant) > token then return 'N' end -- rules 2 and 3
    if effective(counter) < token then count(counter, token) end
    if tonumber(grant) < token then -- so that a retry and a reader see the token
      call('SET', lock, join(text(token), ttl, holder, note, holds, meta), 'KEEPTTL')
    end
    return 'G ' .. text(token) .. ' ' .. left(lock) .. ' 1 '
  end

  function run.h(at)
    local lock, lease, token, hold = 'l:' .. ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
    if shut then return shut end
    local value = call('GET', lock)
    if not value then return 'N' end
    local grant, ttl, holder, note, holds, meta = split(value)
    if holder ~= lease or tonumber(grant) > token then return 'N' end
    if not has(holds, hold) then
      if number_of(holds) >= MOST_HOLDS then return '! the lease has its most holds' end
      holds = holds .. ',' .. hold
      call('SET', lock, join(grant, ttl, holder, note, holds, meta), 'KEEPTTL')
      remember(ARGV[at], lease, holds)
    end
    return 'G ' .. grant .. ' ' .. left(lock) .. ' ' .. number_of(holds) .. ' ' .. meta
  end

  function run.n(at)
    if shut then return shut end
    stand('q:' .. ARGV[at], ARGV[at + 1] .. ' ' .. ARGV[at + 2] .. ' ' .. ARGV[at + 4], ARGV[at + 3])
    return 'G 0 0 0 '
  end

  function run.l(at)
    local queue = 'q:' .. ARGV[at]
    local first = call('ZRANGE', queue, 0, 0)[1]
    local ticket = ARGV[at + 1] .. ' ' .. ARGV[at + 2] .. ' ' .. ARGV[at + 3]
    call('ZREM', queue, ticket)
    if first == ticket and call('EXISTS', 'l:' .. ARGV[at]) == 0 then
      local next = head(queue)
      if next then wake(queue, next) end
    end
    return 'G 0 0 0 '
  end

  function run.k(at)
    if not open then return behind end
    local session = 's:' .. ARGV[at]
    local alive = call('EXISTS', session)
    call('SET', session, '', 'PX', ARGV[at + 1])
    return alive == 1 and 'E 0 0 0 ' or 'G 0 0 0 '
  end

  function run.g(at)
    if not open then return { behind, 0 } end
    local lock, queue = 'l:' .. ARGV[at], 'q:' .. ARGV[at]
    local value = call('GET', lock)
    local reply = { value and locked(value, lock, queue) or 'N', call('ZCARD', queue) }
    for _, part in ipairs(call('ZRANGE', queue, 0, 99, 'WITHSCORES')) do
      reply[#reply + 1] = part
    end
    return reply
  end

  return {
    run = run, acquire = turn, release = give_back,
    width = { w = 10, c = 3, h = 4, n = 5, l = 4, k = 2, g = 1 },
  }
end

local replies, at, last = {}, 1, #ARGV
while at <= last do
  local kind = ARGV[at]
  local ok, reply
  if kind == 'a' then
    ok, reply = pcall(acquire, at + 1)
    at = at + 7
  elseif kind == 'r' then
    ok, reply = pcall(release, at + 1)
    at = at + 6
  elseif kind == 'e' then
    ok, reply = pcall(extend, at + 1)
    at = at + 5
  else
    rest = rest or others()
    ok, reply = pcall(rest.run[kind], at + 1)
    at = at + 1 + rest.width[kind]
  end
  if not ok then
    reply = '! ' .. tostring(type(reply) == 'table' and reply.err or reply)
  end
  replies[#replies + 1] = reply
end
if high > before then call('HSET', STATE, 'high', text(high)) end
if lines - lined > 10 then call('HSET', STATE, 'lines', text(lines)) end
return cmsgpack.pack(replies)
