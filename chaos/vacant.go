package chaos

import (
	"slices"
	"time"

	"github.com/fencelock/fencelock/internal/vacancy"
)

// What the history says of a vacancy: which clients waited throughout, and what each knew of its lock. Time counts only
// if the machine was not too busy in between.

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
	// settling is the time until the service knows of a waiter.
	settling = 100 * time.Millisecond
	// placeKept is how long the place of an ended poll, and the parts that it took, are kept.
	placeKept = 2 * time.Second
)

func because(kind, why string, excused bool) vacancy.Cause {
	return vacancy.Cause{Kind: kind, Why: why, Excused: excused}
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
}

func newVacant(resource string, ops []*op) *vacant {
	v := &vacant{
		resource: resource, ops: ops, byLabel: map[string][]*op{}, labels: map[int64]string{},
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

// judge finds the vacancies in successive looks, in order.
func (v *vacant) judge(looks []vacancy.Look) []vacancy.Run {
	for i, l := range looks {
		if l.Held && l.Label == "" {
			looks[i].Label = v.labels[l.Token]
		}
	}
	return vacancy.Find(looks, v.between)
}

// between reports whether the resource was vacant between two looks that show the same state, and why.
func (v *vacant) between(a, b *vacancy.Look) (why vacancy.Cause, vacant bool) {
	if !v.wanted(a.From, b.To) || slices.ContainsFunc(v.late, func(t time.Duration) bool { return a.From <= t && t <= b.To }) {
		return why, false
	}
	if a.Held {
		why, vacant = v.orphaned(a.Label, a.From, b.To)
	} else {
		why, vacant = v.idle(a.From, b.To)
	}
	if vacant && !why.Excused && v.trouble(a.From, b.To) {
		why.Why, why.Excused = causeFault, true
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
func (v *vacant) idle(from, to time.Duration) (vacancy.Cause, bool) {
	granted := func(o *op) bool { return o.Kind == opAcquire && o.ok() && from <= o.Done && o.Done <= to+settling }
	place := func(o *op) bool { return o.Poll && !o.ok() && o.Done <= to && from <= o.Done+placeKept }
	switch {
	case slices.ContainsFunc(v.ops, granted):
		return vacancy.Cause{}, false
	case slices.ContainsFunc(v.ops, place):
		return because(vacancy.Idle, causePlace, true), true
	}
	return because(vacancy.Idle, causeFree, false), true
}

// orphaned reports that the resource was locked for a label whose client did not rely on a lease, and was not
// about to get one.
func (v *vacant) orphaned(label string, from, to time.Duration) (vacancy.Cause, bool) {
	c := claimOf(v.byLabel[label], to)
	orphan := func(cause string, excused bool) (vacancy.Cause, bool) {
		return because(vacancy.Orphaned, cause, excused), true
	}
	switch {
	case len(v.byLabel[label]) == 0:
		return orphan(causeUnknown, false)
	case c.busy(from, to) || from < c.believes:
		return vacancy.Cause{}, false
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
