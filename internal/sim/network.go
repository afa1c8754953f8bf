package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// port is one server's connection to a node, from one start of the server to its end. As a node.Node, it turns
// every call into a message.
type port struct {
	w         *world
	server    *server
	epoch     int
	node      *simNode
	relays    []relay       // subscriptions of this life, by node
	last      time.Duration // when the last request arrives, in plans that keep their order
	gathering *message      // waits for other messages that travel with it; nil for none
	slower    pace          // the pace of the server's clock: a minute on it takes this many real minutes
}

var _ node.Node = (*port)(nil)

// kinds names all kinds of messages: votes by their OpKind, and others.
var kinds = [...]string{
	node.OpAcquire: "acquire", node.OpConfirm: "confirm", node.OpExtend: "extend", node.OpRelease: "release",
	node.OpReleaseAfter: "release-after", node.OpRetract: "retract", node.OpRead: "read", node.OpEnqueue: "enqueue",
	node.OpDequeue: "dequeue", node.OpHeartbeat: "heartbeat", node.OpBreak: "break", node.OpForget: "forget",
	100: "observe", "install-epoch", "survey", "counters", "scan", "quarantine", "stage", "load", "admit", "raise-max-ttl",
	"replace-secrets", "time", "expel", "wake", "subscribed", "done", "install-map", "receive", "servers",
}

func kindOf(name string) int { return slices.Index(kinds[:], name) }

// message is a request and the handling of its reply.
type message struct {
	*port
	kind    int
	op      *node.Op
	with    []*message // messages that travel with it
	sort    rank
	run     func(*simNode) any // runs on the node when the request arrives
	answer  func(any)          // runs at the server when the reply arrives
	giveUp  time.Duration      // when the port fails the call by itself; 0: the caller has its own limit
	sent    time.Duration
	due     time.Duration // when its reply is delivered
	back    any           // its reply, while the reply travels
	settled bool          // got a reply, or was given up
	leaving bool          // giving up is scheduled
}

func (m *message) rank() rank { return m.sort }

// portTimeout is how long a port waits for a reply at most, even if the operation may wait longer.
// storage/redisnode does the same.
const portTimeout = 200 * time.Millisecond

var (
	errLost = errors.New("no response within the node's time limit")
	errDown = fmt.Errorf("not sent: %w", node.ErrNodeDown)
)

// accept sends the request on its way.
func (m *message) accept(w *world) {
	if m.epoch != m.server.epoch {
		return // its server is dead
	}
	if held := m.server.pausedUntil - w.now(); held > 0 {
		w.after(held+between(w.fates.draw(m.server.id, m.epoch, m.node.id), 0, time.Millisecond), func() { m.send() })
		return
	}
	if !m.gather() {
		m.send()
	}
}

func (m *message) send() {
	w := m.w
	m.sent = w.now()
	rng := w.fates.draw(m.server.id, m.epoch, m.node.id)
	if reply, answered := w.plan.Mutant.change(m); answered {
		w.after(w.plan.delay(rng), func() { m.reply(reply) })
		return
	}
	if m.op != nil && m.failsAtOnce(rng) {
		return
	}
	if m.cutTo() || chance(rng, w.plan.Loss) {
		m.abandon(rng)
	} else {
		arrival := m.inOrder(w.now() + m.delay(rng))
		m.due = arrival + w.plan.delay(rng)
		w.arrive(arrival, m.arrive)
		for _, each := range m.with {
			each.due = m.due
		}
		w.at(m.due, m.deliver)
	}
	if chance(rng, w.plan.Double) && !m.cutTo() {
		w.arrive(w.now()+w.plan.lateness(rng), m.arrive)
	}
	if late := m.kept(rng, true); late > 0 && !m.cutTo() {
		w.arrive(w.now()+late, m.arrive)
	}
}

// delay is the request's time on its way.
func (m *message) delay(rng *rand.Rand) time.Duration {
	if late := m.kept(rng, false); late > 0 {
		return late
	}
	return m.w.plan.delay(rng)
}

// kept returns the delay with which the network delivers the request or, if again is true, delivers it a
// second time. It returns 0 for a request that gets no such delay.
func (m *message) kept(rng *rand.Rand, again bool) time.Duration {
	for _, t := range m.w.plan.Tardy {
		if t.Kind == kinds[m.kind] && t.Again == again && (t.Server == 0 || t.Server == m.server.id+1) && !m.w.calm && chance(rng, t.Chance) {
			return between(rng, t.Min, t.Max)
		}
	}
	return 0
}

