-- A batch of operations on locks (node.Op). The gate is evaluated once for all of
-- them. Each operation succeeds or fails alone.
--
-- KEYS  none: the database is dedicated, and the keys follow from ARGV.
-- ARGV  cluster, epoch, counter TTL (ms), the name of the map, and the operations: a MessagePack array,
--       which Lua reads several times faster than as many arguments. It has strings,
--       and numbers for token and above. For each operation its kind, the key of its
--       lock (but for h), and its other arguments:
--       a lock ttl tail                       acquire without idempotency key and ticket; the lock's record is the grant and tail
--       i lock ttl tail used scope            acquire with idempotency key and without ticket; used is the key that has the scope
--       w lock owner ttl attempt scope meta id server arrival holder keyed   acquire with a ticket; keyed "1" or ""
--       c lock owner token attempt            confirm
--       e lock owner token ttl attempt        extend
--         r lock token front server             release; front is how the record begins if the grant is the token and the owner
--                                               matches; if server is not "", it acquires the lock right after this release
--       k lock owner token ttl                release-after; ttl 0 for a release
--       b lock token                          break
--       t lock owner attempt above            retract; above 0 for any grant
--       g lock                                read
--       n lock id server arrival holder keyed enqueue
--       d lock id server holder keyed         dequeue
--       f lock id server holder               forget
--       h server ttl                          heartbeat
-- Reply a MessagePack array with one of these for each operation (for g an array, which
--       begins with that one). All times are milliseconds:
--       a number                                  granted by an acquire for its TTL, or released: the grant
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
--       X epoch                                   not admitted, or in this smaller epoch, or with another map
--       ! message                                 the operation failed
--       For g the string is followed by the number of tickets, then the member and
--       arrival of the first MAX_SHOWN.
-- Publishes to "fencelock:wake:<server>" when one of that server's tickets becomes first, or
--       when the wait of its request has ended on another server (without a holder, if the
--       ticket was replaced): the length of the resource's name, the name and the member,
--       separated by blanks.
--
-- resource, scope, meta and holder are texts of callers and may hold anything. owner, attempt, id and server
-- are words (node.Op.Validate). Texts come last in a record, so it is parsed from the front, where the words
-- are, and never searched.
--
-- Most batches consist of acquires of free locks, and of releases: usual() executes these. For everything else
-- define_rules() creates the functions, at most once per batch, because creating all forty costs as much as
-- executing two operations.
local call, sub, match = redis.call, string.sub, string.match
local cluster, epoch, counter_ttl = ARGV[1], ARGV[2], ARGV[3]
local counter_ms = tonumber(counter_ttl)
local ops = cmsgpack.unpack(ARGV[5])
local state = call('HMGET', STATE, 'cluster', 'replid', 'epoch', 'max_ttl', 'high_water', 'queued_until', 'map', 'floor')
local own_epoch = state[3] or '0'
local max_ttl = tonumber(state[4] or 0)
local stored_high_water = tonumber(state[5] or 0)
local high_water = stored_high_water
local not_admitted = 'X ' .. own_epoch
local open = ours(state[1], cluster) and admitted(state[2])
local mapped = open and (state[7] or '') == ARGV[4] -- the node has the caller's map (rule 30)
local floor = tonumber(state[8] or 0)
local refusal = false -- the reply to every operation that needs the epoch
if not mapped then
  refusal = not_admitted
elseif own_epoch ~= epoch then
  refusal = tonumber(own_epoch) > tonumber(epoch) and 'S ' .. own_epoch or not_admitted
