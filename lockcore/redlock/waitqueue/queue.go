package waitqueue

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
)

// Config is what a Queue needs. Every field is set.
type Config struct {
	Nodes       []node.Node
	NodeTimeout time.Duration // how long a node has to take a ticket
	MaxWaiters  int           // of this server, over all resources
	Random      random.Source
	Epoch       func() node.Epoch
	Map         func() string // the name of the map by which tickets are sent
	Suffix      string        // of the server's id, which the nodes list
	Unlisted    bool          // nobody asks the nodes for that list
	// Cleanup sends op to a node in the background, and repeats it until the node has
	// answered or the time is past.
	Cleanup func(nodeIndex int, op node.Op, until time.Time)
}

// Queue holds the requests that wait at this server. It is safe for concurrent use.
type Queue struct {
	cfg    Config
	server string
	quorum int

	mu      sync.Mutex
	waiters map[string][]*Waiter // by resource, in the order of arrival; never empty
	tickets map[string]*Waiter   // by ticket id
	removed map[string]bool      // by id: tickets that were removed within wakeDelay
	arrival int64                // of the last ticket
	present *interruption        // ends the waits of the requests that are here
	stopped bool
}

// interruption ends waits with err when its channel is closed.
type interruption struct {
	done chan struct{}
	err  error // set before
}

// Waiter is one request in the queue of one resource.
type Waiter struct {
	Ticket    node.Ticket
	resource  string
	key       string        // made of its request's idempotency key; "" without one
	changed   chan struct{} // holds a signal after any change of what follows; the waiters of a request share it
	tryAt     time.Time     // when the first waiter of a resource tries,
	tryNow    bool          // unless it was woken to try now
	wokenBy   uint8         // the nodes that woke it since its last try, one bit each
	noQuorum  bool          // its last try met no quorum
	behind    *release      // that it tries right behind; nil if none
	firstOn   uint8         // the nodes that named its ticket since then, likewise
	sent      bool          // a node may have its ticket: it was sent, or goes with a try
	heldBack  bool          // no node is to have its ticket yet
	cancelled bool          // its wait ends now
	lingers   *time.Timer   // its request was answered and will come again; nil while it waits
	present   *interruption // ends the wait of its request

	missing atomic.Uint32 // the nodes that did not take its ticket, one bit each
}

// release is one that this server has sent.
type release struct {
	ended     bool
	overtaken bool // by the waiter's try, which met the lease
}

// Met is what kept a try from being granted.
type Met int

// What a try meets.
const (
	MetQueue    Met = iota // others are first, or the votes were split
	MetLease               // that holds the resource
	MetNoQuorum            // too few nodes vote
)

// enqueueing is a waiter as the sink of the replies to its ticket.
type enqueueing Waiter

// Deliver notes a node that did not take the ticket. The queue's lock may be held.
func (w *enqueueing) Deliver(i int, reply node.Reply) {
	if reply.Outcome != node.Granted {
		w.missing.Or(1 << i)
	}
}

// LingerTime is how long a request that comes again keeps its place.
const LingerTime = 2 * time.Second

var (
	// ErrTimedOut ends a wait at its deadline.
	ErrTimedOut = errors.New("the wait timed out")
	// ErrInterrupted ends the waits that are under way at an Interrupt.
	ErrInterrupted = errors.New("the wait was interrupted")
	// ErrCancelled ends a wait whose request was given up (Cancel).
	ErrCancelled = errors.New("the wait was cancelled")
)

// New makes an empty queue. No waiter is woken before Run.
func New(cfg Config) *Queue {
	return &Queue{
		cfg: cfg, server: drawID(cfg.Random) + cfg.Suffix, quorum: quorum.Of(len(cfg.Nodes)),
		waiters: make(map[string][]*Waiter), tickets: make(map[string]*Waiter), removed: make(map[string]bool),
		present: &interruption{done: make(chan struct{})},
	}
}

