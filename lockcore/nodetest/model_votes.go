package nodetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Submit does the operation at once.
func (m *Model) Submit(op *lockcore.Op, index int, sink lockcore.Sink) {
	sink.Deliver(index, m.Apply(*op))
}

// Apply does one operation. Its Deadline is the transport's affair.
func (m *Model) Apply(op lockcore.Op) lockcore.Reply {
	m.mu.Lock()
	var turns []modelTurn
	reply := m.apply(op, &turns)
	told := m.listeners(turns)
	m.mu.Unlock()
	for _, tell := range told {
		tell()
	}
	return reply
}

func (m *Model) apply(op lockcore.Op, turns *[]modelTurn) lockcore.Reply {
	if err := op.Validate(); err != nil {
		return lockcore.Reply{Err: err}
	}
	switch op.Kind {
	case lockcore.OpRelease, lockcore.OpRetract:
		take := m.release
		if op.Kind == lockcore.OpRetract {
			take = m.retract
		}
		reply := take(op, turns)
		if !m.open() && reply.Outcome != lockcore.Failed {
			return m.behind()
		}
		return reply
	case lockcore.OpDequeue:
		return m.dequeue(op, turns)
	}
	if !m.open() {
		return m.behind()
	}
	switch op.Kind {
	case lockcore.OpRead:
		return m.read(op)
	case lockcore.OpHeartbeat:
		return m.heartbeat(op)
	}
	if own := m.view(); m.weak(VotesInAnyView) {
		op.View = own
	} else if own > op.View {
		return lockcore.Reply{Outcome: lockcore.StaleView, View: own}
	} else if own < op.View {
		return m.behind()
	}
	switch op.Kind {
	case lockcore.OpAcquire:
		return m.acquire(op, turns)
	case lockcore.OpConfirm:
		return m.confirm(op)
	case lockcore.OpExtend:
		return m.extend(op)
	case lockcore.OpEnqueue:
		m.enqueue(op)
		return lockcore.Reply{Outcome: lockcore.Granted}
	}
	return lockcore.Reply{Err: fmt.Errorf("operation of unknown kind %d", op.Kind)}
}

func (m *Model) behind() lockcore.Reply {
	return lockcore.Reply{Outcome: lockcore.NotAdmitted, View: m.view()}
}

func (m *Model) acquire(op lockcore.Op, turns *[]modelTurn) lockcore.Reply {
	if op.TTL > m.data.record.maxTTL && !m.weak(GrantsTooLong) {
		return m.behind()
	}
	l, held := m.lock(op.Resource)
	if held && l.owner != op.Owner {
		m.enqueue(op)
		return m.held(op.Resource, l)
	}
	if s, ok := m.data.scopes[op.Owner]; ok && op.Attempt != "" && m.left(s.until) > 0 && s.scope != op.Scope {
		return lockcore.Reply{Outcome: lockcore.OtherResource}
	}
	if held {
		return m.again(op, l)
	}
	if m.overtakes(op, turns) {
		m.enqueue(op)
		return lockcore.Reply{Outcome: lockcore.Queued}
	}
	grant := m.effective(op.Resource) + 1
	if grant > fencing.MaxToken {
		return lockcore.Reply{Outcome: lockcore.Exhausted}
	}
	m.count(op.Resource, grant)
	until := m.now().Add(op.TTL)
	m.data.locks[op.Resource] = modelLock{
		grant: grant, ttl: op.TTL, until: until, owner: op.Owner,
		keyed: op.Attempt != "", meta: op.Meta,
	}
	if op.Attempt != "" {
		m.noteAttempts(op.Resource, []string{op.Attempt})
		m.data.scopes[op.Owner] = modelScope{scope: op.Scope, until: until}
	}
	m.dropTicket(op.Resource, op.Ticket)
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: grant, Remaining: op.TTL}
}

