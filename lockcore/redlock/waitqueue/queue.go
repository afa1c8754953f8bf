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

// Config is the configuration of a Queue. The caller must set every field.
type Config struct {
	Nodes       []node.Node
	NodeTimeout time.Duration // the time limit of a node for accepting a ticket
	Random      random.Source
	Epoch       func() node.Epoch
	Map         func() string // returns the name of the map under which tickets are sent
	Suffix      string        // suffix of the server's id, which the nodes list
	Unlisted    bool          // operators never read the nodes' list of servers
	// Cleanup sends op to a node in the background through submit, and repeats it until the node has replied,
	// the time has passed, or submit returns false: then op is not wanted any more.
	Cleanup func(nodeIndex int, op node.Op, until time.Time, submit func(op *node.Op, nodeIndex int, sink node.Sink) bool)
}

// Queue holds the requests that wait at this server. It is safe for concurrent use.
type Queue struct {
	cfg    Config
	server string
	quorum int

	mu      sync.Mutex
	waiters map[string][]*Waiter // by resource, in the order of arrival; no list is empty. Waiters that keep their places are not in it
	tickets map[string]*Waiter   // by ticket id; every waiter that has not left
	removed map[string]bool      // ids of tickets that were removed within the last wakeDelay
	// dequeuing counts, by ticket id, the dequeues that are being submitted at this moment. Until they are, no
	// waiter enters with that id: its ticket must reach the nodes after them. submitted tells of each end.
	dequeuing map[string]int
	submitted *sync.Cond
	arrival   int64         // the arrival of the last ticket
	present   *interruption // ends the waits of the present requests
	stopped   bool
}

// interruption ends waits with err when done is closed.
type interruption struct {
	done chan struct{}
	err  error // set before done is closed
}

// Waiter is one request in the queue of one resource:
//
//	waiting ──its turn──▶ trying ──▶ granted
//	   ▲  ▲                 │
//	   │  └──── Postpone ───┘
//	   │
//	   ├── gives up, satisfied, cancelled ──▶ left
//	   │
//	   └──◀ comes again ── keeping its place ── 2 s ──▶ left
//
// A Waiter that waits is in q.waiters. Only the first one of a resource tries, and another one may be
// moved before it even while it tries. A Waiter is in q.tickets from Enqueue until it has left. A request
// that keeps its place is in q.tickets but not in q.waiters, because it has no goroutine that could try.
// Its ticket keeps the place on the nodes, which refuse the waiters behind it.
//
// A wake is a hint: it makes the first waiter ask the nodes, which decide. An unnecessary wake costs a
// try, and a lost wake costs the time until the next try. No lease depends on wakes.
type Waiter struct {
	Ticket   node.Ticket // never changes
	resource string      // never changes
	key      string      // never changes; derived from the request's idempotency key, "" without one

	missing atomic.Uint32 // the nodes that did not accept its ticket, one bit each

	// The following fields are guarded by the queue's mutex.

	changed   chan struct{} // holds a signal after any change; the waiters of a request share it
	tryAt     time.Time     // when it tries at the latest, if it is then the first of its resource
	tryNow    bool          // it was woken: it tries now, or as soon as it is the first
	wokenBy   uint8         // the nodes that woke it since its last try, one bit each
	firstOn   uint8         // the nodes that named its ticket since its last try, or since it keeps its place, one bit each
	met       Met           // the result of its last try
	lost      error         // why the latest try was not granted, its own or that of an earlier first waiter; nil before any try
	lostAt    time.Time     // when that try ended
	behind    *release      // the release that its try follows: set only from Released to the end of that try
	ticket    ticketState   // whether nodes may have its ticket; held back only while it is first
	carried   bool          // an attempt has carried its ticket
	tries     bool          // an attempt that carries its ticket is under way: the nodes dequeue the ticket if they grant
	cancelled bool          // its wait ends now, for good
	lingers   *time.Timer   // ends the time for which it keeps its place; nil while it waits
	present   *interruption // ends the wait of its request
}

// ticketState reports whether a node may have a waiter's ticket.
type ticketState uint8

const (
	ticketUnsent   ticketState = iota // it is sent with the waiter's next try, or when another waiter passes it
	ticketHeldBack                    // it is not sent to the nodes until Show
	ticketSent                        // a node may have it, from now on
)

