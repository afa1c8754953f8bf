package conformance

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// run is a played scenario: the requests that the service saw, and what came of each order.
type run struct {
	scenario scenario
	service  *service
	requests []*request
	steps    []step
	took     time.Duration
	late     time.Duration // how late an action of a process may be seen
	starved  time.Duration // the longest time that one thread of the client waited for a processor
}

// step is one order to the driver, with its result.
type step struct {
	order    order
	result   result
	sent     time.Time // when the driver got the order
	began    time.Time // work: when it began, when it was notified of a loss, and when it ended
	notified time.Time
	ended    time.Time
	done     time.Time // when the result came

	terms     int // how often work began
	lostCalls int // how often on_lost was called
}

// rule is a condition that a run must meet.
type rule struct {
	name  string
	holds func(run) error
}

// usualLateness is how late a process may act on a machine that is not busy. The lateness that the kit
// measures, its own and the driver's, is added to it.
const usualLateness = 100 * time.Millisecond

// rules hold in every scenario.
var rules = []rule{
	{"the calls are these", traceMatches},
	{"the client says this", resultsMatch},
	{"it takes no longer", inTime},
	{"a call ends by its wait and a second", endsByWait},
	{"work learns of the loss in time", notifiedInTime},
	{"no work continues after its lease", workEnds},
	{"validity counts from when the request was sent", validityCounts},
	{"every request is well-formed", wellFormed},
	{"one key for an acquisition, and for no other", oneKey},
	{"one key, one body but for the wait", oneBody},
	{"no request is longer than proxies allow", noLongPoll},
	{"one try at a time", oneAtATime},
	{"an extend names the TTL of the lease", extendNamesTTL},
	{"keep-alive has stopped before the release", keepAliveStopped},
	{"no lease is left behind", nothingLeft},
}

// judge returns what is wrong.
func (r run) judge() (wrong []string) {
	for _, rule := range slices.Concat(rules, r.scenario.also) {
		if err := rule.holds(r); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", rule.name, err))
		}
	}
	return wrong
}

// calls returns the requests without probes and strays.
func (r run) calls() []*request {
	return slices.DeleteFunc(slices.Clone(r.requests), func(q *request) bool { return q.call == probe || r.strays(q) })
}

// strays reports whether a request is an extend that the client gave up just before it released the
// lease. The two requests use two connections, so the service may read the release first. A busy service
// may even answer both before it sees that the client has closed the connection of the extend.
func (r run) strays(e *request) bool {
	if e.call != extend || !slices.Contains([]string{"cut", "gone", "404"}, e.outcome) {
		return false
	}
	return slices.ContainsFunc(r.requests, func(q *request) bool {
		return q.call == release && q.lease == e.lease && q.conn != e.conn && !e.at.Before(q.at) && e.at.Before(q.at.Add(r.moment()))
	})
}

// moment is how long two requests that the client sent one after the other may seem to overlap.
func (r run) moment() time.Duration { return r.late / 2 }

// longestTrace is the number of calls up to which a trace shows each call.
const longestTrace = 100

func (r run) trace() string {
	var calls []string
	for _, q := range r.calls() {
		if len(calls) == longestTrace {
			calls = append(calls, "…")
			break
		}
		calls = append(calls, q.String())
	}
	return strings.Join(calls, " ")
}

func (r run) said() string {
	var results []string
	for _, s := range r.steps {
		results = append(results, s.result.String())
	}
	return strings.Join(results, "; ")
}

func matches(pattern, text string) error {
	if regexp.MustCompile("^(" + pattern + ")$").MatchString(text) {
		return nil
	}
	return fmt.Errorf("%q, want %q", text, pattern)
}

func traceMatches(r run) error {
	err := matches(r.scenario.trace, r.trace())
	if err != nil && r.kept() {
		err = matches(r.scenario.ifLate, r.trace())
	}
	return err
}

func resultsMatch(r run) error {
	switch {
	case r.gaveUp(), r.couldNotRenew():
		return nil
	case r.kept() && r.scenario.resultsIfLate != "":
		return matches(r.scenario.resultsIfLate, r.said())
	}
	return matches(r.scenario.results, r.said())
}

// kept reports whether the client waited so long for a processor that a call without a wait, which has
// one second, may have failed for that reason. It is false in scenarios where lateness makes no
// difference (ifLate is empty).
func (r run) kept() bool { return r.scenario.ifLate != "" && r.late > usualLateness+time.Second/3 }

