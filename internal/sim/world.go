package sim

import (
	"cmp"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// world is one run: the scheduler, and everything that it schedules. Everything in it, except the inbox,
// belongs to the goroutine that runs it.
type world struct {
	plan       Plan
	began      time.Time
	fates      fates
	names      []string // names of the resources, followed by those of their slots
	nodes      []*simNode
	servers    []*server
	clients    []*client
	check      *checker
	trace      trace
	invariants invariants
	calm       bool          // the faults have ended
	calmAt     time.Duration // when they ended
	// troubled is until when the faults so far may keep requests from getting leases.
	troubled time.Duration
	struck   time.Duration // until when a fault so far may be the direct cause of an event
	parted   time.Duration // when the nodes of a set were last seen to vote in different epochs
	// expelledAt is when a node was last expelled because its clock had jumped, after calmAt.
	expelledAt time.Duration

	callers  []chan<- func() // idle goroutines that wait for a call to make
	calling  sync.WaitGroup
	lives    sync.WaitGroup // waits for the lives of the servers
	underWay int            // calls that have not returned

	events   events
	arrivals events // requests that arrive at nodes
	seq      uint64
	keyed    map[string]bool // owners of idempotency keys
	askers   map[string]bool // owners that acquires named, for mutants that need them
	complete int             // how many changes of the node sets are complete
	mapNames []string        // names of the plan's maps
	alarm    *time.Timer
	quiet    bool          // the last event can have affected only a node
	instant  time.Duration // time of the present event; negative between events

	mu    sync.Mutex
	inbox []posted      // what the servers and callers did since the last moment of rest
	spare []posted      // memory of the previous batch
	stir  chan struct{} // holds a signal while the inbox is not empty
}

// posted is an event from a goroutine of a server. Events posted between two moments of rest come in no fixed
// order, so they are sorted.
type posted interface {
	rank() rank
	accept(*world)
}

// rank orders what was posted in the same moment.
type rank struct {
	server, kind, node int
	a, b, c            string
	n                  int64
}

func (r rank) compare(o rank) int {
	return cmp.Or(
		cmp.Compare(r.server, o.server), cmp.Compare(r.kind, o.kind), cmp.Compare(r.a, o.a),
		cmp.Compare(r.b, o.b), cmp.Compare(r.c, o.c), cmp.Compare(r.n, o.n), cmp.Compare(r.node, o.node),
	)
}

// post adds an event to the inbox, from any goroutine.
func (w *world) post(p posted) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inbox = append(w.inbox, p)
	select {
	case w.stir <- struct{}{}:
	default:
	}
}

// now is the time since the run began.
func (w *world) now() time.Duration {
	if w.instant >= 0 {
		return w.instant
	}
	return w.clock()
}

// clock returns the time as servers see it. Only the world may call now.
func (w *world) clock() time.Duration { return time.Since(w.began) }

// at schedules f. Events with the same time happen in the order of their scheduling.
func (w *world) at(when time.Duration, f func()) {
	w.seq++
	w.events.push(event{when: max(when, w.now()), seq: w.seq, run: f})
}

// arrive schedules an event on a node only. No server notices it at once, so time need not advance for it
// alone. It happens, in order and as if at its time, when time has advanced for another event.
func (w *world) arrive(when time.Duration, f func()) {
	w.seq++
	w.arrivals.push(event{when: max(when, w.now()), seq: w.seq, run: f})
}

// lookahead is how far time may advance before the events on nodes are handled: a round trip, since a reply
// comes after that.
func (w *world) lookahead() time.Duration { return 2 * w.plan.Delay }

func (w *world) after(d time.Duration, f func()) { w.at(w.now()+d, f) }

// runUntil lets everything happen that is due before the time.
func (w *world) runUntil(end time.Duration) {
	done := false
	w.at(end, func() { done = true })
	w.runWhile(func() bool { return !done })
}

// runWhile runs events while the condition holds and no promise is broken.
func (w *world) runWhile(condition func() bool) {
	for condition() && !w.check.failed() {
		w.settle()
		if !w.happen(w.now()) {
			w.rest(w.untilNext())
		}
	}
}

// happen runs the first event that is due.
func (w *world) happen(now time.Duration) bool {
	from := &w.events
	if len(*from) == 0 || len(w.arrivals) > 0 && w.arrivals.next().before(from.next()) {
		from = &w.arrivals
	}
	if len(*from) == 0 || from.next().when > now {
		return false
	}
	next := from.pop()
	w.quiet = from == &w.arrivals
	w.instant = next.when
	next.run()
	w.instant = -1
	return true
}

// settle lets all goroutines come to rest, and handles what they posted. After an event on a node only, no
// goroutine has moved, unless the node notified a server.
func (w *world) settle() {
	if w.quiet && len(w.stir) == 0 {
		return
	}
	synctest.Wait()
	w.acceptAll()
}

// untilNext returns how far time may advance.
func (w *world) untilNext() time.Duration {
	wait := time.Hour
	if len(w.events) > 0 {
		wait = w.events.next().when - w.now()
	}
	if len(w.arrivals) > 0 {
		wait = min(wait, w.arrivals.next().when+w.lookahead()-w.now())
	}
	return wait
}

// rest waits for the next event, or until something is posted.
func (w *world) rest(wait time.Duration) {
	w.quiet = false
	w.alarm.Reset(wait)
	select {
	case <-w.alarm.C:
	case <-w.stir:
		w.alarm.Stop()
	}
}

// acceptAll handles the posted events, in order.
func (w *world) acceptAll() {
	w.mu.Lock()
	batch := w.inbox
	w.inbox = w.spare[:0]
	select { // these no longer need to wake the world
	case <-w.stir:
	default:
	}
	w.mu.Unlock()
	if len(batch) > 1 {
		slices.SortStableFunc(batch, func(a, b posted) int { return a.rank().compare(b.rank()) })
	}
	for _, p := range batch {
		p.accept(w)
	}
	clear(batch)
	w.spare = batch
}

// event is a scheduled function.
type event struct {
	when time.Duration
	seq  uint64
	run  func()
}

// events are sorted, with the next one last.
type events []event

func (e event) before(o event) bool {
	return e.when < o.when || e.when == o.when && e.seq < o.seq
}

func (h *events) push(e event) {
	at, _ := slices.BinarySearchFunc(*h, e, func(a, b event) int { return cmp.Or(cmp.Compare(b.when, a.when), cmp.Compare(b.seq, a.seq)) })
	*h = slices.Insert(*h, at, e)
}

func (h *events) pop() event {
	next := h.next()
	*h = slices.Delete(*h, len(*h)-1, len(*h))
	return next
}

func (h *events) next() event { return (*h)[len(*h)-1] }

// trace is the hash of everything that happened (FNV-1a), and its last lines.
type trace struct {
	hash  uint64
	lines []string // kept only if somebody will read them
	keep  bool
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func (t *trace) number(n int64) {
	for range 8 {
		t.hash = (t.hash ^ uint64(n&0xff)) * fnvPrime
		n >>= 8
	}
}

func (t *trace) text(s string) {
	for i := range len(s) {
		t.hash = (t.hash ^ uint64(s[i])) * fnvPrime
	}
	t.hash = (t.hash ^ 0xff) * fnvPrime
}
