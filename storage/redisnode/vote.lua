-- A batch of operations on locks (node.Op). The gate is evaluated once for all of
-- them. Each operation succeeds or fails alone.
--
-- KEYS  none: the database is dedicated, and the keys follow from ARGV.
-- ARGV  cluster, epoch, counter TTL (ms), and the operations: a MessagePack array of
--       strings, which Lua reads several times faster than as many arguments. For
--       each operation its kind, then its arguments:
--       a resource owner ttl attempt scope meta   acquire without a ticket; attempt "" without an idempotency key
--       w resource owner ttl attempt scope meta id server arrival holder keyed   acquire with a ticket; keyed "1" or ""
--       c resource owner token                    confirm
--       e resource owner token ttl                extend
--       r resource owner token                    release
--       k resource owner token ttl                release-after; ttl 0 for a release
--       t resource owner attempt above            retract; above 0 for any grant
--       g resource                                read
--       n resource id server arrival holder keyed   enqueue
--       d resource id server holder keyed         dequeue
--       h server ttl                              heartbeat
-- Reply a MessagePack array with a string for each operation (for g an array of strings,
--       which begins with that one). All times are milliseconds:
--       G grant remaining [meta]                  granted; meta after an extend; G 0 0 for an operation on tickets
--       E grant remaining ttl meta                acquire: the owner had the lock already; heartbeat: E 0 0 0
--       C grant remaining                         extend: the lock was created again
--       H grant remaining ttl waiting owner meta  acquire: held by another; read: locked
--       W                                         acquire: free, but another ticket is first in the queue
--       N                                         not the owner's lock, or no lock
--       O                                         acquire: the owner is in use with another scope
--       Q                                         acquire: the counter has reached MAX_TOKEN
--       T                                         the token is above any that can have been reached
--       S epoch                                   the node is in this larger epoch
--       X epoch                                   not admitted, or in this smaller epoch
--       ! message                                 the operation failed
--       For g the string is followed by the number of tickets, then the member and
--       arrival of the first MAX_SHOWN.
-- Publishes to "fencelock:wake:<server>" when the place of one of its tickets is first:
--       the length of the resource's name, the name, the member, separated by blanks.
--
-- resource, scope, meta and holder are texts of callers and may hold anything; owner,
-- attempt, id and server are words (node.Op.Validate). So a record is parsed from its
-- front, where the words are, and never searched: the texts come last.
--
-- Most batches consist of extends, releases and acquires of a free lock: these are
-- defined first. The other operations are defined by define_uncommon(), at most once
-- a batch: to create forty functions costs as much as to run two operations.
local call = redis.call
local cluster, epoch, counter_ttl = ARGV[1], ARGV[2], ARGV[3]
local counter_ms = tonumber(counter_ttl)
local ARGV = cmsgpack.unpack(ARGV[4])
local state = call('HMGET', STATE, 'cluster', 'replid', 'epoch', 'max_ttl', 'high_water', 'queued_until')
local own_epoch = state[3] or '0'
local max_ttl = tonumber(state[4] or 0)
local stored_high_water = tonumber(state[5] or 0)
local high_water = stored_high_water
local not_admitted = 'X ' .. own_epoch
local open = state[1] == cluster and admitted(state[2])
local refusal = false -- the reply to every operation that needs the epoch
if not open then
  refusal = not_admitted
elseif own_epoch ~= epoch then
  refusal = tonumber(own_epoch) > tonumber(epoch) and 'S ' .. own_epoch or not_admitted