// couldNotRenew reports whether the client waited for a processor for half the TTL of its leases, in a
// scenario that is played alone. The client is then not to blame for the leases that it lost.
func (r run) couldNotRenew() bool {
	ttl := time.Duration(r.scenario.orders[0].TTLMS) * time.Millisecond
	return r.scenario.alone && r.starved > ttl/2
}

// gaveUp reports whether a call ran out of time because the client waited for a processor.
func (r run) gaveUp() bool { return r.kept() && r.said() == "unavailable" }

func inTime(r run) error {
	limit := r.scenario.within
	if limit == 0 {
		limit = 10 * time.Second
	}
	took := r.took
	for _, s := range r.steps {
		if s.order.Do == "pause" {
			took -= time.Duration(s.order.WorkMS) * time.Millisecond
		}
	}
	if took > limit+r.late {
		return fmt.Errorf("it took %s, want %s at most", took.Round(time.Millisecond), limit)
	}
	return nil
}

// endsByWait checks that no acquire takes longer than its wait or its patience, plus the driver's
// lateness.
func endsByWait(r run) error {
	for _, s := range r.steps {
		limit := time.Duration(max(s.order.WaitMS, s.order.PatienceMS))*time.Millisecond + time.Second
		if took := s.done.Sub(s.sent); s.order.Do == "acquire" && took > limit+2*r.late {
			return fmt.Errorf("an acquire took %s, want %s at most", took.Round(time.Millisecond), limit)
		}
	}
	return nil
}

func notifiedInTime(r run) error {
	want := r.scenario.notified
	for _, s := range r.steps {
		switch at := s.notified.Sub(s.began); {
		case s.order.Do != "work" && s.order.Do != "elect" || s.order.CancelAfter > 0 && want == span{}:
		case s.began.IsZero() && r.kept(): // it was closed before its work began, see ifLate
		case s.notified.IsZero() && want != span{}:
			return fmt.Errorf("it was not notified")
		case !s.notified.IsZero() && (at < want.from-r.late || at > want.to+r.late):
			return fmt.Errorf("it was notified %s after it began, want %s to %s", at.Round(time.Millisecond), want.from, want.to)
		}
	}
	return nil
}

// until returns the end of the lease's validity in step n, as the client last learnt it before the loss;
// zero if it never did.
func (r run) until(n int) (end time.Time) {
	lost := r.steps[n].notified
	for _, q := range r.requests {
		if q.step == n && q.until.After(end) && (lost.IsZero() || q.at.Before(lost)) {
			end = q.until
		}
	}
	return end
}

func workEnds(r run) error {
	for n, s := range r.steps {
		if s.began.IsZero() || r.scenario.overdue {
			continue
		}
		stopped := s.ended
		if !s.notified.IsZero() {
			stopped = s.notified
		}
		if over := stopped.Sub(r.until(n)); over > r.late {
			return fmt.Errorf("it went on for %s", over.Round(time.Millisecond))
		}
	}
	return nil
}

func validityCounts(r run) error {
	for n, s := range r.steps {
		if s.result.Result != "acquired" {
			continue
		}
		believed := s.done.Add(time.Duration(s.result.ValidityMS) * time.Millisecond)
		if over := believed.Sub(r.until(n)); over > r.late {
			return fmt.Errorf("the client believes that its lease is valid for %s longer than it is", over.Round(time.Millisecond))
		}
	}
	return nil
}

// wholeValidity checks that a wait of three quarters of the TTL was not subtracted from the validity.
func wholeValidity(r run) error {
	s := r.steps[0]
	if got := s.result.ValidityMS; got < s.order.TTLMS/2 {
		return fmt.Errorf("%d ms of %d are left", got, s.order.TTLMS)
	}
	return nil
}

func wellFormed(r run) error {
	for _, q := range r.requests {
		needsLease := q.call == extend || q.call == release || q.call == lookup
		switch {
		case q.problem != "":
			return fmt.Errorf("%s: %s", q, q.problem)
		case q.call == unknown:
			return fmt.Errorf("%s %s is no operation, or has a lease id in its path", q.method, q.path)
		case needsLease && q.lease == "":
			return fmt.Errorf("%s: no Fencelock-Lease", q)
		case (q.call == acquire || q.call == cancel) && len(q.key) < 16:
			return fmt.Errorf("%s: its Idempotency-Key is short enough to be guessed: %d characters", q, len(q.key))
		}
	}
	return nil
}