func (m *Model) again(op lockcore.Op, l modelLock) lockcore.Reply {
	if l.attempts != nil && !slices.Contains(l.attempts, op.Attempt) {
		all := append(slices.Clone(l.attempts), op.Attempt)
		if op.Attempt == "" || len(all) > lockcore.MostAttempts {
			all = nil
		}
		m.noteAttempts(op.Resource, all)
	}
	return lockcore.Reply{
		Outcome: lockcore.Granted, Existing: true, Grant: l.grant, Remaining: m.left(l.until), TTL: l.ttl, Meta: l.meta,
	}
}

func (m *Model) noteAttempts(resource string, attempts []string) {
	l := m.data.locks[resource]
	l.attempts = attempts
	m.data.locks[resource] = l
}

func (m *Model) held(resource string, l modelLock) lockcore.Reply {
	return lockcore.Reply{
		Outcome: lockcore.Held, Grant: l.grant, Remaining: m.left(l.until), TTL: l.ttl,
		Waiting: len(m.data.lines[resource]), Owner: l.owner, Meta: l.meta,
	}
}

// owned gives the lock if it is the operation's own (rules 2 and 3).
func (m *Model) owned(op lockcore.Op) (l modelLock, owned bool) {
	l, held := m.lock(op.Resource)
	return l, held && l.owner == op.Owner && l.grant <= op.Token
}

func (m *Model) confirm(op lockcore.Op) lockcore.Reply {
	l, owned := m.owned(op)
	switch {
	case owned:
	case m.weak(ConfirmsForAnybody):
		m.raise(op)
		return lockcore.Reply{Outcome: lockcore.Granted, Grant: op.Token, Remaining: m.left(l.until)}
	case m.weak(ConfirmsAnyGrant) && l.owner == op.Owner && m.left(l.until) > 0:
	default:
		return lockcore.Reply{Outcome: lockcore.NotHeld}
	}
	m.raise(op)
	l.grant = op.Token
	m.data.locks[op.Resource] = l
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: op.Token, Remaining: m.left(l.until)}
}

// raise takes the counter to the token.
func (m *Model) raise(op lockcore.Op) {
	if m.effective(op.Resource) < op.Token {
		m.count(op.Resource, op.Token)
	}
}

func (m *Model) extend(op lockcore.Op) lockcore.Reply {
	if op.TTL > m.data.record.maxTTL && !m.weak(GrantsTooLong) {
		return m.behind()
	}
	l, owned := m.owned(op)
	if careless := m.weak(ExtendsAnyGrant) && l.owner == op.Owner && m.left(l.until) > 0; !owned && !careless {
		return m.recreate(op)
	}
	m.touch(op.Resource)
	if m.left(l.until) < op.TTL || m.weak(ShortensLocks) { // an extend never shortens: it may be an old one, late
		l.ttl, l.until = op.TTL, m.now().Add(op.TTL)
		m.data.locks[op.Resource] = l
		if s, ok := m.data.scopes[op.Owner]; ok && l.keyed && m.left(s.until) > 0 {
			s.until = l.until
			m.data.scopes[op.Owner] = s
		}
	}
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: l.grant, Remaining: m.left(l.until), Meta: l.meta}
}

// recreate is rule 5.
func (m *Model) recreate(op lockcore.Op) lockcore.Reply {
	if _, held := m.lock(op.Resource); held || m.effective(op.Resource) > op.Token && !m.weak(RevivesAnybody) {
		return lockcore.Reply{Outcome: lockcore.NotHeld}
	}
	m.touch(op.Resource)
	m.data.locks[op.Resource] = modelLock{ // of a key or not, nobody knows
		grant: op.Token, ttl: op.TTL, until: m.now().Add(op.TTL), owner: op.Owner,
		keyed: true,
	}
	return lockcore.Reply{Outcome: lockcore.Granted, Recreated: true, Grant: op.Token, Remaining: op.TTL}
}