// inOrder lets a request arrive after those that were sent before it, if the plan is tidy. In other plans a
// later connection may overtake an earlier one.
func (m *message) inOrder(when time.Duration) time.Duration {
	if m.w.plan.Tidy {
		when = max(when, m.last+1)
		m.last = when
	}
	return when
}

// failsAtOnce simulates a sender that knows its node to be down, or has too much to send: the operation fails,
// unsent.
func (m *message) failsAtOnce(rng *rand.Rand) bool {
	p := m.w.plan.Loss / 20
	if m.cutTo() {
		p = 0.5
	}
	if !chance(rng, p) {
		return false
	}
	m.w.after(between(rng, 0, 100*time.Microsecond), func() { m.replyAll(slices.Repeat([]any{node.Reply{Err: errDown}}, 1+len(m.with))) })
	return true
}

// abandon makes the port fail a call whose request or reply is lost.
func (m *message) abandon(rng *rand.Rand) {
	for _, each := range m.together() {
		each.abandonOne(rng)
	}
}

func (m *message) abandonOne(rng *rand.Rand) {
	if m.giveUp == 0 || m.leaving {
		return
	}
	m.leaving = true
	late := between(rng, 0, 20*time.Millisecond)
	if chance(rng, 0.1) {
		late = between(rng, 0, 2*time.Second)
	}
	m.w.at(m.giveUp+late, func() { m.reply(node.Reply{Err: errLost, Sent: true}) })
}

// arrive runs the request on its node, unless that is frozen or down, and
// sends the reply back.
func (m *message) arrive() {
	w := m.w
	rng := w.fates.draw(m.server.id, m.epoch, m.node.id)
	switch n := m.node; {
	case n.down, w.calm && m.sent < w.calmAt: // a calm network has lost the requests that it held back
		m.abandon(rng)
		return
	case n.frozenUntil > w.now():
		w.arrive(n.frozenUntil+between(rng, 0, time.Millisecond), m.arrive)
		m.impatient(rng, n.frozenUntil)
		return
	}
	replies := m.runAll()
	if m.cutFrom() || chance(rng, w.plan.Loss) {
		m.abandon(rng)
		return
	}
	m.impatient(rng, m.due)
	if m.due > w.now() {
		for i, each := range m.together() {
			each.back = replies[i]
		}
	} else { // a doubled request, or a request to a node that was frozen
		w.after(w.plan.delay(rng), func() { m.replyAll(replies) })
	}
}

// runAll executes the request, and those that travel with it, on their node.
func (m *message) runAll() (replies []any) {
	if m.op == nil {
		replies = []any{m.run(m.node)}
	} else {
		ops := make([]node.Op, 0, 1+len(m.with))
		for _, each := range m.together() {
			ops = append(ops, m.asSent(each.op))
		}
		for _, reply := range m.node.apply(ops) {
			replies = append(replies, m.asRead(reply))
		}
	}
	for i, each := range m.together() {
		m.w.record(each, replies[i])
	}
	return replies
}

// asSent converts an operation to the node's time, by the pace of the server's clock.
func (p *port) asSent(op *node.Op) node.Op {
	sent := *op
	sent.TTL, sent.Epoch = p.slower.real(op.TTL), p.common(op.Epoch)
	return sent
}

// asRead converts a reply to the server's time.
func (p *port) asRead(reply node.Reply) node.Reply {
	reply.Remaining, reply.TTL = p.slower.own(reply.Remaining), p.slower.own(reply.TTL)
	return reply
}

// deliver delivers the reply, if there is one, at the time that was drawn when the request was sent: events on
// the node itself take no time.
func (m *message) deliver() {
	replies := make([]any, 0, 1+len(m.with))
	for _, each := range m.together() {
		replies = append(replies, each.back)
	}
	m.replyAll(replies)
}

// replyAll delivers each message of a batch its reply, unless that is nil. It waits for the server to come to
// rest after each one, because the effects of two simultaneous replies would have no order.
func (m *message) replyAll(replies []any) {
	if len(m.with) == 0 && replies[0] != nil {
		m.reply(replies[0])
		return
	}
	for i, each := range m.together() {
		if replies[i] != nil {
			m.w.after(0, func() { each.reply(replies[i]) })
		}
	}
}