// oneKey allows a second key within an acquisition only while the lease of the first key is being
// released, or after that lease has ended. The service may read a request that the client gave up at the
// end of an order shortly after the next order begins.
func oneKey(r run) error {
	owner, current := map[string]int{}, map[int]string{}
	for _, q := range r.requests {
		if q.call == release || q.call == extend && q.outcome == "404" {
			delete(current, q.step)
		}
		if q.call != acquire || r.steps[q.step].order.Do == "burst" { // many acquisitions at once
			continue
		}
		if _, known := owner[q.key]; !known {
			owner[q.key] = q.step
		}
		if q.step != owner[q.key] && q.at.After(r.steps[q.step].sent.Add(r.moment())) {
			return fmt.Errorf("the key of order %d came again in order %d", owner[q.key]+1, q.step+1)
		}
		if before := current[owner[q.key]]; before != "" && before != q.key {
			return fmt.Errorf("one acquisition used two keys")
		}
		current[owner[q.key]] = q.key
	}
	return nil
}

// oneBody finds a retry that reuses a key with another body, which the real service refuses.
func oneBody(r run) error {
	bodies := map[string]requestBody{}
	for _, q := range r.requests {
		if q.call != acquire || q.key == "" {
			continue
		}
		body := q.body
		body.WaitMS = nil
		if first, known := bodies[q.key]; known && !reflect.DeepEqual(first, body) {
			return fmt.Errorf("%+v came under the key of %+v", body, first)
		}
		bodies[q.key] = body
	}
	return nil
}

// oneAtATime finds two requests of one acquisition, or two extends of one lease, that overlap. A frozen
// server notices late that its client has closed a connection, so a short overlap with a request to it
// is allowed.
func oneAtATime(r run) error {
	for i, a := range r.requests {
		for _, b := range r.requests[i+1:] {
			same := a.call == acquire && a.key == b.key || a.call == extend && a.lease == b.lease
			if same && a.call == b.call && (a.ended.IsZero() || a.ended.After(b.at.Add(r.moment()))) {
				return fmt.Errorf("%s was under way when %s came", a, b)
			}
		}
	}
	return nil
}

// noLongPoll checks that every poll ends within a minute, the default timeout of nginx and of most cloud load balancers.
func noLongPoll(r run) error {
	for _, q := range r.requests {
		if q.waits >= time.Minute {
			return fmt.Errorf("%s may wait for %s", q, q.waits)
		}
	}
	return nil
}

func extendNamesTTL(r run) error {
	for _, q := range r.requests {
		if q.call != extend {
			continue
		}
		want := r.steps[q.step].order.TTLMS
		if want == 0 {
			want = defaultTTL.Milliseconds()
		}
		if got := value(q.body.TTLMS); got != want {
			return fmt.Errorf("%s: ttl_ms is %d, want %d", q, got, want)
		}
	}
	return nil
}

func keepAliveStopped(r run) error {
	for i, q := range r.requests {
		if q.call != release {
			continue
		}
		for j, e := range r.requests {
			if e.call != extend || e.lease != q.lease {
				continue
			}
			if j > i && !r.strays(e) || e.ended.IsZero() || e.ended.After(q.at.Add(r.moment())) {
				return fmt.Errorf("%s was sent after, or was under way at, %s", e, q)
			}
		}
	}
	return nil
}

func nothingLeft(r run) error {
	if left := r.service.left(); len(left) > 0 && !r.scenario.leaves && !r.gaveUp() && !r.couldNotRenew() {
		return fmt.Errorf("%d leases are", len(left))
	}
	return nil
}

// pauseOf checks that the client pauses for at least d between the first two calls.
func pauseOf(d time.Duration) func(run) error {
	return func(r run) error {
		calls := r.calls()
		if len(calls) < 2 {
			return fmt.Errorf("there was no second call")
		}
		if got := calls[1].at.Sub(calls[0].ended); got < d-5*time.Millisecond {
			return fmt.Errorf("it was %s, want %s", got, d)
		}
		return nil
	}
}

// pauseBefore checks that the client makes this call within most of the previous one, plus its lateness.
func pauseBefore(call string, most time.Duration) func(run) error {
	return func(r run) error {
		calls := r.calls()
		i := slices.IndexFunc(calls, func(q *request) bool { return q.String() == call })
		if i < 1 {
			return fmt.Errorf("there was no %s", call)
		}
		if got := calls[i].at.Sub(calls[i-1].at); got > most+r.late {
			return fmt.Errorf("it was %s, want %s at most", got.Round(time.Millisecond), most)
		}
		return nil
	}
}

func childConnectsItself(r run) error {
	child, parent := map[string]bool{}, map[string]bool{}
	for _, q := range r.requests {
		if r.steps[q.step].order.Do == "fork" {
			child[q.conn] = true
		} else {
			parent[q.conn] = true
		}
	}
	for conn := range child {
		if parent[conn] {
			return fmt.Errorf("it used its parent's")
		}
	}
	return nil
}