// touch starts a counter's time to live anew.
func (m *Model) touch(resource string) {
	if c, ok := m.data.counters[resource]; ok && m.left(c.until) > 0 {
		c.until = m.now().Add(m.opts.CounterTTL)
		m.data.counters[resource] = c
	}
}

// release ends a lease for good, on any node and in any view.
func (m *Model) release(op lockcore.Op, turns *[]modelTurn) lockcore.Reply {
	l, held := m.lock(op.Resource)
	switch {
	case !held:
		m.pass(op)
		return lockcore.Reply{Outcome: lockcore.NotHeld}
	case l.owner != op.Owner, l.keyed && l.grant > op.Token && !m.weak(ReleasesAnyGrant):
		return lockcore.Reply{Outcome: lockcore.NotHeld}
	case m.replica:
		return lockcore.Reply{Err: errReplica, Sent: true}
	}
	m.pass(op)
	return m.remove(op.Resource, l, turns)
}

// pass takes the counter past the token of a lease that was released.
func (m *Model) pass(op lockcore.Op) {
	if m.open() && m.effective(op.Resource) <= op.Token {
		m.count(op.Resource, min(op.Token+1, fencing.MaxToken))
	}
}

// retract takes back the vote of one attempt, on any node and in any view.
func (m *Model) retract(op lockcore.Op, turns *[]modelTurn) lockcore.Reply {
	l, held := m.lock(op.Resource)
	switch {
	case !held || l.owner != op.Owner || l.grant <= op.Above && !m.weak(RetractsAnyGrant) || !l.of(op.Attempt):
		return lockcore.Reply{Outcome: lockcore.NotHeld}
	case m.replica:
		return lockcore.Reply{Err: errReplica, Sent: true}
	case len(l.attempts) > 1 && !m.weak(RetractsAnyAttempt): // the others may count on it
		m.noteAttempts(op.Resource, slices.DeleteFunc(slices.Clone(l.attempts), func(a string) bool { return a == op.Attempt }))
		return lockcore.Reply{Outcome: lockcore.NotHeld}
	}
	return m.remove(op.Resource, l, turns)
}

// of reports whether the attempt was told of the lock.
func (l modelLock) of(attempt string) bool {
	if attempt == "" {
		return !l.keyed
	}
	return slices.Contains(l.attempts, attempt)
}

// remove deletes a lock, and notifies the first in the queue.
func (m *Model) remove(resource string, l modelLock, turns *[]modelTurn) lockcore.Reply {
	delete(m.data.locks, resource)
	if l.keyed {
		delete(m.data.scopes, l.owner)
	}
	m.tellFirst(resource, turns)
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: l.grant}
}

func (m *Model) read(op lockcore.Op) lockcore.Reply {
	reply := lockcore.Reply{Outcome: lockcore.NotHeld}
	if l, held := m.lock(op.Resource); held {
		reply = m.held(op.Resource, l)
		reply.Outcome = lockcore.Granted
	}
	line := m.data.lines[op.Resource]
	reply.Waiting = len(line)
	reply.Line = slices.Clone(line[:min(len(line), lockcore.MostShown)])
	return reply
}

// The line.

func ticketName(t lockcore.Ticket) string { return t.ID + " " + t.Server + " " + t.Holder }

// standTTL is for how long a server lives that stands in line without having
// been kept alive.
const standTTL = 3 * time.Second

func (m *Model) enqueue(op lockcore.Op) {
	t := op.Ticket
	if t.ID == "" {
		return
	}
	if m.left(m.data.sessions[t.Server]) == 0 {
		m.data.sessions[t.Server] = m.now().Add(standTTL)
	}
	line := m.data.lines[op.Resource]
	if slices.ContainsFunc(line, func(o lockcore.Ticket) bool { return ticketName(o) == ticketName(t) }) {
		return
	}
	line = append(slices.Clone(line), t)
	slices.SortFunc(line, compareTickets)
	m.data.lines[op.Resource] = line
}