// impatient sometimes makes the port give up on a reply that comes too late. A late reply may be delivered as
// well.
func (m *message) impatient(rng *rand.Rand, arrival time.Duration) {
	if m.giveUp != 0 && arrival > m.giveUp && chance(rng, 0.5) {
		m.abandon(rng)
	}
}

// reply delivers the reply to the server, once, if the server still lives.
func (m *message) reply(reply any) {
	if held := m.server.pausedUntil - m.w.now(); held > 0 && m.epoch == m.server.epoch {
		m.w.after(held+between(m.w.fates.draw(m.server.id, m.epoch, m.node.id), 0, time.Millisecond), func() { m.reply(reply) })
		return
	}
	if m.settled || m.epoch != m.server.epoch {
		return
	}
	m.settled = true
	m.answer(reply)
}

func (m *message) cutTo() bool   { return m.w.cut(m.server.id, m.node.id, false) }
func (m *message) cutFrom() bool { return m.w.cut(m.server.id, m.node.id, true) }

// cut reports whether the link is cut in that direction.
func (w *world) cut(server, simNode int, back bool) bool {
	l := &w.nodes[simNode].links[server]
	if back {
		return l.cutFrom > w.now()
	}
	return l.cutTo > w.now()
}

// delay is a message's usual time on its way.
func (p *Plan) delay(rng *rand.Rand) time.Duration {
	if chance(rng, p.Late) {
		return p.lateness(rng)
	}
	return between(rng, p.Delay/4, p.Delay*7/4)
}

// lateness is the travel time of a message that the network held back.
func (p *Plan) lateness(rng *rand.Rand) time.Duration {
	most := []time.Duration{p.NodeTimeout, 2 * p.NodeTimeout, 10 * p.NodeTimeout, p.MaxTTL, 4 * p.MaxTTL}
	return between(rng, p.Delay/4, most[rng.IntN(len(most))])
}

// Name is the node's name.
func (p *port) Name() string { return p.node.name }

// Submit sends a vote.
func (p *port) Submit(op *node.Op, index int, sink node.Sink) {
	limit := p.slower.own(portTimeout)
	if !op.Deadline.IsZero() {
		limit = min(limit, time.Until(op.Deadline))
	}
	m := &message{
		port: p, kind: int(op.Kind), op: op, giveUp: p.w.clock() + max(limit, 0),
		sort: rank{
			server: p.server.id, kind: inOrder(op.Kind), node: p.node.id, a: op.Resource,
			b: op.Owner + op.Ticket.ID, c: op.Attempt, n: int64(op.Token+op.Above)<<8 ^ int64(op.Epoch),
		},
		answer: func(reply any) {
			r, _ := reply.(node.Reply)
			sink.Deliver(index, r)
		},
	}
	p.w.post(m)
}

// inOrder sorts operations that delete a lock before those that acquire one, as a server sends them when the
// first makes room for the second.
func inOrder(kind node.OpKind) int {
	switch kind {
	case node.OpRelease, node.OpReleaseAfter, node.OpBreak:
		return -2
	case node.OpRetract:
		return -1
	}
	return int(kind)
}

// outcome is the reply to a call that is not a vote.
type outcome[T any] struct {
	value T
	err   error
}

func (o outcome[T]) String() string { return fmt.Sprintf("{value:%+v err:%v}", o.value, o.err) }

