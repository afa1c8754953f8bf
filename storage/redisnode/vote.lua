-- A batch of operations on locks; the gate is looked at once for all of them.
-- Each operation stands or falls alone.
--
-- KEYS  none: the database is dedicated, and what is touched follows from ARGV.
-- ARGV  cluster, epoch, counter time to live (ms), and the operations: a
--       MessagePack array of strings, which Lua reads several times faster than
--       as many arguments. For each operation:
--       a resource owner ttl attempt scope meta   acquire without a ticket; attempt "" without an idempotency key
--       w resource owner ttl attempt scope meta id server arrival holder   acquire with a ticket
--       c resource owner token                    confirm
--       e resource owner token ttl                extend
--       r resource owner token                    release
--       t resource owner attempt above            retract; above 0 for whatever grant
--       g resource                                read
--       n resource id server arrival holder       enqueue
--       d resource id server holder               dequeue
--       h server ttl                              heartbeat
-- Reply a MessagePack array, a string an operation (for g an array, the string first):
--       G grant left [meta]                       done: granted, confirmed, extended (with meta), released,
--                                                 retracted; of a ticket G 0 0
--       E grant left ttl meta                     acquire: this owner had it already; heartbeat: E 0 0 0
--       C grant left                              extend: made again
--       H grant left ttl waiting owner meta       held (acquire), locked (read)
--       W                                         free, but others are first in the queue
--       N                                         not the owner's, or no lock
--       O                                         the idempotency key is used for something else
--       Q                                         the counter is used up
--       T                                         the token is beyond what can have been reached
--       S epoch                                    the node is in a larger epoch
--       X epoch                                    not admitted, or in a smaller epoch
--       ! message                                 the operation failed
--       For g the string is followed by how many wait, then member and arrival
--       of the first hundred.
-- Sends "fencelock:wake:<server>": the length of the resource's name, the name, and
--       the member whose turn it is, with blanks between.
--
-- resource, scope, meta and holder are texts of callers and may hold anything; owner,
-- attempt, id and server are words (node.Op.Validate). So a record is read from
-- its front, where the words are, and never searched: what a caller wrote comes last.
--
-- An acquire of a free lock, an extend and a release, which most batches consist
-- of, stand first. The rest is made by others(), once a batch and only where
-- something of it is wanted: to make forty functions costs as much as to run two
-- operations.
local call = redis.call
local cluster, epoch, keep = ARGV[1], ARGV[2], ARGV[3]
local keep_ms = tonumber(keep)
local ARGV = cmsgpack.unpack(ARGV[4])
local state = call('HMGET', STATE, 'cluster', 'replid', 'epoch', 'max_ttl', 'high_water', 'queued_until')
local own = state[3] or '0'
local longest = tonumber(state[4] or 0)
local high_water = tonumber(state[5] or 0)
local before = high_water
local behind = 'X ' .. own
local open = state[1] == cluster and admitted(state[2])
local shut = false -- what an operation that needs the epoch is told instead
if not open then
  shut = behind
elseif own ~= epoch then
  shut = tonumber(own) > tonumber(epoch) and 'S ' .. own or behind