end
-- No queue has a ticket after queued_until (seconds on this node's clock). So operations on a node without
-- waiters need not look up a queue.
local stored_until = tonumber(state[6] or 0)
local queued_until = stored_until
local now = queued_until > 0 and tonumber(call('TIME')[1]) or 1
local rules -- what define_rules() returned

-- Restarts a counter's TTL if more than half of it has passed: reading the TTL costs half as much as setting
-- it.
local function refresh(counter)
  if call('PTTL', counter) * 2 < counter_ms then call('PEXPIRE', counter, counter_ttl) end
end

local function set_counter(counter, value)
  call('SET', counter, text(value), 'PX', counter_ttl)
  if value > high_water then high_water = value end
end

-- Increments the counter and returns the grant, or nil when no token is left. Every long lease restarts the
-- counter's TTL, and about every 32nd short one: if the counter expires with a short lease, the only cost is
-- an extra round for the next lease.
local function next_grant(counter, ttl)
  local grant = call('INCR', counter)
  if grant == 1 then -- the counter was missing
    grant = math.max(high_water, floor) + 1
    if grant > MAX_TOKEN then
      call('DEL', counter) -- it must stay missing: it would read as 1
      return nil
    end
    set_counter(counter, grant)
  elseif grant > MAX_TOKEN then
    call('DECR', counter)
    return nil
  elseif grant <= floor then -- another set has had the resource since
    grant = floor + 1
    set_counter(counter, grant)
  elseif grant % 64 < 2 or ttl * 1000 > counter_ms then
    refresh(counter)
  end
  if grant > high_water then high_water = grant end
  return grant
end

-- Raises the counter above the token of a lease that was released or refused, so that no later extend
-- recreates its lock (rule 5). The counter nearly always equals the token, so it is incremented first and
-- compared afterwards.
local function pass(counter, token)
  if refusal then return end
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

-- The usual acquire finds no lock, and an idempotency key that is not in use. The usual release finds its own
-- lock. Neither meets a queue. In all other cases these two functions change nothing and return nil, which
-- leaves the operation to the rules. So a rule that refuses an acquire belongs in acquire_with(), and an
-- acquire that it refuses must get nil here.
local ttl, ttl_ms -- of the last acquire: callers tend to request the same TTL
local function usual_acquire(at, used)
  local lock = ops[at + 1]
  if ops[at + 2] ~= ttl then
    ttl, ttl_ms = ops[at + 2], tonumber(ops[at + 2])
  end
  if ttl_ms > max_ttl or call('GET', lock) then return nil end
  if used and not call('SET', used, ops[at + 5], 'PX', ttl, 'NX') then return nil end
  local grant = next_grant('c' .. lock, ttl_ms)
  if not grant then
    if used then call('DEL', used) end
    return 'Q'
  end
  call('SET', lock, text(grant) .. ops[at + 3], 'PX', ttl)
  return grant
end

local function usual_release(at)
  local lock, token, front = ops[at + 1], ops[at + 2], ops[at + 3]
  local value = call('GET', lock)
  if not value or token > high_water or sub(value, 1, #front) ~= front then return nil end
  if sub(value, #front + 1, #front + 1) == ' ' then -- the note is empty
    call('DEL', lock)
  else
    call('DEL', lock, 'i:' .. match(front, ' (%S+)'))
  end
  pass('c' .. lock, token) -- counted last: a full node refuses to count, but not to delete
  return token
end

local usual_arguments = { a = 3, i = 5, r = 4 }
local function usual(at)
  if refusal or queued_until >= now and call('EXISTS', 'q' .. ops[at + 1]) == 1 then return nil end
  local kind = ops[at]
  if kind == 'r' then return usual_release(at) end
  return usual_acquire(at, kind == 'i' and ops[at + 4])
end

local function define_rules()
  if queued_until <= 0 then now = tonumber(call('TIME')[1]) end

  local function parse(lock)
    return match(lock, '^(%d+) (%S+) (%S*) (%d+) (.*)$')
  end

  local function record(grant, owner, note, ttl, meta)
    return grant .. ' ' .. owner .. ' ' .. note .. ' ' .. ttl .. ' ' .. meta
  end

  -- Returns the effective counter (rule 4), and whether the resource has a counter of its own.
  local function effective(counter)
    local value = call('GET', counter)
    if value then return tonumber(value), true end
    return high_water, false
  end

  -- Reports whether the token is above every token that the cluster can have reached (rule 23). It reads the
  -- clock only if the token is far above those this node has seen.
  local function unreachable(token)
    if token <= high_water + MAX_TOKENS_AHEAD then return false end
    local time = call('TIME')
    return token > time[1] * 1000000 + time[2] + MAX_TOKENS_AHEAD
  end

  local function remaining(lock)
    return text(math.max(call('PTTL', lock), 0))
  end

  -- A member of a queue is "id server holder".
  local function server_of(ticket)
    return match(ticket, '^%S+ (%S+) ')
  end

  -- Returns the first ticket whose server is alive, and removes the tickets of dead servers before it.
  local function first_of(queue)
    if queued_until < now then return nil end
    while true do
      local first = call('ZRANGE', queue, 0, 0)[1]
      if not first then return nil end
      if call('EXISTS', 's:' .. server_of(first)) == 1 then return first end
      call('ZREM', queue, first)
    end
  end

  local function wake(lock, ticket)
    local resource = sub(lock, 3)
    call('PUBLISH', 'fencelock:wake:' .. server_of(ticket), #resource .. ' ' .. resource .. ' ' .. ticket)
  end

  -- Notifies the first ticket's server, unless that server acquires the lock without a notification.
  local function wake_first(lock, asks)
    local first = first_of('q' .. lock)
    if first and server_of(first) ~= asks then wake(lock, first) end
  end

  local function add(queue, ticket, arrival)
    local server = 's:' .. server_of(ticket)
    if call('PTTL', server) <= ENQUEUED_TTL - ENQUEUED_AGAIN then call('SET', server, '', 'PX', ENQUEUED_TTL) end
    call('ZADD', queue, 'NX', arrival, ticket)
    call('PEXPIRE', queue, TICKET_TTL)
    queued_until = now + TICKET_TTL / 1000 + 20 -- 20 s more than an increase that the end of the script may leave unwritten
  end

  -- Returns the servers, except one, where the request of a keyed ticket also waits: names separated by
  -- blanks, in the order in which their tickets were replaced.
  local function servers_but(id, but)
    local kept = {}
    for server in string.gmatch(call('GET', 'p:' .. id .. ' servers') or '', '%S+') do
      if server ~= but then kept[#kept + 1] = server end
    end
    return kept
  end

  local function set_servers(id, servers)
    local key = 'p:' .. id .. ' servers'
    if #servers == 0 then
      call('DEL', key)
    else
      call('SET', key, table.concat(servers, ' '), 'PX', TICKET_TTL)
    end
  end

  -- Places a keyed ticket in the queue: its arrival is the earliest one recorded for its id. The ticket that
  -- held the place is removed, and its server remembered, because the request still waits there.
  local function placed(queue, id, ticket, arrival)
    local place = call('GET', 'p:' .. id)
    if place then
      local earliest, former = match(place, '^(%d+) (.*)$')
      if tonumber(earliest) < tonumber(arrival) then arrival = earliest end
      if former ~= ticket and call('ZREM', queue, former) == 1 then
        local servers = servers_but(id, server_of(former))
        servers[#servers + 1] = server_of(former)
        set_servers(id, servers)
      end
    end
    call('SET', 'p:' .. id, arrival .. ' ' .. ticket, 'PX', TICKET_TTL)
    return arrival
  end

  local function locked(value, lock)
    local grant, holder, _, ttl, meta = parse(value)
    return 'H ' .. grant .. ' ' .. remaining(lock) .. ' ' .. ttl .. ' ' .. call('ZCARD', 'q' .. lock) .. ' ' .. holder .. ' ' .. meta
  end

  -- Returns the attempts of a note without this one, and their number; nil if the note does not contain it. A
  -- lock without an idempotency key has the note '', which stands for its only attempt.
  local function without(note, attempt)
    if note == attempt then return '', 0 end
    local kept, found = {}, false
    for one in string.gmatch(note, '[^,]+') do
      if one == attempt then found = true else kept[#kept + 1] = one end
    end
    return found and table.concat(kept, ',') or nil, #kept
  end

  -- Returns the note of a lock after this attempt has found it, too.
  local function noted(note, attempt)
    if note == '' or note == '=' then return note end
    local rest, count = without(note, attempt)
    if rest then return note end -- it is noted already
    if attempt == '' or count >= MAX_ATTEMPTS then return '=' end
    return note .. ',' .. attempt
  end

  local function existing(value, lock, attempt)
    local grant, holder, note, ttl, meta = parse(value)
    local all = noted(note, attempt)
    if all ~= note then
      call('SET', lock, record(grant, holder, all, ttl, meta), 'KEEPTTL')
    end
    return 'E ' .. grant .. ' ' .. remaining(lock) .. ' ' .. ttl .. ' ' .. meta
  end

  -- Reports whether a living ticket precedes this one (or, without a ticket, whether there is any). Its server
  -- is notified, since the lock is free.
  local function overtakes(lock, ticket, arrival)
    local queue = 'q' .. lock
    local first = first_of(queue)
    if not first or first == ticket then return false end
    if ticket then
      local score = tonumber(call('ZSCORE', queue, first))
      if arrival < score or (arrival == score and ticket < first) then return false end
    end
    wake(lock, first)
    return true
  end

  -- value is the lock's record, false without one; ticket is nil without one.
  local function acquire_any(value, lock, owner, ttl, attempt, scope, meta, ticket, arrival)
    local queue = 'q' .. lock
    if value and select(2, parse(value)) ~= owner then
      if ticket then add(queue, ticket, arrival) end
      return locked(value, lock)
    end
    if attempt ~= '' then
      local used = call('GET', 'i:' .. owner)
      if used and used ~= scope then return 'O' end
    end
    if value then return existing(value, lock, attempt) end
    if overtakes(lock, ticket, tonumber(arrival)) then
      if ticket then add(queue, ticket, arrival) end
      return 'W'
    end
    local grant = next_grant('c' .. lock, tonumber(ttl))
    if not grant then return 'Q' end
    call('SET', lock, record(text(grant), owner, attempt, ttl, meta), 'PX', ttl)
    if attempt ~= '' then call('SET', 'i:' .. owner, scope, 'PX', ttl) end
    if ticket then call('ZREM', queue, ticket) end
    return grant
  end

  local function acquire_with(lock, owner, ttl, attempt, scope, meta, id, server, arrival, holder, keyed)
    if refusal then return refusal end
    if tonumber(ttl) > max_ttl then return not_admitted end
    local ticket = id ~= '' and id .. ' ' .. server .. ' ' .. holder or nil
    if keyed == '1' then arrival = placed('q' .. lock, id, ticket, arrival) end
    return acquire_any(call('GET', lock), lock, owner, ttl, attempt, scope, meta, ticket, arrival)
  end

  -- Takes the arguments in the form of usual_acquire(): tail has the owner, the attempt and the metadata.
  local function acquire(lock, ttl, tail, _, scope)
    local owner, attempt, meta = match(tail, '^ (%S+) (%S*) %d+ (.*)$')
    return acquire_with(lock, owner, ttl, attempt, scope, meta, '')
  end

  -- Reports whether another attempt has found the lock after this one and may have received the present grant.
  -- If the note does not list all attempts, the result is unknown.
  local function found_since(note, attempt)
    return attempt ~= '' and note ~= '' and note ~= '=' and match(note, '[^,]+$') ~= attempt
  end

  local function confirm(lock, owner, token, attempt)
    if refusal then return refusal end
    if unreachable(token) then return 'T' end
    local counter = 'c' .. lock
    local value = call('GET', lock)
    if not value then return 'N' end
    local grant, holder, note, ttl, meta = parse(value)
    if holder ~= owner or tonumber(grant) > token or found_since(note, attempt) then return 'N' end -- rules 2 and 3
    if effective(counter) < token then set_counter(counter, token) end
    if tonumber(grant) < token then -- so that a retry and a reader see the token
      call('SET', lock, record(text(token), holder, note, ttl, meta), 'KEEPTTL')
    end
    return 'G ' .. text(token) .. ' ' .. remaining(lock)
  end

  local function extend(lock, owner, token, ttl, attempt)
    if refusal then return refusal end
    if unreachable(token) then return 'T' end
    if tonumber(ttl) > max_ttl then return not_admitted end
    local counter = 'c' .. lock
    local value = call('GET', lock)
    if value then
      local grant, holder, note, last_ttl, meta = parse(value)
      if holder ~= owner or tonumber(grant) > token then -- rule 3
        pass(counter, token) -- the other lock may end, and an extend would then recreate this one
        return 'N'
      end
      refresh(counter)
      local all, news = noted(note, attempt), false
      if all ~= note or tonumber(grant) < token then -- the lease counts on the lock (rules 3 and 28)
        grant, note, news = text(token), all, true
      end
      local remaining = call('PTTL', lock)
      if remaining >= tonumber(ttl) then -- a late extend must not shorten the lease
        if news then call('SET', lock, record(grant, holder, note, last_ttl, meta), 'KEEPTTL') end
        return 'G ' .. grant .. ' ' .. text(remaining) .. ' ' .. meta
      end
      call('SET', lock, record(grant, holder, note, ttl, meta), 'PX', ttl)
      if note ~= '' then call('PEXPIRE', 'i:' .. owner, ttl) end
      return 'G ' .. grant .. ' ' .. ttl .. ' ' .. meta
    end
    local count, present = effective(counter)
    if math.max(count, floor) > token then return 'N' end -- rule 5
    call('SET', lock, record(text(token), owner, '=', ttl, ''), 'PX', ttl) -- the node cannot know the attempts
    if present then refresh(counter) end
    return 'C ' .. text(token) .. ' ' .. ttl
  end

  -- Called after a lock is deleted: frees its idempotency key, and notifies the server of the first ticket.
  local function freed(lock, owner, note, asks)
    if note ~= '' then call('DEL', 'i:' .. owner) end
    wake_first(lock, asks)
  end

  -- Removing a vote is safe on any node, so a release and a retraction are executed even if the gate is shut.
  -- But then the node does not confirm them. It does not confirm a release either if its epoch is smaller than
  -- the caller's (rule 8). Under an idempotency key, a later lease has the same owner (rule 3). A
  -- release-after leaves the resource locked, by no lease (rule 27).
  local function release_after(lock, owner, token, ttl, asks)
    if open and unreachable(token) then return 'T' end
    if refusal and refusal ~= not_admitted then return refusal end -- the caller starts again
    local value = call('GET', lock)
    local reply = 'N'
    if value then
      local grant, holder, note, last_ttl, meta = parse(value)
      if holder == owner and (note == '' or tonumber(grant) <= token) then
        local kept = math.min(tonumber(ttl), tonumber(remaining(lock)))
        if kept > 0 then
          call('SET', lock, record(grant, '-' .. sub(owner, 1, -2), '', last_ttl, meta), 'PX', kept)
          if note ~= '' then call('DEL', 'i:' .. owner) end
          wake_first(lock, asks) -- the lock ends earlier than the server was told
        else
          call('DEL', lock)
          freed(lock, owner, note, asks)
        end
        reply = 'G ' .. grant .. ' ' .. kept
      end
    end
    pass('c' .. lock, token) -- last, as in usual_release()
    return refusal or reply
  end

  -- Takes the arguments in the form of usual_release(): front contains the owner.
  local function release(lock, token, front, server)
    return release_after(lock, match(front, ' (%S+)'), token, 0, server)
  end

  -- Ends every lease up to the token, of any owner. A lock with a larger grant belongs to a later lease and
  -- stays (rule 28).
  local function break_up_to(lock, token)
    if open and unreachable(token) then return 'T' end
    if refusal and refusal ~= not_admitted then return refusal end -- the caller starts again
    local value = call('GET', lock)
    local reply = 'N'
    if value then
      local grant, holder, note = parse(value)
      if tonumber(grant) <= token then
        call('DEL', lock)
        freed(lock, holder, note)
        reply = 'G ' .. grant .. ' 0'
      end
    end
    pass('c' .. lock, token) -- last, as in usual_release()
    return refusal or reply
  end

  local function retracted(lock, owner, attempt, above)
    local value = call('GET', lock)
    if not value then return 'N' end
    local grant, holder, note, ttl, meta = parse(value)
    if holder ~= owner or tonumber(grant) <= above then return 'N' end
    local rest = without(note, attempt)
    if not rest then return 'N' end
    if rest ~= '' then -- other attempts may count on the lock
      call('SET', lock, record(grant, holder, rest, ttl, meta), 'KEEPTTL')
      return 'N'
    end
    call('DEL', lock)
    freed(lock, owner, note)
    return 'G ' .. grant .. ' 0'
  end

  local function retract(...)
    local reply = retracted(...)
    return open and reply or not_admitted
  end

  local function read(lock)
    if not mapped then return { not_admitted, '0' } end
    local queue = 'q' .. lock
    local value = call('GET', lock)
    local reply = { value and locked(value, lock) or 'N', text(call('ZCARD', queue)) }
    for _, part in ipairs(call('ZRANGE', queue, 0, MAX_SHOWN - 1, 'WITHSCORES')) do
      reply[#reply + 1] = part
    end
    return reply
  end

  local function enqueue(lock, id, server, arrival, holder, keyed)
    if refusal then return refusal end
    local queue, ticket = 'q' .. lock, id .. ' ' .. server .. ' ' .. holder
    if keyed == '1' then arrival = placed(queue, id, ticket, arrival) end
    add(queue, ticket, arrival)
    return 'G 0 0'
  end

  -- Ends the wait under a key. If a ticket of another server has the key's place, it is removed, too. Every
  -- other server where a request under the key waits is notified.
  local function forget_place(lock, id, server, ticket)
    local place, servers = call('GET', 'p:' .. id), servers_but(id, server)
    call('DEL', 'p:' .. id, 'p:' .. id .. ' servers')
    local other = place and match(place, '^%d+ (.*)$')
    if other == ticket then other = nil end
    if other then
      call('ZREM', 'q' .. lock, other)
      wake(lock, other)
    end
    for _, one in ipairs(servers) do
      if not other or one ~= server_of(other) then wake(lock, id .. ' ' .. one .. ' ') end
    end
    return other
  end

  -- Ends the wait of one server under a key whose request may be repeated.
  local function leave_place(id, server)
    if call('EXISTS', 'p:' .. id .. ' servers') == 1 then set_servers(id, servers_but(id, server)) end
  end

  local function dequeue(lock, id, server, holder, keyed)
    local queue, ticket = 'q' .. lock, id .. ' ' .. server .. ' ' .. holder
    local first = call('ZRANGE', queue, 0, 0)[1]
    call('ZREM', queue, ticket)
    local other
    if keyed == '1' then other = forget_place(lock, id, server, ticket) else leave_place(id, server) end
    if first and (first == ticket or first == other) and call('EXISTS', lock) == 0 then wake_first(lock) end
    return 'G 0 0'
  end

  local function forget(_, id, server, holder)
    local place = call('GET', 'p:' .. id)
    if place and match(place, '^%d+ (.*)$') == id .. ' ' .. server .. ' ' .. holder then call('DEL', 'p:' .. id) end
    return 'G 0 0'
  end

  local function heartbeat(server, ttl)
    if not open then return not_admitted end
    local alive = call('EXISTS', 's:' .. server)
    call('SET', 's:' .. server, '', 'PX', ttl)
    return alive == 1 and 'E 0 0 0' or 'G 0 0'
  end

  return {
    run = {
      a = acquire, i = acquire, w = acquire_with, c = confirm, e = extend, r = release, k = release_after, b = break_up_to, t = retract,
      g = read, n = enqueue, d = dequeue, f = forget, h = heartbeat,
    },
    arguments = { a = 3, i = 5, w = 11, c = 4, e = 5, r = 4, k = 4, b = 2, t = 4, g = 1, n = 6, d = 5, f = 4, h = 2 },
  }
end

local replies, at, last = {}, 1, #ops
while at <= last do
  local kind = ops[at]
  local ok, reply, arguments = true, nil, usual_arguments[kind]
  if arguments then ok, reply = pcall(usual, at) end
  if ok and not reply then
    rules = rules or define_rules()
    arguments = rules.arguments[kind]
    ok, reply = pcall(rules.run[kind], unpack(ops, at + 1, at + arguments))
  end
  at = at + 1 + arguments
  if not ok then
    reply = '! ' .. tostring(type(reply) == 'table' and reply.err or reply)
  end
  replies[#replies + 1] = reply
end
if high_water > stored_high_water then call('HSET', STATE, 'high_water', text(high_water)) end
if queued_until - stored_until > 10 then call('HSET', STATE, 'queued_until', text(queued_until)) end
return cmsgpack.pack(replies)