// drawID makes a random id of 12 characters, short since nodes keep it with every ticket.
func drawID(r random.Source) string {
	var id [9]byte
	r.Fill(id[:])
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// Enqueue adds a request behind those of this server, and enqueues its ticket on the
// nodes. The first sends its ticket with its try instead. Enqueue does not wait for
// the nodes: one that misses the ticket gets it after the next heartbeat. Errors:
// ErrStopping, ErrTooManyWaiters.
//
// id, if not "", is derived from an idempotency key: a request that was broken off
// and comes again has its place again. While a request with the id waits here,
// another one gets a place of its own.
func (q *Queue) Enqueue(resource, holder, id string) (*Waiter, error) {
	drawn := drawID(q.cfg.Random)
	q.mu.Lock()
	defer q.mu.Unlock()
	former := q.tickets[id]
	switch {
	case q.stopped:
		return nil, lockcore.ErrStopping
	case former != nil && former.resource == resource && former.lingers != nil && former.lingers.Stop():
		former.lingers, former.present = nil, q.present
		former.wake()
		q.sendTicket(former) // the nodes remember an arrival for so long after they last got it
		return former, nil
	case len(q.tickets) >= q.cfg.MaxWaiters:
		return nil, lockcore.ErrTooManyWaiters
	}
	key, keyed := id, id != "" && former == nil
	if !keyed {
		id = drawn
	}
	q.arrival = max(q.arrival+1, time.Now().UnixMicro())
	w := &Waiter{
		resource: resource, key: key, changed: make(chan struct{}, 1), present: q.present,
		Ticket: node.Ticket{ID: id, Server: q.server, Arrival: q.arrival, Holder: holder, Keyed: keyed},
	}
	q.waiters[resource] = append(q.waiters[resource], w)
	q.tickets[id] = w
	q.sendTicket(w)
	return w, nil
}

// sendTicket enqueues the waiter's ticket on the nodes, unless it is first here and so
// sends it with its try. q.mu is held.
func (q *Queue) sendTicket(w *Waiter) {
	if q.waiters[w.resource][0] == w {
		return
	}
	deadline := time.Now().Add(q.cfg.NodeTimeout)
	for i := range q.cfg.Nodes {
		q.submitTicket(i, w, node.Op{Deadline: deadline, Patient: true}, (*enqueueing)(w))
	}
}

// HoldBack keeps the waiter's ticket from the nodes until Show, for a try without it. It
// reports false where a node may have the ticket, or others wait here before it.
func (q *Queue) HoldBack(w *Waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.heldBack = !w.sent && q.waiters[w.resource][0] == w
	return w.heldBack
}

// Show ends HoldBack: the waiter's next try carries its ticket. One that others have passed
// meanwhile sends it, since it does not try before it is woken.
func (q *Queue) Show(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.heldBack = false; !w.sent {
		q.sendTicket(w)
	}
}

// submitTicket sends the waiter's ticket to node i. q.mu is held, so that a dequeue
// comes after it.
func (q *Queue) submitTicket(i int, w *Waiter, op node.Op, sink node.Sink) {
	w.sent = true
	op.Kind, op.Epoch, op.Map, op.Resource, op.Ticket = node.OpEnqueue, q.cfg.Epoch(), q.cfg.Map(), w.resource, w.Ticket
	q.cfg.Nodes[i].Submit(&op, i, sink)
}

// Granted removes a waiter that has its lease. The nodes dequeued it with the grant.
// The next waiter tries when that lease expires, unless it is woken before. One under the
// same idempotency key tries now: the lease is its own.
func (q *Queue) Granted(w *Waiter, ttl time.Duration) {
	q.remove(w, time.Now().Add(ttl))
	if w.key == "" {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if twin := slices.IndexFunc(q.waiters[w.resource], func(other *Waiter) bool { return other.key == w.key }); twin >= 0 {
		q.moveToFront(q.waiters[w.resource][twin])
		q.waiters[w.resource][0].wake()
	}
}

// Exit is how a request leaves its queue without a grant.
type Exit int

const (
	// GivesUp: the next waiter tries now. The nodes remember the arrival of a keyed ticket. A
	// request whose caller hung up gives up, too: nobody says that it comes again, and others
	// would wait for a free resource.
	GivesUp Exit = iota
	// Satisfied: the request has got another resource in place of this one. The nodes forget
	// the arrival of a keyed ticket.
	Satisfied
	// ComesAgain: the request was answered before its wait was over. With a keyed ticket it
	// keeps its place for LingerTime, and no other waiter passes it until then; another one
	// gives up. When this server stops, the ticket stays on the nodes until it expires: the
	// request comes again at another server.
	ComesAgain
)

// Leave removes a waiter, here and on the nodes.
func (q *Queue) Leave(w *Waiter, how Exit) {
	if how == ComesAgain && w.Ticket.Keyed {
		q.keepPlace(w)
		return
	}
	q.remove(w, time.Now())
	ticket := w.Ticket
	ticket.Keyed = ticket.Keyed && how == Satisfied
	op := node.Op{Kind: node.OpDequeue, Resource: w.resource, Ticket: ticket}
	for i := range q.cfg.Nodes {
		q.cfg.Cleanup(i, op, time.Now().Add(lockcore.MaxWait))
	}
}

func (q *Queue) keepPlace(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.stopped {
		w.lingers = time.AfterFunc(LingerTime, func() { q.Leave(w, GivesUp) })
	}
}

// GiveUp dequeues a waiter that kept its place: its request came again, and does not wait
// any more.
func (q *Queue) GiveUp(resource, id string) {
	q.mu.Lock()
	w := q.tickets[id]
	lingers := w != nil && w.resource == resource && w.lingers != nil && w.lingers.Stop()
	q.mu.Unlock()
	if lingers {
		q.Leave(w, GivesUp)
	}
}

// Cancel ends the wait under an idempotency key, of which the id is made: here, with
// ErrCancelled, and on the nodes, where the ticket may be of another server. No later
// request under the key has its place.
func (q *Queue) Cancel(resource, id string) {
	q.GiveUp(resource, id)
	q.mu.Lock()
	for _, w := range q.waiters[resource] {
		if w.key == id {
			w.cancelled = true
			w.signal()
		}
	}
	q.mu.Unlock()
	op := node.Op{Kind: node.OpDequeue, Resource: resource, Ticket: node.Ticket{ID: id, Server: q.server, Keyed: true}}
	for i := range q.cfg.Nodes {
		q.cfg.Cleanup(i, op, time.Now().Add(lockcore.MaxWait))
	}
}

// Forget ends what a request that does not wait any more has of its place: of one that kept it
// (ComesAgain) the ticket, and on the nodes the arrival, unless the request has come again at
// another server, or here.
func (q *Queue) Forget(resource, id, holder string) {
	q.GiveUp(resource, id)
	q.mu.Lock()
	again := q.tickets[id] != nil
	q.mu.Unlock()
	if again {
		return
	}
	op := node.Op{Kind: node.OpForget, Resource: resource, Ticket: node.Ticket{ID: id, Server: q.server, Holder: holder}}
	for i := range q.cfg.Nodes {
		q.cfg.Cleanup(i, op, time.Now().Add(lockcore.MaxWait))
	}
}

func (q *Queue) remove(w *Waiter, nextTry time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiters := q.waiters[w.resource]
	place := slices.Index(waiters, w)
	waiters = slices.Delete(waiters, place, place+1)
	q.waiters[w.resource] = waiters
	delete(q.tickets, w.Ticket.ID)
	q.removed[w.Ticket.ID] = true
	time.AfterFunc(wakeDelay, func() { q.forget(w.Ticket.ID) })
	switch {
	case len(waiters) == 0:
		delete(q.waiters, w.resource)
	case place == 0:
		if !waiters[0].sent { // no node would wake it
			nextTry = time.Now()
		}
		waiters[0].tryAt = nextTry
		waiters[0].signal()
	}
}

func (q *Queue) forget(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.removed, id)
}

// signal has the waiter check its state again.
func (w *Waiter) signal() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// wake makes the waiter try now; the queue's lock is held.
func (w *Waiter) wake() {
	w.tryNow = true
	w.signal()
}

// Len is how many requests wait at this server.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.tickets)
}