// release is a release that this server has sent. The queue's mutex guards it.
type release struct {
	behind    *Waiter // the waiter that tries directly after it, as the first of its resource
	ended     bool
	overtaken bool // that try overtook the release, and met the lease
}

// Met is the reason why an attempt was not granted.
type Met int

// The reasons.
const (
	MetQueue    Met = iota // others are first, or the votes were split
	MetLease               // another lease holds the resource
	MetNoQuorum            // too few nodes vote
)

// enqueueing is a Waiter as the sink of the replies to its ticket.
type enqueueing Waiter

// Deliver notes a node that did not accept the ticket. The caller may hold the queue's lock.
func (w *enqueueing) Deliver(i int, reply node.Reply) {
	if reply.Outcome != node.Granted {
		w.missing.Or(1 << i)
	}
}

// LingerTime is how long a request that will be repeated keeps its place.
const LingerTime = 2 * time.Second

var (
	// ErrTimedOut ends a wait at its deadline.
	ErrTimedOut = errors.New("the wait timed out")
	// ErrInterrupted ends the waits that exist at an Interrupt.
	ErrInterrupted = errors.New("the wait was interrupted")
	// ErrCancelled ends the wait of a request that was given up (Cancel).
	ErrCancelled = errors.New("the wait was cancelled")
)

// New makes an empty queue. No waiter is woken before Run.
func New(cfg Config) *Queue {
	q := &Queue{
		cfg: cfg, server: drawID(cfg.Random) + cfg.Suffix, quorum: quorum.Of(len(cfg.Nodes)),
		waiters: make(map[string][]*Waiter), tickets: make(map[string]*Waiter), removed: make(map[string]bool),
		dequeuing: make(map[string]int), present: &interruption{done: make(chan struct{})},
	}
	q.submitted = sync.NewCond(&q.mu)
	return q
}