end
-- Until when there may be queues at all (seconds on this node's clock): where
-- nobody waits, no operation looks for one.
local queued_until = tonumber(state[6] or 0)
local before_until = queued_until
local clock = queued_until > 0 and tonumber(call('TIME')[1]) or 1
local rest -- what others() has made

local function split(value)
  return string.match(value, '^(%d+) (%d+) (%S+) (%S*) (.*)$')
end

local function join(grant, ttl, owner, note, meta)
  return grant .. ' ' .. ttl .. ' ' .. owner .. ' ' .. note .. ' ' .. meta
end

-- The effective counter (rule 4), and whether there is one of its own.
local function effective(counter)
  local value = call('GET', counter)
  if value then return tonumber(value), true end
  return high_water, false
end

local function count(counter, value)
  call('SET', counter, text(value), 'PX', keep)
  if value > high_water then high_water = value end
end

-- Counts up and returns the grant as text, nil when the counter is used up. A
-- new time to live costs four times as much as the counting, so it is given
-- when half of the old one has passed.
local function up(counter)
  local grant = call('INCR', counter)
  if grant == 1 then -- it was missing
    grant = high_water + 1
    if grant > MAX then
      call('DEL', counter) -- and must be still: it would read as 0
      return nil
    end
    count(counter, grant)
  elseif grant > MAX then
    call('DECR', counter)
    return nil
  elseif call('PTTL', counter) * 2 < keep_ms then
    call('PEXPIRE', counter, keep)
  end
  if grant > high_water then high_water = grant end
  return text(grant)
end

-- Takes the counter past the token of a lease that was released, whatever stands
-- there, so that no late extend brings it to life again (rule 5). Nearly always the counter is
-- the token, so it is counted up first and looked at then.
local function pass(counter, token)
  if not open then return end
  local past = token < MAX and token + 1 or MAX
  local value = call('INCR', counter)
  if value == past then
    if value > high_water then high_water = value end
  elseif value == 1 then -- it was missing, and reads as high_water
    call('DEL', counter)
    if high_water <= token then count(counter, past) end
  elseif value > token then -- it was past the token already
    call('DECR', counter)
  else
    count(counter, past)
  end
end

-- Whether no cluster can have come to the token (rule 23): a minute's worth above
-- both what was seen here and the clock. Nearly always it is no news here.
local function unreachable(token)
  if token <= high_water + 60000000 then return false end
  local now = call('TIME')
  return token > now[1] * 1000000 + now[2] + 60000000
end

local others

-- The common case: a free lock, no idempotency key, and no queues on this node.
local function acquire(at)
  local resource, owner, ttl = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if shut then return shut end
  if tonumber(ttl) > longest then return behind end
  local lock = 'l:' .. resource
  local value = call('GET', lock)
  if value or ARGV[at + 3] ~= '' or queued_until >= clock then
    rest = rest or others()
    return rest.acquire(at, value, false)
  end
  local grant = up('c:' .. resource)
  if not grant then return 'Q' end
  call('SET', lock, grant .. ' ' .. ttl .. ' ' .. owner .. '  ' .. ARGV[at + 5], 'PX', ttl)
  return 'G ' .. grant .. ' ' .. ttl
end

local function extend(at)
  local resource, owner, token, ttl = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  if shut then return shut end
  if unreachable(token) then return 'T' end
  if tonumber(ttl) > longest then return behind end
  local lock, counter = 'l:' .. resource, 'c:' .. resource
  local value = call('GET', lock)
  if value then
    local grant, _, holder, note, meta = split(value)
    if holder ~= owner or tonumber(grant) > token then return 'N' end -- rule 3
    call('PEXPIRE', counter, keep)
    local remaining = call('PTTL', lock)
    if remaining >= tonumber(ttl) then -- an extend never shortens: it may be an old one, late
      return 'G ' .. grant .. ' ' .. text(remaining) .. ' ' .. meta
    end
    call('SET', lock, join(grant, ttl, holder, note, meta), 'PX', ttl)
    if note ~= '' then call('PEXPIRE', 'i:' .. owner, ttl) end
    return 'G ' .. grant .. ' ' .. ttl .. ' ' .. meta
  end
  local own_count, present = effective(counter)
  if own_count > token then return 'N' end -- rule 5
  call('SET', lock, join(text(token), ttl, owner, '=', ''), 'PX', ttl) -- of a key or not, nobody knows
  if present then call('PEXPIRE', counter, keep) end
  return 'C ' .. text(token) .. ' ' .. ttl
end

-- What follows once a lock is deleted: its idempotency key is free again, and the
-- first in the queue is notified.
local function freed(resource, owner, note)
  if note ~= '' then call('DEL', 'i:' .. owner) end
  if queued_until >= clock then
    rest = rest or others()
    rest.wake_first('q:' .. resource)
  end
end

-- Taking a vote away is sound on any node and in any epoch, so a release and a
-- retract are done even where the gate is shut; but then it is no answer.
local function release(at)
  local resource, owner, token = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if open and unreachable(token) then return 'T' end
  local lock, counter = 'l:' .. resource, 'c:' .. resource
  local value = call('GET', lock)
  local reply = 'N'
  if not value then
    pass(counter, token)
  else
    local grant, holder, note = string.match(value, '^(%d+) %d+ (%S+) (%S*) ')
    -- Under an idempotency key a later lease has the same owner (rule 3).
    if holder == owner and (note == '' or tonumber(grant) <= token) then
      call('DEL', lock)
      freed(resource, owner, note)
      reply = 'G ' .. grant .. ' 0'
    end
    pass(counter, token) -- last: a full node refuses to count, but not to delete
  end
  return open and reply or behind
end

function others()
  local QUEUE_TTL = 660000 -- longer than anybody may wait
  local TICKET_TTL = 3000
  local MOST_ATTEMPTS = 8
  clock = tonumber(call('TIME')[1])

  local function left(lock)
    return text(math.max(call('PTTL', lock), 0))
  end

  -- A ticket is "id server holder".
  local function server_of(ticket)
    return string.match(ticket, '^%S+ (%S+) ')
  end

  -- The first in the queue whose server lives; the dead before it leave.
  local function head(queue)
    if queued_until < clock then return nil end
    while true do
      local first = call('ZRANGE', queue, 0, 0)[1]
      if not first then return nil end
      if call('EXISTS', 's:' .. server_of(first)) == 1 then return first end
      call('ZREM', queue, first)
    end
  end

  local function wake(queue, ticket)
    local resource = string.sub(queue, 3)
    call('PUBLISH', 'fencelock:wake:' .. server_of(ticket), #resource .. ' ' .. resource .. ' ' .. ticket)
  end

  local function wake_first(queue)
    local first = head(queue)
    if first then wake(queue, first) end
  end

  -- A server that enqueues is alive, whenever it last said so.
  local function enqueue(queue, ticket, arrival)
    call('SET', 's:' .. server_of(ticket), '', 'PX', TICKET_TTL, 'NX')
    call('ZADD', queue, 'NX', arrival, ticket)
    call('PEXPIRE', queue, QUEUE_TTL)
    queued_until = clock + QUEUE_TTL / 1000 + 20 -- more than what is left unwritten below
  end

  local function locked(value, lock, queue)
    local grant, ttl, holder, _, meta = split(value)
    return 'H ' .. grant .. ' ' .. left(lock) .. ' ' .. ttl .. ' ' .. call('ZCARD', queue) .. ' ' .. holder .. ' ' .. meta
  end

  -- The attempts of a note without this one, and how many they are; the first is
  -- nil where this one is not among them. The lock of no attempt has the note ''.
  local function without(note, attempt)
    if note == attempt then return '', 0 end
    local kept, found = {}, false
    for one in string.gmatch(note, '[^,]+') do
      if one == attempt then found = true else kept[#kept + 1] = one end
    end
    return found and table.concat(kept, ',') or nil, #kept
  end

  -- The note of a lock that this attempt was told of, too.
  local function noted(note, attempt)
    if note == '' or note == '=' then return note end
    local remain, many = without(note, attempt)
    if remain then return note end -- it is among them
    if attempt == '' or many >= MOST_ATTEMPTS then return '=' end
    return note .. ',' .. attempt
  end

  local function again(value, lock, attempt)
    local grant, ttl, holder, note, meta = split(value)
    local all = noted(note, attempt)
    if all ~= note then
      call('SET', lock, join(grant, ttl, holder, all, meta), 'KEEPTTL')
    end
    return 'E ' .. grant .. ' ' .. left(lock) .. ' ' .. ttl .. ' ' .. meta
  end

  -- Whether somebody living is in the queue before the ticket (false: anybody).
  -- The first is notified, since the lock is free.
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

  -- Whether the owner is that of an idempotency key in use for something else.
  local function misused(owner, attempt, scope)
    if attempt == '' then return false end
    local other = call('GET', 'i:' .. owner)
    return other and other ~= scope
  end

  -- Acquires where the lock has this value, false if it is free.
  local function acquire_any(at, value, ticket, arrival)
    local resource, owner, ttl, attempt, scope, meta = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
    local lock, queue = 'l:' .. resource, 'q:' .. resource
    if value and select(3, split(value)) ~= owner then
      if ticket then enqueue(queue, ticket, arrival) end
      return locked(value, lock, queue)
    end
    if misused(owner, attempt, scope) then return 'O' end
    if value then return again(value, lock, attempt) end
    if (ticket or queued_until >= clock) and overtakes(queue, ticket, tonumber(arrival)) then
      if ticket then enqueue(queue, ticket, arrival) end
      return 'W'
    end
    local grant = up('c:' .. resource)
    if not grant then return 'Q' end
    call('SET', lock, join(grant, ttl, owner, attempt, meta), 'PX', ttl)
    if attempt ~= '' then call('SET', 'i:' .. owner, scope, 'PX', ttl) end
    if ticket then call('ZREM', queue, ticket) end
    return 'G ' .. grant .. ' ' .. ttl
  end

  local function retract(resource, owner, attempt, above)
    local lock = 'l:' .. resource
    local value = call('GET', lock)
    if not value then return 'N' end
    local grant, ttl, holder, note, meta = split(value)
    if holder ~= owner or tonumber(grant) <= above then return 'N' end
    local remain = without(note, attempt)
    if not remain then return 'N' end
    if remain ~= '' then -- other attempts may count on it
      call('SET', lock, join(grant, ttl, holder, remain, meta), 'KEEPTTL')
      return 'N'
    end
    call('DEL', lock)
    freed(resource, owner, note)
    return 'G ' .. grant .. ' 0'
  end

  local run = {}

  function run.w(at) -- acquire with a ticket
    local id, server, arrival, holder = ARGV[at + 6], ARGV[at + 7], ARGV[at + 8], ARGV[at + 9]
    if shut then return shut end
    if tonumber(ARGV[at + 2]) > longest then return behind end
    return acquire_any(at, call('GET', 'l:' .. ARGV[at]), id .. ' ' .. server .. ' ' .. holder, arrival)
  end

  function run.c(at) -- confirm
    local resource, owner, token = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
    if shut then return shut end
    if unreachable(token) then return 'T' end
    local lock, counter = 'l:' .. resource, 'c:' .. resource
    local value = call('GET', lock)
    if not value then return 'N' end
    local grant, ttl, holder, note, meta = split(value)
    if holder ~= owner or tonumber(grant) > token then return 'N' end -- rules 2 and 3
    if effective(counter) < token then count(counter, token) end
    if tonumber(grant) < token then -- so that a retry and a reader see the token
      call('SET', lock, join(text(token), ttl, holder, note, meta), 'KEEPTTL')
    end
    return 'G ' .. text(token) .. ' ' .. left(lock)
  end

  function run.t(at) -- retract
    local reply = retract(ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]))
    return open and reply or behind
  end

  function run.g(at) -- read
    if not open then return { behind, 0 } end
    local lock, queue = 'l:' .. ARGV[at], 'q:' .. ARGV[at]
    local value = call('GET', lock)
    local reply = { value and locked(value, lock, queue) or 'N', call('ZCARD', queue) }
    for _, part in ipairs(call('ZRANGE', queue, 0, 99, 'WITHSCORES')) do
      reply[#reply + 1] = part
    end
    return reply
  end

  function run.n(at) -- enqueue
    if shut then return shut end
    enqueue('q:' .. ARGV[at], ARGV[at + 1] .. ' ' .. ARGV[at + 2] .. ' ' .. ARGV[at + 4], ARGV[at + 3])
    return 'G 0 0'
  end

  function run.d(at) -- dequeue
    local queue = 'q:' .. ARGV[at]
    local first = call('ZRANGE', queue, 0, 0)[1]
    local ticket = ARGV[at + 1] .. ' ' .. ARGV[at + 2] .. ' ' .. ARGV[at + 3]
    call('ZREM', queue, ticket)
    if first == ticket and call('EXISTS', 'l:' .. ARGV[at]) == 0 then wake_first(queue) end
    return 'G 0 0'
  end

  function run.h(at) -- heartbeat
    if not open then return behind end
    local session = 's:' .. ARGV[at]
    local alive = call('EXISTS', session)
    call('SET', session, '', 'PX', ARGV[at + 1])
    return alive == 1 and 'E 0 0 0' or 'G 0 0'
  end

  return {
    run = run, acquire = acquire_any, wake_first = wake_first,
    width = { w = 10, c = 3, t = 4, g = 1, n = 5, d = 4, h = 2 },
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
    at = at + 4
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
if high_water > before then call('HSET', STATE, 'high_water', text(high_water)) end
if queued_until - before_until > 10 then call('HSET', STATE, 'queued_until', text(queued_until)) end
return cmsgpack.pack(replies)
