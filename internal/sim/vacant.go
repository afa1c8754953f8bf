package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// A resource with a waiter must have a holder, or be about to get one. Otherwise it is vacant. A vacant
// resource is idle if no quorum has it locked. It is orphaned if a quorum has it locked but no client believes
// that it holds the lease, and no response with it is on its way.

// vacancy is the last observation of a vacant resource.
type vacancy struct {
	since time.Duration
	owner string // owner of the lock on a quorum; "" if there is none
}

func (v vacancy) kind() string {
	if v.owner == "" {
		return "idle"
	}
	return "orphaned"
}

// Vacancies are the times for which resources were vacant. The excused times follow a fault, or a lost
// response: then a lock may remain until its TTL ends.
type Vacancies struct{ Idle, IdleExcused, Orphaned, OrphanedExcused time.Duration } //nolint:recvcheck // it is printed by value

func (v *Vacancies) add(kind string, excused bool, d time.Duration) {
	switch {
	case kind == "idle" && excused:
		v.IdleExcused += d
	case kind == "idle":
		v.Idle += d
	case excused:
		v.OrphanedExcused += d
	default:
		v.Orphaned += d
	}
}

func (v *Vacancies) addAll(o Vacancies) {
	v.Idle += o.Idle
	v.IdleExcused += o.IdleExcused
	v.Orphaned += o.Orphaned
	v.OrphanedExcused += o.OrphanedExcused
}

func (v Vacancies) String() string {
	return fmt.Sprintf("%.1f idle seconds and %.1f orphan seconds, %.1f and %.1f more after faults",
		v.Idle.Seconds(), v.Orphaned.Seconds(), v.IdleExcused.Seconds(), v.OrphanedExcused.Seconds())
}

const (
	lookEvery  = 10 * time.Millisecond
	mostVacant = time.Second // the maximum without an excuse
)

// lookForVacant inspects all resources periodically.
func (c *checker) lookForVacant() {
	c.w.after(lookEvery, c.lookForVacant)
	now := c.w.now()
	if !c.w.agreed() {
		c.w.parted = now
	}
	wanted := c.wanted(now)
	for _, name := range c.w.names {
		if c.w.undisturbed() { // otherwise keepsOut does not need it, and inspecting every node takes a fourth of a run
			c.unused(name, now)
		}
		v, vacant := c.vacant[name], false
		if wanted[name] {
			v, vacant = c.lookAt(name, now)
		}
		if !vacant {
			delete(c.vacant, name)
			continue
		}
		l := c.ledger(name)
		excused := max(c.w.troubled, l.lost, l.keptUntil(), l.lockedUntil(v.owner))
		if last, was := c.vacant[name]; was {
			c.Vacancies.add(v.kind(), last.since < excused, lookEvery)
		}
		c.vacant[name] = v
		if c.w.quietNetwork() && now-max(v.since, excused) > mostVacant {
			c.violatef(v.kind(), "%s is %s since %s, and a client waits for it", name, v.kind(), v.since)
		}
	}
}

// quietNetwork reports that messages arrive exactly once, before the servers stop waiting for them, and that
// clocks are good enough. Then any delay is the servers' fault.
func (w *world) quietNetwork() bool {
	p := &w.plan
	return p.timed() && p.Loss == 0 && p.Late == 0 && p.Double == 0 && p.Delay <= p.NodeTimeout/4 && p.Maps == nil && len(p.Tardy) == 0
}

// wanted returns the resources for which a request waits on a living server, and for no other resource at the
// same time.
func (c *checker) wanted(now time.Duration) map[string]bool {
	wanted := make(map[string]bool)
	for _, a := range c.underWay {
		if !a.waits || a.until <= now || !a.hasCaller(now) || a.what.several() || a.server.pausedUntil > now {
			continue
		}
		for _, name := range a.what.names() {
			wanted[name] = true
		}
	}
	return wanted
}