// drawID returns a random id of 12 characters. It is short because nodes store it with every ticket.
func drawID(r random.Source) string {
	var id [9]byte
	r.Fill(id[:])
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// Enqueue adds a request behind the other requests of this server, and enqueues its ticket on the nodes.
// The first waiter does not enqueue its ticket, but sends it with its try. Enqueue does not wait for the
// nodes: a node that missed the ticket gets it after the next heartbeat. The error is ErrStopping. The queue
// has no bound of its own: its callers count the places (api/places).
//
// id, if not "", is derived from an idempotency key. With it, a request that was interrupted and is
// repeated gets its place back. While a request with the same id waits here, another one gets a place of
// its own.
func (q *Queue) Enqueue(resource, holder, id string) (*Waiter, error) {
	drawn := drawID(q.cfg.Random)
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.dequeuing[id] > 0 {
		q.submitted.Wait()
	}
	former := q.tickets[id]
	switch {
	case q.stopped:
		return nil, lockcore.ErrStopping
	case former != nil && former.resource == resource && former.lingers != nil:
		q.comesAgain(former)
		return former, nil
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

// comesAgain inserts a waiter that kept its place before the waiters that arrived later. The caller holds
// q.mu.
func (q *Queue) comesAgain(w *Waiter) {
	w.lingers.Stop() // if it has just run, it finds that the waiter does not keep its place any more
	w.lingers, w.present = nil, q.present
	waiters := q.waiters[w.resource]
	later := slices.IndexFunc(waiters, func(other *Waiter) bool { return other.Ticket.Arrival > w.Ticket.Arrival })
	if later < 0 {
		later = len(waiters)
	}
	q.waiters[w.resource] = slices.Insert(waiters, later, w)
	q.passed(w.resource)
	w.wake()
	q.sendTicket(w) // this restarts the time for which the nodes remember its arrival
}

// passed sends the ticket of the second waiter of a resource, if that waiter was first until now and has
// not tried yet. The caller holds q.mu.
func (q *Queue) passed(resource string) {
	if waiters := q.waiters[resource]; len(waiters) > 1 && waiters[1].ticket == ticketUnsent {
		q.sendTicket(waiters[1])
	}
}

// sendTicket enqueues the waiter's ticket on the nodes. The first waiter is skipped, because it sends its
// ticket with its try. The caller holds q.mu.
func (q *Queue) sendTicket(w *Waiter) {
	if waiters := q.waiters[w.resource]; len(waiters) > 0 && waiters[0] == w {
		return
	}
	q.submitTickets(w)
}

// submitTickets sends the waiter's ticket to all nodes. The caller holds q.mu.
func (q *Queue) submitTickets(w *Waiter) {
	deadline := time.Now().Add(q.cfg.NodeTimeout)
	for i := range q.cfg.Nodes {
		q.submitTicket(i, w, node.Op{Deadline: deadline, Patient: true}, (*enqueueing)(w))
	}
}

// HoldBack keeps the waiter's ticket from the nodes until Show, so that it can try without a ticket. It
// returns false if a node may already have the ticket, or if other requests wait here before it.
func (q *Queue) HoldBack(w *Waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.ticket == ticketSent || q.waiters[w.resource][0] != w {
		return false
	}
	w.ticket = ticketHeldBack
	return true
}

// Show ends HoldBack: the waiter's next try carries its ticket. If others have passed the waiter in the
// meantime, Show sends the ticket, because the waiter does not try before it is woken.
func (q *Queue) Show(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.ticket == ticketHeldBack {
		w.ticket = ticketUnsent
		q.sendTicket(w)
	}
}

// submitTicket sends the waiter's ticket to node i. The caller holds q.mu, so that neither a dequeue of the
// waiter overtakes the ticket, nor the ticket the waiter's next attempt.
func (q *Queue) submitTicket(i int, w *Waiter, op node.Op, sink node.Sink) {
	w.ticket = ticketSent
	op.Kind, op.Epoch, op.Map, op.Resource, op.Ticket = node.OpEnqueue, q.cfg.Epoch(), q.cfg.Map(), w.resource, w.Ticket
	q.cfg.Nodes[i].Submit(&op, i, sink)
}

// Granted removes a waiter that has its lease. The nodes dequeued its ticket with the grant. The next waiter
// tries when that lease expires, unless it is woken before. A waiter under the same idempotency key tries now,
// because the lease is its own.
func (q *Queue) Granted(w *Waiter, ttl time.Duration) {
	if q.removeGranted(w, ttl) {
		q.dequeue(w.resource, w.Ticket)
	}
}

// removeGranted reports whether nodes may still have the waiter's ticket, because no attempt has carried it.
func (q *Queue) removeGranted(w *Waiter, ttl time.Duration) (left bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	left = w.ticket == ticketSent && !w.carried
	w.behind = nil
	q.remove(w, time.Now().Add(ttl))
	if w.key == "" {
		return left
	}
	if twin := slices.IndexFunc(q.waiters[w.resource], func(other *Waiter) bool { return other.key == w.key }); twin >= 0 {
		q.moveToFront(q.waiters[w.resource][twin])
		q.waiters[w.resource][0].wake()
	}
	return left
}

// Tries notes that an attempt carries the waiter's ticket although the waiter is not first. Tried ends it.
func (q *Queue) Tries(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.try()
}

// Tried notes that the attempt of Tries was not granted.
func (q *Queue) Tried(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.tries = false
}

// try notes an attempt that carries the ticket. The caller holds the queue's mutex.
func (w *Waiter) try() { w.ticket, w.carried, w.tries = ticketSent, true, true }

// signal makes the waiter check its state again.
func (w *Waiter) signal() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// wake makes the waiter try now. The caller holds the queue's mutex.
func (w *Waiter) wake() {
	w.tryNow = true
	w.signal()
}

// Len returns the number of requests that wait at this server.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.tickets)
}

// NoQuorum counts the requests that wait at this server for a resource whose first waiter found no quorum in
// its last attempt.
func (q *Queue) NoQuorum() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, waiters := range q.waiters {
		if waiters[0].met == MetNoQuorum {
			n += len(waiters)
		}
	}
	return n
}

// Await waits until one of a request's waiters should try to acquire, and returns its index. A request
// has one waiter for each resource that it may get, and a waiter tries when it is the first of this
// server for its resource. Errors, even for a waiter that is woken again and again: ErrCancelled, the context's
// error, ErrTimedOut at the end, ErrStopping, ErrInterrupted. If several apply, it is the first of these.
func (q *Queue) Await(ctx context.Context, end time.Time, waiters ...*Waiter) (int, error) {
	present := waiters[0].present
	for {
		// Before a wake is spent: whoever leaves passes it on to the next waiter.
		if err := q.ended(ctx, present, end, waiters); err != nil {
			return 0, err
		}
		next, pause := q.untilTry(waiters)
		if next >= 0 {
			return next, nil
		}
		if left := time.Until(end); pause == 0 || left < pause {
			pause = left
		}
		rest(ctx, waiters[0], pause, present)
	}
}

func (q *Queue) isCancelled(waiters []*Waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(waiters, func(w *Waiter) bool { return w.cancelled })
}

// rest waits for the pause, or until a change.
func rest(ctx context.Context, w *Waiter, pause time.Duration, present *interruption) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-w.changed:
	case <-timer.C:
	case <-present.done:
	case <-ctx.Done():
	}
}

