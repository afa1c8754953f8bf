package sim

import (
	"cmp"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// world is one run: the scheduler, and all that it schedules. Everything in it
// belongs to the goroutine that runs it, but for the inbox.
type world struct {
	plan       Plan
	began      time.Time
	fates      fates
	names      []string // of the resources, and then of their slots
	nodes      []*simNode
	servers    []*server
	clients    []*client
	check      *checker
	trace      trace
	invariants invariants
	calm       bool          // the faults are over
	calmAt     time.Duration // since when
	// troubled: until when the faults so far may keep requests from their leases.
	troubled time.Duration
	struck   time.Duration // until when a fault was the cause of anything by itself
	parted   time.Duration // when the nodes of a set were last seen not to vote in one epoch
	// expelledAt is when a node was last expelled after that, because its clock had jumped.
	expelledAt time.Duration

	callers  []chan<- func() // that wait for a call to make
	calling  sync.WaitGroup
	lives    sync.WaitGroup // of the servers
	underWay int            // calls that have not returned

	events   events
	arrivals events // of requests at nodes
	seq      uint64
	keyed    map[string]bool // the owners of idempotency keys
	askers   map[string]bool // the owners that acquires named, where a mutant has to know
	complete int             // how many changes of the node sets are complete
	mapNames []string        // of the plan's maps
	alarm    *time.Timer
	quiet    bool          // what happened last can have moved nothing but a node
	instant  time.Duration // of what happens at the moment; negative while nothing does

	mu    sync.Mutex
	inbox []posted      // what the servers and the callers did since all were last at rest
	spare []posted      // the memory of the batch before it
	stir  chan struct{} // holds a signal while the inbox is not empty
}

// posted is something that came from a goroutine of a server. What was posted
// between two moments of rest came in no order, so it is put into one.
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

// post takes something in, from any goroutine.
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

// clock is the time as servers have it. Only the world may ask for now.
func (w *world) clock() time.Duration { return time.Since(w.began) }

// at schedules f. Events of one instant happen in the order of their scheduling.
func (w *world) at(when time.Duration, f func()) {
	w.seq++
	w.events.push(event{when: max(when, w.now()), seq: w.seq, run: f})
}

// arrive schedules what happens on a node alone. No server hears of it at once, so
// that time need not be moved for it: it is made to happen, in order and as if
// it were then, when time has moved for something else.
func (w *world) arrive(when time.Duration, f func()) {
	w.seq++
	w.arrivals.push(event{when: max(when, w.now()), seq: w.seq, run: f})
}

// lookahead is how far time may advance before what happened on a node is looked
// at: a round trip, since its reply comes by then.
func (w *world) lookahead() time.Duration { return 2 * w.plan.Delay }

func (w *world) after(d time.Duration, f func()) { w.at(w.now()+d, f) }

// runUntil lets everything happen that is due before the time.
func (w *world) runUntil(end time.Duration) {
	done := false
	w.at(end, func() { done = true })
	w.runWhile(func() bool { return !done })
}

// runWhile lets things happen while the condition holds and no promise is broken.
func (w *world) runWhile(condition func() bool) {
	for condition() && !w.check.failed() {
		w.settle()
		if !w.happen(w.now()) {
			w.rest(w.untilNext())
		}
	}
}

// happen lets the first thing happen that is due.
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

// settle lets all goroutines come to rest, and takes in what they did. None was
// moved by what happens on a node alone, unless the node notified a server.
func (w *world) settle() {
	if w.quiet && len(w.stir) == 0 {
		return
	}
	synctest.Wait()
	w.acceptAll()
}

// untilNext is how far time may advance.
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

// acceptAll handles what was posted, in its order.
func (w *world) acceptAll() {
	w.mu.Lock()
	batch := w.inbox
	w.inbox = w.spare[:0]
	select { // these need wake the world no more
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

// event is something that is due.
type event struct {
	when time.Duration
	seq  uint64
	run  func()
}

// events are in order, the next one last.
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
	lines []string // kept only when they will be read
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