// call sends a request and waits for its reply, or for ctx.
func call[T any](ctx context.Context, p *port, name, detail string, n int64, f func(*simNode) (T, error)) (T, error) {
	kind, back := kindOf(name), make(chan outcome[T], 1)
	p.w.post(&message{
		port: p, kind: kind,
		sort: rank{server: p.server.id, kind: kind, node: p.node.id, a: detail, n: n},
		run: func(n *simNode) any {
			value, err := f(n)
			return outcome[T]{value, err}
		},
		answer: func(reply any) {
			o, _ := reply.(outcome[T])
			back <- o
		},
	})
	select {
	case o := <-back:
		return o.value, o.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}

// try is call for a method that returns only an error.
func (p *port) try(ctx context.Context, name, detail string, n int64, f func(*simNode) error) error {
	_, err := call(ctx, p, name, detail, n, func(n *simNode) (struct{}, error) { return struct{}{}, f(n) })
	return err
}

// page is a page of a list.
type page[T any] struct {
	items []T
	next  string
}

func pageOf[T any](items []T, next string, err error) (page[T], error) {
	return page[T]{items, next}, err
}

// Join needs no message: it is configuration.
func (p *port) Join(c node.Cluster) { p.node.model.Join(c) }

// Observe looks at the node.
func (p *port) Observe(ctx context.Context) (node.Observation, error) {
	seen, err := p.observe(ctx)
	if err == nil && p.epoch == p.server.epoch && p.w.plan.Mutant.sealsOld {
		p.server.looked(&seen)
	}
	if err == nil && p.w.plan.Mutant.outcast && p.server.missedLastMap(p.node.set, seen) {
		seen.Cluster = node.Cluster{Nodes: 1, Hash: "another"}
	}
	return seen, err
}

func (p *port) observe(ctx context.Context) (node.Observation, error) {
	return call(ctx, p, "observe", "", 0, func(n *simNode) (node.Observation, error) {
		seen, err := n.rules.Observe(ctx)
		seen.Marks.MaxTTL = p.slower.own(seen.Marks.MaxTTL)
		return seen, err
	})
}

// InstallEpoch is the first read of a rejoin.
func (p *port) InstallEpoch(ctx context.Context, epoch node.Epoch) (node.Marks, error) {
	return call(ctx, p, "install-epoch", "", int64(epoch), func(n *simNode) (node.Marks, error) {
		marks, err := n.rules.InstallEpoch(ctx, p.common(epoch))
		marks.MaxTTL = p.slower.own(marks.MaxTTL)
		marks.Map = p.mapFor(ctx, marks.Map)
		return marks, err
	})
}

// Survey lists locks.
func (p *port) Survey(ctx context.Context, epoch node.Epoch, cursor string) ([]node.CarriedLock, string, error) {
	locks, err := call(ctx, p, "survey", cursor, int64(epoch), func(n *simNode) (page[node.CarriedLock], error) {
		return pageOf(n.rules.Survey(ctx, p.common(epoch), cursor))
	})
	return locks.items, locks.next, err
}

// Counters reads counters.
func (p *port) Counters(ctx context.Context, epoch node.Epoch, resources []string) ([]fencing.Token, error) {
	return call(ctx, p, "counters", strings.Join(resources[:min(1, len(resources))], ""), int64(epoch), func(n *simNode) ([]fencing.Token, error) {
		return n.rules.Counters(ctx, p.common(epoch), resources)
	})
}

// Scan lists resources.
func (p *port) Scan(ctx context.Context, prefix, cursor string, limit int) ([]string, string, error) {
	found, err := call(ctx, p, "scan", prefix+"\n"+cursor, int64(limit), func(n *simNode) (page[string], error) {
		return pageOf(n.model.Scan(ctx, prefix, cursor, limit))
	})
	return found.items, found.next, err
}

// Servers lists the living servers.
func (p *port) Servers(ctx context.Context) ([]string, error) {
	return call(ctx, p, "servers", "", 0, func(n *simNode) ([]string, error) { return n.model.Servers(ctx) })
}

// Quarantine begins a quarantine.
func (p *port) Quarantine(ctx context.Context, note string) error {
	return p.try(ctx, "quarantine", note, 0, func(n *simNode) error {
		return n.model.Quarantine(ctx, note)
	})
}

// Stage begins an admission.
func (p *port) Stage(ctx context.Context, a node.Admission) error {
	return p.try(ctx, "stage", a.Incarnation, int64(a.Epoch), func(n *simNode) error {
		return n.rules.Stage(ctx, p.admission(a))
	})
}

// Load writes carried state.
func (p *port) Load(ctx context.Context, a node.Admission, locks []node.CarriedLock) error {
	return p.try(ctx, "load", a.Incarnation, int64(a.Epoch), func(n *simNode) error {
		for i := range locks {
			n.bound[locks[i].Owner] = locks[i].Keyed
		}
		return n.rules.Load(ctx, p.admission(a), locks)
	})
}

// Admit ends an admission.
func (p *port) Admit(ctx context.Context, a node.Admission) error {
	a.MaxTTL = p.slower.real(a.MaxTTL)
	return p.try(ctx, "admit", a.Incarnation, int64(a.Epoch), func(n *simNode) error {
		return n.rules.Admit(ctx, p.admission(a))
	})
}

// InstallMap installs a map of the node sets.
func (p *port) InstallMap(ctx context.Context, m node.Map) error {
	return p.try(ctx, "install-map", m.Name, int64(m.Epoch), func(n *simNode) error {
		m.Epoch, m.Floor = p.common(m.Epoch), p.floorFor(m.Name, m.Floor)
		had, _ := n.model.Observe(ctx)
		err := n.model.InstallMap(ctx, m)
		if err == nil {
			p.w.begunAgain(had.Marks.Map.Name, m.Name)
		}
		return err
	})
}

// Receive writes locks that move to the node's set.
func (p *port) Receive(ctx context.Context, epoch node.Epoch, name string, locks []node.CarriedLock) error {
	return p.try(ctx, "receive", name, int64(epoch), func(n *simNode) error {
		for i := range locks {
			n.bound[locks[i].Owner] = true // the rest of the lease expires with its TTL
		}
		return n.rules.Receive(ctx, p.common(epoch), name, locks)
	})
}

// RaiseMaxTTL records a longer TTL.
func (p *port) RaiseMaxTTL(ctx context.Context, ttl time.Duration) error {
	return p.try(ctx, "raise-max-ttl", "", int64(ttl), func(n *simNode) error {
		return n.model.RaiseMaxTTL(ctx, p.slower.real(ttl))
	})
}

// ReplaceSecrets replaces the cluster's secrets.
func (p *port) ReplaceSecrets(ctx context.Context, was, with node.Secrets) error {
	return p.try(ctx, "replace-secrets", with.String(), 0, func(n *simNode) error {
		return n.model.ReplaceSecrets(ctx, was, with)
	})
}

// clocked is a port to a node whose clock is read.
type clocked struct{ *port }

var _ node.Clocked = clocked{}

// Time reads the node's clock.
func (c clocked) Time(ctx context.Context) (time.Time, error) {
	return call(ctx, c.port, "time", "", 0, func(n *simNode) (time.Time, error) {
		return n.model.Clock().Add(c.server.skew), nil
	})
}

// Expel withdraws the admission.
func (c clocked) Expel(ctx context.Context, incarnation string, epoch node.Epoch, note string) error {
	return c.try(ctx, "expel", note, int64(epoch), func(n *simNode) error {
		err := n.model.Expel(ctx, incarnation, epoch, note)
		if err == nil {
			n.expelled()
		}
		return err
	})
}

// Subscribe subscribes; notifications travel as messages do.
func (p *port) Subscribe(ctx context.Context, server string, w node.Listener) {
	r := relay{p, w}
	p.w.mu.Lock()
	p.relays[p.node.id] = r
	p.w.mu.Unlock()
	p.node.model.Subscribe(ctx, server, r)
}

// relay carries a node's notifications to a server.
type relay struct {
	*port
	to node.Listener
}

// Wake is sent once, or lost.
func (r relay) Wake(resource string, t node.Ticket) {
	if r.w.plan.Mutant.mute {
		return
	}
	r.w.post(&notification{relay: r, kind: kindOf("wake"), resource: resource, ticket: t, deliver: func() { r.to.Wake(resource, t) }})
}

// Subscribed is sent after a restart.
func (r relay) Subscribed() {
	r.w.post(&notification{relay: r, kind: kindOf("subscribed"), deliver: r.to.Subscribed})
}

// notification is a message from a node that is not a reply.
type notification struct {
	relay
	kind     int
	resource string
	ticket   node.Ticket
	deliver  func()
}

func (t *notification) rank() rank {
	return rank{server: t.server.id, kind: t.kind, node: t.node.id, a: t.resource, b: t.ticket.ID}
}

func (t *notification) accept(w *world) {
	rng := w.fates.draw(t.server.id, t.epoch, t.node.id)
	if w.cut(t.server.id, t.node.id, true) || chance(rng, w.plan.Loss) {
		return
	}
	delay := max(w.plan.delay(rng), t.server.pausedUntil-w.now())
	w.after(delay, func() {
		if t.epoch == t.server.epoch {
			t.deliver()
		}
	})
}
