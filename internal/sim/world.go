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
	plan    Plan
	began   time.Time
	fates   fates
	nodes   []*node
	servers []*server
	clients []*client
	check   *checker
	trace   trace
	calm    bool          // the faults are over
	calmAt  time.Duration // since when

	events events
	seq    uint64
	alarm  *time.Timer

	mu    sync.Mutex
	inbox []posted      // what the servers and the callers did since everybody was last at rest
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
	w.inbox = append(w.inbox, p)
	w.mu.Unlock()
	select {
	case w.stir <- struct{}{}:
	default:
	}
}

// now is the time since the run began.
func (w *world) now() time.Duration { return time.Since(w.began) }

// at schedules f. Events of one instant happen in the order of their scheduling.
func (w *world) at(when time.Duration, f func()) {
	w.seq++
	w.events.push(event{when: max(when, w.now()), seq: w.seq, run: f})
}

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
		synctest.Wait()
		w.acceptAll()
		switch wait := w.untilNext(); {
		case wait > 0:
			w.rest(wait)
		default:
			w.events.pop().run()
		}
	}
}

// untilNext is how long nothing is due.
func (w *world) untilNext() time.Duration {
	if len(w.events) == 0 {
		return time.Millisecond
	}
	return w.events[0].when - w.now()
}

// rest waits for the next event, or until somebody posts something.
func (w *world) rest(wait time.Duration) {
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
	w.inbox = nil
	w.mu.Unlock()
	slices.SortStableFunc(batch, func(a, b posted) int { return a.rank().compare(b.rank()) })
	for _, p := range batch {
		p.accept(w)
	}
}

// event is something that is due.
type event struct {
	when time.Duration
	seq  uint64
	run  func()
}

// events is a heap by time: the next one stands first.
type events []event

func (e event) before(o event) bool {
	return e.when < o.when || e.when == o.when && e.seq < o.seq
}

func (h *events) push(e event) {
	*h = append(*h, e)
	all := *h
	for i := len(all) - 1; i > 0; {
		parent := (i - 1) / 2
		if !all[i].before(all[parent]) {
			return
		}
		all[i], all[parent] = all[parent], all[i]
		i = parent
	}
}

func (h *events) pop() event {
	all := *h
	first, last := all[0], len(all)-1
	all[0], all[last] = all[last], event{}
	*h = all[:last]
	h.sink()
	return first
}

// sink moves the first event down to its place.
func (h *events) sink() {
	all := *h
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(all); child++ {
			if all[child].before(all[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		all[i], all[least] = all[least], all[i]
		i = least
	}
}

// trace is the hash of everything that happened (FNV-1a), and its last lines.
type trace struct {
	hash  uint64
	lines []string // kept only when somebody wants to read them
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