end
-- No queue has a ticket after queued_until (seconds on this node's clock), so that
-- operations on a node without waiters look for no queue.
local stored_until = tonumber(state[6] or 0)
local queued_until = stored_until
local now = queued_until > 0 and tonumber(call('TIME')[1]) or 1
local uncommon -- what define_uncommon() returned

local function parse(lock)
  return string.match(lock, '^(%d+) (%d+) (%S+) (%S*) (.*)$')
end

local function record(grant, ttl, owner, note, meta)
  return grant .. ' ' .. ttl .. ' ' .. owner .. ' ' .. note .. ' ' .. meta
end

-- The effective counter (rule 4), and whether the resource has a counter of its own.
local function effective(counter)
  local value = call('GET', counter)
  if value then return tonumber(value), true end
  return high_water, false
end

local function set_counter(counter, value)
  call('SET', counter, text(value), 'PX', counter_ttl)
  if value > high_water then high_water = value end
end

-- Increments the counter and returns the grant as text, nil when no token is left. A
-- new TTL costs four times as much as the increment, so the counter gets one only when
-- half of the old one has passed.
local function next_grant(counter)
  local grant = call('INCR', counter)
  if grant == 1 then -- the counter was missing
    grant = high_water + 1
    if grant > MAX_TOKEN then
      call('DEL', counter) -- it must stay missing: it would read as 1
      return nil
    end
    set_counter(counter, grant)
  elseif grant > MAX_TOKEN then
    call('DECR', counter)
    return nil
  elseif call('PTTL', counter) * 2 < counter_ms then
    call('PEXPIRE', counter, counter_ttl)
  end
  if grant > high_water then high_water = grant end
  return text(grant)
end

-- Takes the counter past the token of a released lease, so that no late extend creates
-- its lock again (rule 5). The counter nearly always equals the token, so it is
-- incremented first and compared then.
local function pass(counter, token)
  if not open then return end
  local past = token < MAX_TOKEN and token + 1 or MAX_TOKEN
  local value = call('INCR', counter)
  if value == past then
    if value > high_water then high_water = value end
  elseif value == 1 then -- the counter was missing, and reads as high_water
    call('DEL', counter)
    if high_water <= token then set_counter(counter, past) end
  elseif value > token then -- it was past the token already
    call('DECR', counter)
  else
    set_counter(counter, past)
  end
end

-- Whether the token is above any that the cluster can have reached (rule 23). The clock
-- is read only if the token is far above what this node has seen.
local function unreachable(token)
  if token <= high_water + MAX_TOKENS_AHEAD then return false end
  local time = call('TIME')
  return token > time[1] * 1000000 + time[2] + MAX_TOKENS_AHEAD
end

local define_uncommon

local function acquire(at)
  local resource, owner, ttl = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if refusal then return refusal end
  if tonumber(ttl) > max_ttl then return not_admitted end
  local lock = 'l:' .. resource
  local value = call('GET', lock)
  if value or ARGV[at + 3] ~= '' or queued_until >= now then
    uncommon = uncommon or define_uncommon()
    return uncommon.acquire(value, unpack(ARGV, at, at + 5))
  end
  local grant = next_grant('c:' .. resource)
  if not grant then return 'Q' end
  call('SET', lock, grant .. ' ' .. ttl .. ' ' .. owner .. '  ' .. ARGV[at + 5], 'PX', ttl)
  return 'G ' .. grant .. ' ' .. ttl
end

local function extend(at)
  local resource, owner, token, ttl = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  if refusal then return refusal end
  if unreachable(token) then return 'T' end
  if tonumber(ttl) > max_ttl then return not_admitted end
  local lock, counter = 'l:' .. resource, 'c:' .. resource
  local value = call('GET', lock)
  if value then
    local grant, _, holder, note, meta = parse(value)
    if holder ~= owner or tonumber(grant) > token then return 'N' end -- rule 3
    call('PEXPIRE', counter, counter_ttl)
    local remaining = call('PTTL', lock)
    if remaining >= tonumber(ttl) then -- a late extend must not shorten the lease
      return 'G ' .. grant .. ' ' .. text(remaining) .. ' ' .. meta
    end
    call('SET', lock, record(grant, ttl, holder, note, meta), 'PX', ttl)
    if note ~= '' then call('PEXPIRE', 'i:' .. owner, ttl) end
    return 'G ' .. grant .. ' ' .. ttl .. ' ' .. meta
  end
  local count, present = effective(counter)
  if count > token then return 'N' end -- rule 5
  call('SET', lock, record(text(token), ttl, owner, '=', ''), 'PX', ttl) -- the node cannot know the attempts
  if present then call('PEXPIRE', counter, counter_ttl) end
  return 'C ' .. text(token) .. ' ' .. ttl
end

-- After a lock is deleted: its idempotency key is free again, and the server of the
-- first ticket is notified.
local function freed(resource, owner, note)
  if note ~= '' then call('DEL', 'i:' .. owner) end
  if queued_until >= now then
    uncommon = uncommon or define_uncommon()
    uncommon.wake_first('q:' .. resource)
  end
end

-- Removing a vote is sound on any node and in any epoch, so a release and a retraction
-- are done even where the gate is shut; but there they are no answer.
local function release(at)
  local resource, owner, token = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if open and unreachable(token) then return 'T' end
  local lock, counter = 'l:' .. resource, 'c:' .. resource
  local value = call('GET', lock)
  local reply = 'N'
  if value then
    local grant, holder, note = string.match(value, '^(%d+) %d+ (%S+) (%S*) ')
    -- Under an idempotency key a later lease has the same owner (rule 3).
    if holder == owner and (note == '' or tonumber(grant) <= token) then
      call('DEL', lock)
      freed(resource, owner, note)
      reply = 'G ' .. grant .. ' 0'
    end
  end
  pass(counter, token) -- last: a full node refuses to count, but not to delete
  return open and reply or not_admitted
end

function define_uncommon()
  now = tonumber(call('TIME')[1])

  local function remaining(lock)
    return text(math.max(call('PTTL', lock), 0))
  end

  -- A member of a queue is "id server holder".
  local function server_of(ticket)
    return string.match(ticket, '^%S+ (%S+) ')
  end

  -- The first ticket whose server is alive. Tickets of dead servers before it are removed.
  local function first_of(queue)
    if queued_until < now then return nil end
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
    local first = first_of(queue)
    if first then wake(queue, first) end
  end

  local function add(queue, ticket, arrival)
    call('SET', 's:' .. server_of(ticket), '', 'PX', ENQUEUED_TTL, 'NX')
    call('ZADD', queue, 'NX', arrival, ticket)
    call('PEXPIRE', queue, TICKET_TTL)
    queued_until = now + TICKET_TTL / 1000 + 20 -- more than what the last line leaves unwritten
  end

  -- The arrival of a keyed ticket is the earliest of its id. The ticket that has the
  -- place so far is removed.
  local function placed(queue, id, ticket, arrival)
    local place = call('GET', 'p:' .. id)
    if place then
      local earliest, former = string.match(place, '^(%d+) (.*)$')
      if tonumber(earliest) < tonumber(arrival) then arrival = earliest end
      if former ~= ticket then call('ZREM', queue, former) end
    end
    call('SET', 'p:' .. id, arrival .. ' ' .. ticket, 'PX', TICKET_TTL)
    return arrival
  end

  local function locked(value, lock, queue)
    local grant, ttl, holder, _, meta = parse(value)
    return 'H ' .. grant .. ' ' .. remaining(lock) .. ' ' .. ttl .. ' ' .. call('ZCARD', queue) .. ' ' .. holder .. ' ' .. meta
  end

  -- The attempts of a note without this one, and their number; nil if the note does not
  -- have it. A lock without an idempotency key has the note '', which is its attempt.
  local function without(note, attempt)
    if note == attempt then return '', 0 end
    local kept, found = {}, false
    for one in string.gmatch(note, '[^,]+') do
      if one == attempt then found = true else kept[#kept + 1] = one end
    end
    return found and table.concat(kept, ',') or nil, #kept
  end

  -- The note of a lock that this attempt found, too.
  local function noted(note, attempt)
    if note == '' or note == '=' then return note end
    local rest, count = without(note, attempt)
    if rest then return note end -- it is noted already
    if attempt == '' or count >= MAX_ATTEMPTS then return '=' end
    return note .. ',' .. attempt
  end

  local function existing(value, lock, attempt)
    local grant, ttl, holder, note, meta = parse(value)
    local all = noted(note, attempt)
    if all ~= note then
      call('SET', lock, record(grant, ttl, holder, all, meta), 'KEEPTTL')
    end
    return 'E ' .. grant .. ' ' .. remaining(lock) .. ' ' .. ttl .. ' ' .. meta
  end

  -- Whether a living ticket is before this one (without one: whether there is any). Its
  -- server is notified, since the lock is free.
  local function overtakes(queue, ticket, arrival)
    local first = first_of(queue)
    if not first or first == ticket then return false end
    if ticket then
      local score = tonumber(call('ZSCORE', queue, first))
      if arrival < score or (arrival == score and ticket < first) then return false end
    end
    wake(queue, first)
    return true
  end

  -- value is the lock's record, false without one.
  local function acquire_any(value, resource, owner, ttl, attempt, scope, meta, ticket, arrival)
    local lock, queue = 'l:' .. resource, 'q:' .. resource
    if value and select(3, parse(value)) ~= owner then
      if ticket then add(queue, ticket, arrival) end
      return locked(value, lock, queue)
    end
    if attempt ~= '' then
      local used = call('GET', 'i:' .. owner)
      if used and used ~= scope then return 'O' end
    end
    if value then return existing(value, lock, attempt) end
    if overtakes(queue, ticket, tonumber(arrival)) then
      if ticket then add(queue, ticket, arrival) end
      return 'W'
    end
    local grant = next_grant('c:' .. resource)
    if not grant then return 'Q' end
    call('SET', lock, record(grant, ttl, owner, attempt, meta), 'PX', ttl)
    if attempt ~= '' then call('SET', 'i:' .. owner, scope, 'PX', ttl) end
    if ticket then call('ZREM', queue, ticket) end
    return 'G ' .. grant .. ' ' .. ttl
  end

  local function acquire_with_ticket(resource, owner, ttl, attempt, scope, meta, id, server, arrival, holder, keyed)
    if refusal then return refusal end
    if tonumber(ttl) > max_ttl then return not_admitted end
    local ticket = id .. ' ' .. server .. ' ' .. holder
    if keyed == '1' then arrival = placed('q:' .. resource, id, ticket, arrival) end
    return acquire_any(call('GET', 'l:' .. resource), resource, owner, ttl, attempt, scope, meta, ticket, arrival)
  end

  local function confirm(resource, owner, token)
    if refusal then return refusal end
    token = tonumber(token)
    if unreachable(token) then return 'T' end
    local lock, counter = 'l:' .. resource, 'c:' .. resource
    local value = call('GET', lock)
    if not value then return 'N' end
    local grant, ttl, holder, note, meta = parse(value)
    if holder ~= owner or tonumber(grant) > token then return 'N' end -- rules 2 and 3
    if effective(counter) < token then set_counter(counter, token) end
    if tonumber(grant) < token then -- so that a retry and a reader see the token
      call('SET', lock, record(text(token), ttl, holder, note, meta), 'KEEPTTL')
    end
    return 'G ' .. text(token) .. ' ' .. remaining(lock)
  end

  -- A release that keeps the resource taken, by no lease (rule 27).
  local function release_after(resource, owner, token, ttl)
    token = tonumber(token)
    if open and unreachable(token) then return 'T' end
    local lock, counter = 'l:' .. resource, 'c:' .. resource
    local value = call('GET', lock)
    local reply = 'N'
    if value then
      local grant, last_ttl, holder, note, meta = parse(value)
      if holder == owner and (note == '' or tonumber(grant) <= token) then
        local kept = math.min(tonumber(ttl), tonumber(remaining(lock)))
        if kept > 0 then
          call('SET', lock, record(grant, last_ttl, '-' .. string.sub(owner, 1, -2), '', meta), 'PX', kept)
          if note ~= '' then call('DEL', 'i:' .. owner) end
        else
          call('DEL', lock)
          freed(resource, owner, note)
        end
        reply = 'G ' .. grant .. ' ' .. kept
      end
    end
    pass(counter, token)
    return open and reply or not_admitted
  end

  local function retracted(resource, owner, attempt, above)
    local lock = 'l:' .. resource
    local value = call('GET', lock)
    if not value then return 'N' end
    local grant, ttl, holder, note, meta = parse(value)
    if holder ~= owner or tonumber(grant) <= tonumber(above) then return 'N' end
    local rest = without(note, attempt)
    if not rest then return 'N' end
    if rest ~= '' then -- other attempts may count on the lock
      call('SET', lock, record(grant, ttl, holder, rest, meta), 'KEEPTTL')
      return 'N'
    end
    call('DEL', lock)
    freed(resource, owner, note)
    return 'G ' .. grant .. ' 0'
  end

  local function retract(...)
    local reply = retracted(...)
    return open and reply or not_admitted
  end

  local function read(resource)
    if not open then return { not_admitted, '0' } end
    local lock, queue = 'l:' .. resource, 'q:' .. resource
    local value = call('GET', lock)
    local reply = { value and locked(value, lock, queue) or 'N', text(call('ZCARD', queue)) }
    for _, part in ipairs(call('ZRANGE', queue, 0, MAX_SHOWN - 1, 'WITHSCORES')) do
      reply[#reply + 1] = part
    end
    return reply
  end

  local function enqueue(resource, id, server, arrival, holder, keyed)
    if refusal then return refusal end
    local queue, ticket = 'q:' .. resource, id .. ' ' .. server .. ' ' .. holder
    if keyed == '1' then arrival = placed(queue, id, ticket, arrival) end
    add(queue, ticket, arrival)
    return 'G 0 0'
  end

  local function dequeue(resource, id, server, holder, keyed)
    local queue, ticket = 'q:' .. resource, id .. ' ' .. server .. ' ' .. holder
    local first = call('ZRANGE', queue, 0, 0)[1]
    call('ZREM', queue, ticket)
    if keyed == '1' then call('DEL', 'p:' .. id) end
    if first == ticket and call('EXISTS', 'l:' .. resource) == 0 then wake_first(queue) end
    return 'G 0 0'
  end

  local function heartbeat(server, ttl)
    if not open then return not_admitted end
    local alive = call('EXISTS', 's:' .. server)
    call('SET', 's:' .. server, '', 'PX', ttl)
    return alive == 1 and 'E 0 0 0' or 'G 0 0'
  end

  return {
    acquire = acquire_any, wake_first = wake_first,
    run = {
      w = acquire_with_ticket, c = confirm, k = release_after, t = retract, g = read, n = enqueue, d = dequeue, h = heartbeat,
    },
    arguments = { w = 11, c = 3, k = 4, t = 4, g = 1, n = 6, d = 5, h = 2 },
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
    uncommon = uncommon or define_uncommon()
    local arguments = uncommon.arguments[kind]
    ok, reply = pcall(uncommon.run[kind], unpack(ARGV, at + 1, at + arguments))
    at = at + 1 + arguments
  end
  if not ok then
    reply = '! ' .. tostring(type(reply) == 'table' and reply.err or reply)
  end
  replies[#replies + 1] = reply
end
if high_water > stored_high_water then call('HSET', STATE, 'high_water', text(high_water)) end
if queued_until - stored_until > 10 then call('HSET', STATE, 'queued_until', text(queued_until)) end
return cmsgpack.pack(replies)
