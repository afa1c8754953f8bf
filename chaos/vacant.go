package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A resource for which somebody waits is held by somebody. It is vacant otherwise: idle if
// it is free, and orphaned if it is locked and no living client believes that he holds it.
//
// It is seen from outside, by looks that a moment later show the same. The history says who
// waited throughout, and what each client knew of its lock. Time counts from the end of the
// first look to the begin of the next, in which the machine was never late.

// vacancy is why a resource was vacant.
type vacancy struct {
	Kind  string // idle, orphaned
	Cause string
	// Excused: it is documented that this takes a while.
	Excused bool
}

func (v vacancy) String() string {
	text := v.Kind + ", " + v.Cause
	if v.Excused {
		text += " (allowed)"
	}
	return text
}

// The causes. A living client of which the service lets go of nothing is none.
const (
	causeFree      = "free"
	causePlace     = "the place of a poll that did not come again"
	causeParts     = "parts that a poll keeps for the next"
	causeDied      = "its holder died"
	causeNoKey     = "an answer lost without a key"
	causeLonger    = "its TTL is longer than its holder counts on"
	causeNoRelease = "its release got no answer"
	causeMinimum   = "minimum hold"
	causeTwins     = "two requests with its key at the same time"
	causeReleased  = "released"
	causeCancelled = "cancelled"
	causeUnfound   = "its own caller waits for an answer"
	causeUnknown   = "nobody knows why"
	causeFault     = "a fault that takes the service away"
)

const (
	// worthCounting is how long a vacancy lasts before it counts against the service: a
	// hand-over takes a moment, and more on a busy machine.
	worthCounting = 300 * time.Millisecond
	// apart is how far apart two looks may be that show the same.
	apart = time.Second
	// settling is what a wait takes until the service has it.
	settling = 100 * time.Millisecond
	// placeKept is how long nobody passes a poll that has ended, and what it took is kept.
	placeKept = 2 * time.Second
)

// vacancies sum vacant time.
type vacancies map[vacancy]time.Duration

func (v vacancies) add(other vacancies) {
	for why, d := range other {
		v[why] += d
	}
}

// sum is all idle or orphaned time, allowed or not.
func (v vacancies) sum(kind string, excused bool) (sum time.Duration) {
	for why, d := range v {
		if why.Kind == kind && why.Excused == excused {
			sum += d
		}
	}
	return sum
}

// String has the sums, and then the causes.
func (v vacancies) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "idle %s, orphaned %s, allowed %s and %s",
		tenths(v.sum("idle", false)), tenths(v.sum("orphaned", false)), tenths(v.sum("idle", true)), tenths(v.sum("orphaned", true)))
	order := func(a, b vacancy) int { return cmp.Compare(a.String(), b.String()) }
	for _, why := range slices.SortedFunc(maps.Keys(v), order) {
		if v[why] >= worthCounting {
			fmt.Fprintf(&b, "; %s: %s", why, tenths(v[why]))
		}
	}
	return b.String()
}

// vacant finds the vacancies of one resource.
type vacant struct {
	resource string
	ops      []*op            // of the resource, or that may be
	byLabel  map[string][]*op // of them
	labels   map[int64]string // by token: a lock that an extend made again has no label
	waits    []*op            // for this resource alone
	away     func(server int, from, to time.Duration) bool
	late     []time.Duration
	trouble  func(from, to time.Duration) bool // a fault excuses what happens
	sums     vacancies
	runs     []run
}

// run is a vacancy of one lock, or of none, without a break.
type run struct {
	vacancy
	label    string
	token    int64
	from, to time.Duration
	counted  time.Duration
}

func newVacant(resource string, ops []*op) *vacant {
	v := &vacant{
		resource: resource, ops: ops, byLabel: map[string][]*op{}, labels: map[int64]string{}, sums: vacancies{},
		away: func(int, time.Duration, time.Duration) bool { return false }, trouble: func(time.Duration, time.Duration) bool { return false },
	}
	for _, o := range ops {
		if o.Label != "" {
			v.byLabel[o.Label] = append(v.byLabel[o.Label], o)
		}
		for _, p := range o.Parts {
			if p.Resource == resource {
				v.labels[p.Token] = o.Label
			}
		}
		if o.Kind == opAcquire && o.Wait > 0 && !o.Several {
			v.waits = append(v.waits, o)
		}
	}
	return v
}

// judge goes through the looks, in their order.
func (v *vacant) judge(looks []look) {
	for i, l := range looks {
		if l.held && l.label == "" {
			looks[i].label = v.labels[l.token]
		}
	}
	var last *run
	for i := 1; i < len(looks); i++ {
		a, b := looks[i-1], looks[i]
		why, vacant := v.between(a, b)
		if !vacant {
			last = nil
			continue
		}
		if last == nil || last.vacancy != why || last.label != a.label {
			v.runs = append(v.runs, run{vacancy: why, label: a.label, token: a.token, from: a.to})
			last = &v.runs[len(v.runs)-1]
		}
		last.to = b.from
		last.counted += b.from - a.to
	}
	for _, r := range v.runs {
		v.sums[r.vacancy] += r.counted
	}
}

// between says why the resource was vacant from one look to the next, if it was.
func (v *vacant) between(a, b look) (why vacancy, vacant bool) {
	if b.from <= a.to || b.from-a.to > apart || !b.same(a) || !v.wanted(a.from, b.to) {
		return why, false
	}
	if slices.ContainsFunc(v.late, func(t time.Duration) bool { return a.from <= t && t <= b.to }) {
		return why, false
	}
	if a.held {
		why, vacant = v.orphaned(a.label, a.from, b.to)
	} else {
		why, vacant = v.idle(a.from, b.to)
	}
	if vacant && !why.Excused && v.trouble(a.from, b.to) {
		why.Cause, why.Excused = causeFault, true
	}
	return why, vacant
}