// NoQuorum is how many requests wait at this server for a resource whose first
// waiter met no quorum with its last try.
func (q *Queue) NoQuorum() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, waiters := range q.waiters {
		if waiters[0].noQuorum {
			n += len(waiters)
		}
	}
	return n
}

// Await returns the index of the one that should try to acquire, of a request's waiters,
// one for each resource that it may get: it is the first of this server for the resource.
// Errors, also for a waiter that is woken again and again: ErrTimedOut after the deadline,
// ErrStopping, ErrInterrupted, ErrCancelled, the context's error.
func (q *Queue) Await(ctx context.Context, deadline <-chan time.Time, waiters ...*Waiter) (int, error) {
	present := waiters[0].present
	for {
		next, pause := q.untilTry(waiters)
		if q.isCancelled(waiters) {
			return 0, ErrCancelled
		}
		if next >= 0 {
			return next, q.ended(ctx, present, deadline)
		}
		if err := q.rest(ctx, waiters[0], pause, present, deadline); err != nil {
			return 0, err
		}
	}
}

func (q *Queue) isCancelled(waiters []*Waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(waiters, func(w *Waiter) bool { return w.cancelled })
}

// rest waits for the pause (for ever if it is 0) or a change.
func (q *Queue) rest(ctx context.Context, w *Waiter, pause time.Duration, present *interruption, deadline <-chan time.Time) error {
	var due <-chan time.Time
	if pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-w.changed:
	case <-due:
	case <-deadline:
		return ErrTimedOut
	case <-present.done:
		return present.err
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// untilTry returns the index of a waiter that tries now, and clears its wakes. If none
// does, the index is -1, and pause how long they have to wait: 0 for until a change.
func (q *Queue) untilTry(waiters []*Waiter) (next int, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, w := range waiters {
		w.changed = waiters[0].changed // a change of any of them ends the rest
		if q.waiters[w.resource][0] != w {
			continue
		}
		left := time.Until(w.tryAt)
		if w.tryNow || left <= 0 {
			w.tryNow, w.wokenBy, w.firstOn, w.sent = false, 0, 0, true
			return i, 0
		}
		if pause == 0 || left < pause {
			pause = left
		}
	}
	return -1, pause
}

// ended is the reason why a waiter must not try again, nil if there is none.
func (q *Queue) ended(ctx context.Context, present *interruption, deadline <-chan time.Time) error {
	select {
	case <-deadline:
		return ErrTimedOut
	case <-present.done:
		return present.err
	default:
		return ctx.Err()
	}
}

// Postpone sets when the waiter tries again after a try that met something, unless it is
// woken before. A try that met the lease of the release that it was to follow has overtaken
// it on another connection: it is made again when the release has ended.
func (q *Queue) Postpone(w *Waiter, pause time.Duration, met Met) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.tryAt, w.noQuorum = time.Now().Add(pause), met == MetNoQuorum
	switch r := w.behind; {
	case r == nil:
	case met != MetLease:
		w.behind = nil
	case r.ended:
		w.behind = nil
		w.wake()
	default:
		r.overtaken = true
	}
}