// untilTry returns the index of a waiter that should try now, and clears its wakes. If there is none, the
// index is -1, and pause is the time until the next try; 0 means until a change.
func (q *Queue) untilTry(waiters []*Waiter) (next int, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, w := range waiters {
		w.changed = waiters[0].changed // a change of any of the request's waiters ends the rest
		if q.waiters[w.resource][0] != w {
			continue
		}
		left := time.Until(w.tryAt)
		if w.tryNow || left <= 0 {
			w.tryNow, w.wokenBy, w.firstOn = false, 0, 0
			w.try()
			return i, 0
		}
		if pause == 0 || left < pause {
			pause = left
		}
	}
	return -1, pause
}

// ended returns why a request must not try again; nil if it may.
func (q *Queue) ended(ctx context.Context, present *interruption, end time.Time, waiters []*Waiter) error {
	switch {
	case q.isCancelled(waiters):
		return ErrCancelled
	case ctx.Err() != nil:
		return ctx.Err()
	case !time.Now().Before(end):
		return ErrTimedOut
	}
	select {
	case <-present.done:
		return present.err
	default:
		return nil
	}
}

// Postpone sets when the waiter tries again after an attempt that was not granted, unless it is woken before.
// If the attempt met the lease whose release it was to follow, it has overtaken the release on another
// connection. It is repeated when the release has ended.
func (q *Queue) Postpone(w *Waiter, pause time.Duration, met Met) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.tryAt, w.met, w.tries = time.Now().Add(pause), met, false
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

// Remember records why the waiter's last attempt was not granted, for Standing.
func (q *Queue) Remember(w *Waiter, why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.lost, w.lostAt = why, time.Now()
}

// Standing is what this server knows about a waiter without asking the nodes.
type Standing struct {
	Position, Waiters int           // in the queue of this server, from 1
	Err               error         // why the latest attempt was not granted; nil if none has ended
	Age               time.Duration // of Err
}

// Standing returns the standing of a waiter that has not left. Only the first of a resource tries regularly, so
// that Err is usually of its attempt.
func (q *Queue) Standing(w *Waiter) Standing {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiters := q.waiters[w.resource]
	latest := w
	if waiters[0].lostAt.After(w.lostAt) {
		latest = waiters[0]
	}
	return Standing{slices.Index(waiters, w) + 1, len(waiters), latest.lost, time.Since(latest.lostAt)}
}

// AsksBehind returns this server's name if a waiter of the resource will try at Released, and so needs no
// wake; "" if none waits. If that waiter leaves first, the next one tries instead.
func (q *Queue) AsksBehind(resource string) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiters[resource] == nil {
		return ""
	}
	return q.server
}

// Released lets the resource's first waiter try directly after a release that this server has sent. Each
// node receives the two in that order, so the resource changes hands in one round trip. If another
// server's ticket is first, the nodes refuse the try. The caller must call ended when the release has
// ended.
func (q *Queue) Released(resource string) (ended func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiters := q.waiters[resource]
	if waiters == nil {
		return func() {}
	}
	r := &release{behind: waiters[0]}
	r.behind.behind = r
	r.behind.wake()
	return func() { q.releaseEnded(r) }
}

func (q *Queue) releaseEnded(r *release) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r.ended = true
	if r.overtaken {
		r.behind.behind = nil
		r.behind.wake()
	}
}

// Stop ends every wait with ErrStopping, and refuses every later one.
func (q *Queue) Stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	q.stopped = true
	q.present.end(lockcore.ErrStopping)
	if len(q.tickets) > 0 { // the tickets live for another ticketTTL, in which their requests can be repeated at another server
		for i := range q.cfg.Nodes {
			q.submitHeartbeat(i, make(reply, 1))
		}
	}
}

// Interrupt ends the present waits with ErrInterrupted, for a cause that later waits may not meet. A request
// that is trying at that moment is interrupted when it waits again.
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