// lookAt reports whether the resource is vacant, and since when.
func (c *checker) lookAt(name string, now time.Duration) (v vacancy, vacant bool) {
	l := c.ledger(name)
	if l.set < 0 || !c.w.sound(l.set, now) {
		return v, false
	}
	voting, locks := 0, make(map[string]int)
	for _, n := range c.w.nodes {
		if n.set != l.set || !n.votes() {
			continue
		}
		voting++
		if r := n.model.Read(name); r.Owner != "" {
			if locks[r.Owner]++; locks[r.Owner] >= quorum.Of(c.w.plan.Nodes) {
				v.owner = r.Owner
			}
		}
	}
	if voting < quorum.Of(c.w.plan.Nodes) {
		return v, false
	}
	if v.since = now; c.vacant[name].owner == v.owner {
		if last, was := c.vacant[name]; was {
			v.since = last.since
		}
	}
	return v, !l.believes(v.owner, now) && !c.reserved(v.owner, now)
}

// believes reports that a client relies on the lock, or that it stays locked on purpose (rule 27).
func (l *ledger) believes(owner string, now time.Duration) bool {
	return owner != "" && slices.ContainsFunc(l.spans, func(s span) bool {
		return s.value == owner && s.until > now || s.value != "" && node.NoLease(s.value) == owner
	})
}

// reserved reports that the lock belongs to a request under way whose caller is present: a part that an
// acquisition of several has taken, or the lock that an acquisition is about to return.
func (c *checker) reserved(owner string, now time.Duration) bool {
	return owner != "" && slices.ContainsFunc(c.underWay, func(a *action) bool {
		return a.asksAs[owner] && (!a.waits || a.what.several()) && a.hasCaller(now)
	})
}

// hasCaller reports that the server is alive and the caller has not hung up.
func (a *action) hasCaller(now time.Duration) bool {
	return a.epoch == a.server.epoch && (a.patience == 0 || a.began+a.patience > now)
}

// outlasts records a lock whose client requested a shorter TTL: an extend never shortens a lock.
func (l *ledger) outlasts(owner string, late time.Duration) {
	for i := range l.spans {
		if s := &l.spans[i]; s.owner == owner {
			s.locked = max(s.locked, s.until+late)
		}
	}
}

// keptPlace is the place of a poll, which its server keeps.
type keptPlace struct {
	ends  time.Duration // when the server gives it up
	until time.Duration // until when it keeps others out: at most until ends, and not while its key waits again
}

// keepsPlace records that a request has ended without a grant: the server keeps the place of a poll. An earlier place
// counts again until it ends.
func (c *checker) keepsPlace(d *completion) {
	if d.verb != "acquire" || d.err == nil {
		return
	}
	for _, part := range d.parts {
		l := c.ledger(part.Resource)
		if d.polled() {
			l.places[d.owner] = &keptPlace{ends: c.w.now() + lingers}
		}
		if place := l.places[d.owner]; place != nil {
			place.until = place.ends
		}
	}
}

// needsNoPlace records that the owner waits again, on whatever server, or has its lease: the place that its poll left
// no longer excuses that others wait.
func (l *ledger) needsNoPlace(owner string, now time.Duration) {
	if place := l.places[owner]; place != nil {
		place.until = min(place.until, now)
	}
}

// keptUntil returns until when a place that is kept for another request may keep the resource free.
func (l *ledger) keptUntil() (until time.Duration) {
	for _, place := range l.places {
		until = max(until, place.until)
	}
	return until
}

// unlocked records that the client knows that the lease has ended, so no lock of it may remain.
func (l *ledger) unlocked(owner string, token fencing.Token) {
	for i := range l.spans {
		if s := &l.spans[i]; s.owner == owner && s.token <= token {
			s.locked = 0
		}
	}
}

// lockedUntil returns until when the owner's lock may remain beyond the time on which its client relies.
func (l *ledger) lockedUntil(owner string) (until time.Duration) {
	for _, s := range l.spans {
		if s.value == owner {
			until = max(until, s.locked)
		}
	}
	return until
}

// excuse records something that may keep others out for a while: a lock whose client got no response remains
// until its TTL ends.
func (c *checker) excuse(a *action, while time.Duration) {
	for _, part := range a.parts {
		l := c.ledger(part.Resource)
		l.lost, l.used = max(l.lost, c.w.now()+while), max(l.used, c.w.now()+while)
	}
}