// AsksBehind is this server's name if a waiter of the resource tries at its Released, and
// so needs no wake; "" if none waits. A waiter that leaves before is dequeued on the
// nodes, which then wake the next one's server.
func (q *Queue) AsksBehind(resource string) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiters[resource] == nil {
		return ""
	}
	return q.server
}

// Released lets the resource's first waiter try right behind a release that this
// server has sent. Each node takes the two in that order, so that the lease passes on
// in one round trip. If another server's ticket is first, the nodes refuse the try.
// The caller calls ended when the release has.
func (q *Queue) Released(resource string) (ended func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiters := q.waiters[resource]
	if waiters == nil {
		return func() {}
	}
	w, r := waiters[0], &release{}
	w.behind = r
	w.wake()
	return func() { q.releaseEnded(w, r) }
}

func (q *Queue) releaseEnded(w *Waiter, r *release) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r.ended = true
	if r.overtaken {
		w.behind = nil
		w.wake()
	}
}

// Stop ends every wait with ErrStopping, and refuses every later one.
func (q *Queue) Stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.stopped {
		q.stopped = true
		q.present.end(lockcore.ErrStopping)
	}
}

// Interrupt ends the waits that are under way with ErrInterrupted, for a cause that later
// ones may not meet: that of a request which tries at the moment when it waits again.
func (q *Queue) Interrupt() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.stopped {
		q.present.end(ErrInterrupted)
		q.present = &interruption{done: make(chan struct{})}
	}
}

func (i *interruption) end(err error) {
	i.err = err
	close(i.done)
}