func compareTickets(a, b lockcore.Ticket) int {
	if a.Arrival != b.Arrival {
		return int(a.Arrival - b.Arrival)
	}
	return strings.Compare(ticketName(a), ticketName(b))
}

func (m *Model) dropTicket(resource string, t lockcore.Ticket) {
	line := slices.DeleteFunc(slices.Clone(m.data.lines[resource]), func(o lockcore.Ticket) bool {
		return ticketName(o) == ticketName(t)
	})
	if m.data.lines[resource] = line; len(line) == 0 {
		delete(m.data.lines, resource)
	}
}

// first is the first in line that lives; the dead before it leave.
func (m *Model) first(resource string) (first lockcore.Ticket, found bool) {
	for len(m.data.lines[resource]) > 0 {
		first = m.data.lines[resource][0]
		if m.left(m.data.sessions[first.Server]) > 0 {
			return first, true
		}
		m.dropTicket(resource, first)
	}
	return lockcore.Ticket{}, false
}

// overtakes reports whether somebody living stands in line before this
// acquire. The first is told, since the lock is free.
func (m *Model) overtakes(op lockcore.Op, turns *[]modelTurn) bool {
	first, found := m.first(op.Resource)
	if !found || op.Ticket.ID != "" && (ticketName(first) == ticketName(op.Ticket) || compareTickets(op.Ticket, first) < 0) {
		return false
	}
	*turns = append(*turns, modelTurn{op.Resource, first})
	return true
}

func (m *Model) dequeue(op lockcore.Op, turns *[]modelTurn) lockcore.Reply {
	if m.replica {
		return lockcore.Reply{Err: errReplica, Sent: true}
	}
	line := m.data.lines[op.Resource]
	wasFirst := len(line) > 0 && ticketName(line[0]) == ticketName(op.Ticket)
	m.dropTicket(op.Resource, op.Ticket)
	if _, held := m.lock(op.Resource); wasFirst && !held {
		m.tellFirst(op.Resource, turns)
	}
	return lockcore.Reply{Outcome: lockcore.Granted}
}

func (m *Model) heartbeat(op lockcore.Op) lockcore.Reply {
	alive := m.left(m.data.sessions[op.Ticket.Server]) > 0
	m.data.sessions[op.Ticket.Server] = m.now().Add(op.TTL)
	return lockcore.Reply{Outcome: lockcore.Granted, Existing: alive}
}

// Whose turn it is.

type subscriber struct {
	server string
	wakes  lockcore.Wakes
}

type modelTurn struct {
	resource string
	ticket   lockcore.Ticket
}

func (m *Model) tellFirst(resource string, turns *[]modelTurn) {
	if first, found := m.first(resource); found {
		*turns = append(*turns, modelTurn{resource, first})
	}
}

// listeners gives the calls to make once the mutex is free.
func (m *Model) listeners(turns []modelTurn) (told []func()) {
	for _, turn := range turns {
		for _, s := range m.subscribers {
			if s.server == turn.ticket.Server {
				ticket := turn.ticket
				ticket.Arrival = 0
				told = append(told, func() { s.wakes.Turn(turn.resource, ticket) })
			}
		}
	}
	return told
}

// Wakes subscribes until ctx ends.
func (m *Model) Wakes(ctx context.Context, server string, w lockcore.Wakes) {
	s := &subscriber{server: server, wakes: w}
	m.mu.Lock()
	m.subscribers = append(m.subscribers, s)
	m.mu.Unlock()
	w.Subscribed()
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subscribers = slices.DeleteFunc(m.subscribers, func(o *subscriber) bool { return o == s })
}

// resubscribe is what follows a restart.
func (m *Model) resubscribe() {
	m.mu.Lock()
	all := slices.Clone(m.subscribers)
	m.mu.Unlock()
	for _, s := range all {
		s.wakes.Subscribed()
	}
}
