package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A resource with a waiter must have a holder. Otherwise it is vacant: idle if it is free, and orphaned if it
// is locked but no living client believes that it holds the lock.
//
// Vacancies are found from outside: two successive looks show the same state, and the history says which
// clients waited throughout, and what each knew of its lock. The time counts from the end of the first look to
// the beginning of the next, if the machine was not too busy in between.

// vacancy is the kind and cause of vacant time.
type vacancy struct {
	Kind  string // idle, orphaned
	Cause string
	// Excused means that the documentation allows this vacancy.
	Excused bool
}

func (v vacancy) String() string {
	text := v.Kind + ", " + v.Cause
	if v.Excused {
		text += " (allowed)"
	}
	return text
}

// The causes. A living client with an intact lease is not one of them.
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
	// apart is the maximum time between two looks that are compared.
	apart = time.Second
	// settling is the time until the service knows of a waiter.
	settling = 100 * time.Millisecond
	// placeKept is how long the place of an ended poll, and the parts that it took, are kept.
	placeKept = 2 * time.Second
)

// vacancies adds up vacant time by cause.
type vacancies map[vacancy]time.Duration

func (v vacancies) add(other vacancies) {
	for why, d := range other {
		v[why] += d
	}
}

// sum adds up all idle or orphaned time, excused or not.
func (v vacancies) sum(kind string, excused bool) (sum time.Duration) {
	for why, d := range v {
		if why.Kind == kind && why.Excused == excused {
			sum += d
		}
	}
	return sum
}

// String lists the sums, and then the causes.
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
	ops      []*op            // the operations on the resource, and those that may be on it
	byLabel  map[string][]*op // the same operations, by label
	labels   map[int64]string // by token: a lock that an extend recreated has no label
	waits    []*op            // acquires for only this resource
	away     func(server int, from, to time.Duration) bool
	late     []time.Duration
	trouble  func(from, to time.Duration) bool // reports whether a fault excuses a vacancy in that period
	sums     vacancies
	runs     []run
}

// run is an uninterrupted vacancy with the same lock, or without one.
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

// judge compares successive looks, in order.
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

// between reports whether the resource was vacant between two looks, and why.
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

// wanted reports that a client waited for the resource during the whole period, at a server that could serve
// it.
func (v *vacant) wanted(from, to time.Duration) bool {
	return slices.ContainsFunc(v.waits, func(o *op) bool {
		return o.Sent+settling <= from && to <= min(o.Done, o.Sent+o.Wait) && !v.away(o.Server, from, to)
	})
}

// idle reports that the resource was free, and that no client got it during the period.
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

// orphaned reports that the resource was locked for a label whose client did not rely on a lease, and was not
// about to get one.
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

// claim is what the history shows, at some moment, about the attempts and the lease under one label.
type claim struct {
	ops      []*op
	believes time.Duration // until when its client relies on the lease
	stands   time.Duration // until when any lock that was ever requested may exist
	minimum  time.Duration // until when the resource stays locked after the release
	parts    time.Duration // until when the parts that a poll took are kept for the next poll
	twins    bool
	granted  bool
	died     bool
	lost     bool   // an attempt without a key got no response
	ended    string // how it was given up: causeReleased, causeCancelled, causeNoRelease
}

// outlives is how much longer than its TTL a lock may exist, counted from the response.
const outlives = 100 * time.Millisecond

func claimOf(ops []*op, at time.Duration) claim {
	c := claim{ops: ops, twins: len(ops) > 0 && twins(ops, ops[0].Key)}
	var gone time.Duration // when the request that gave it up got its response
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

// give records how the lease was given up. A request with a response takes precedence over one without.
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

// busy reports that a response is on its way, or the client pauses between two attempts.
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

// waiting reports that an attempt is under way throughout.
func (c *claim) waiting(from, to time.Duration) bool {
	return slices.ContainsFunc(c.ops, func(o *op) bool { return o.Kind == opAcquire && o.Sent <= from && to <= o.Done })
}