// wanted: a client waited for it all the time, at a server that could serve it.
func (v *vacant) wanted(from, to time.Duration) bool {
	return slices.ContainsFunc(v.waits, func(o *op) bool {
		return o.Sent+settling <= from && to <= min(o.Done, o.Sent+o.Wait) && !v.away(o.Server, from, to)
	})
}

// idle: it was free, and nobody was granted it in between.
func (v *vacant) idle(from, to time.Duration) (vacancy, bool) {
	granted := func(o *op) bool { return o.Kind == opAcquire && o.ok() && from <= o.Done && o.Done <= to+settling }
	place := func(o *op) bool { return o.Poll && !o.ok() && o.Done <= to && from <= o.Done+placeKept }
	switch {
	case slices.ContainsFunc(v.ops, granted):
		return vacancy{}, false
	case slices.ContainsFunc(v.ops, place):
		return vacancy{"idle", causePlace, true}, true
	}
	return vacancy{"idle", causeFree, false}, true
}

// orphaned: it was locked by a client that did not believe so, nor was about to.
func (v *vacant) orphaned(label string, from, to time.Duration) (vacancy, bool) {
	c := claimOf(v.byLabel[label], to)
	orphan := func(cause string, excused bool) (vacancy, bool) { return vacancy{"orphaned", cause, excused}, true }
	switch {
	case len(v.byLabel[label]) == 0:
		return orphan(causeUnknown, false)
	case c.busy(from, to) || from < c.believes:
		return vacancy{}, false
	case from < c.minimum:
		return orphan(causeMinimum, true)
	case c.died && from < max(c.stands, c.parts):
		return orphan(causeDied, true)
	case c.ended == causeReleased && c.twins && from < c.stands:
		return orphan(causeTwins, true)
	case c.ended == causeReleased || c.ended == causeCancelled:
		return orphan(c.ended, false)
	case c.ended == causeNoRelease && from < c.stands:
		return orphan(c.ended, true)
	case from < c.parts:
		return orphan(causeParts, true)
	case c.lost && from < c.stands:
		return orphan(causeNoKey, true)
	case c.waiting(from, to):
		return orphan(causeUnfound, false)
	case c.granted && from < c.stands:
		return orphan(causeLonger, true)
	}
	return orphan(causeUnknown, false)
}

// claim is what became of the tries and the lease under one label, as it was known at a moment.
type claim struct {
	ops      []*op
	believes time.Duration // until when its client counts on the lease
	stands   time.Duration // until when a lock may stand that was ever asked for
	minimum  time.Duration // until when it stays taken though it was released
	parts    time.Duration // until when what a poll took of several is kept for the next
	twins    bool
	granted  bool
	died     bool
	lost     bool   // a try without a key got no answer
	ended    string // how it was given up: causeReleased, causeCancelled, causeNoRelease
}

// outlives is by how much a lock may outlive its TTL, counted from the answer.
const outlives = 100 * time.Millisecond

func claimOf(ops []*op, at time.Duration) claim {
	c := claim{ops: ops, twins: len(ops) > 0 && twins(ops, ops[0].Key)}
	var gone time.Duration // when what was given up was answered
	for _, o := range ops {
		if o.Sent > at {
			continue
		}
		if o.TTL > 0 && (o.ok() || o.open()) {
			c.stands = max(c.stands, o.Done+o.TTL+o.TTL/50+outlives)
		}
		if o.Poll && o.Several && !o.ok() {
			c.parts = max(c.parts, o.Done+placeKept+outlives)
		}
		switch o.Kind {
		case opDied:
			c.died = true
		case opAcquire, opExtend:
			c.hold(o, at)
		case opRelease, opCancel:
			if c.give(o); o.Done > gone {
				gone = o.Done
			}
		}
	}
	if c.ended != "" {
		c.believes = min(c.believes, gone)
	}
	return c
}

func (c *claim) hold(o *op, at time.Duration) {
	switch {
	case o.Done > at:
	case o.ok():
		c.granted = true
		c.believes = max(c.believes, o.until())
		c.minimum = max(c.minimum, o.Done+o.MinHold)
	case o.open() && o.Kind == opAcquire && o.Key == "":
		c.lost = true
	}
}

// give notes how the lease was given up; an answer counts for more than none.
func (c *claim) give(o *op) {
	switch {
	case o.open() && c.ended == "":
		c.ended = causeNoRelease
	case o.open():
	case o.Kind == opCancel:
		c.ended, c.minimum = causeCancelled, 0
	default:
		c.ended = causeReleased
	}
}

// busy: an answer is on its way, or the client is between two tries, which is its own time.
func (c *claim) busy(from, to time.Duration) bool {
	asked, next := false, false
	for _, o := range c.ops {
		under := o.Sent <= to && from <= o.Done
		if under && (o.Kind != opAcquire || o.Several) {
			return true
		}
		asked = asked || o.Sent <= to && o.open()
		next = next || o.Sent >= from
	}
	return asked && next && !c.waiting(from, to)
}

// waiting: a try is under way all the time.
func (c *claim) waiting(from, to time.Duration) bool {
	return slices.ContainsFunc(c.ops, func(o *op) bool { return o.Kind == opAcquire && o.Sent <= from && to <= o.Done })
}
