package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// A resource for which somebody waits is held by somebody, or is about to be. It is vacant
// otherwise: idle if it is locked on no quorum, and orphaned if it is, and no client believes
// that it holds the lease or has an answer on its way.

// vacancy is what was last seen of a vacant resource.
type vacancy struct {
	since time.Duration
	owner string // of the lock on a quorum; "" if there is none
}

func (v vacancy) kind() string {
	if v.owner == "" {
		return "idle"
	}
	return "orphaned"
}

// Vacancies are for how long resources were vacant, and how much of that after a fault, or after
// an answer that was lost: then a lock may stand until its TTL ends.
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
	mostVacant = time.Second // without an excuse
)

// lookForVacant looks at all resources, again and again.
func (c *checker) lookForVacant() {
	c.w.after(lookEvery, c.lookForVacant)
	now := c.w.now()
	if !c.w.agreed() {
		c.w.parted = now
	}
	wanted := c.wanted(now)
	for _, name := range c.w.names {
		if c.w.undisturbed() { // otherwise keepsOut does not ask, and it costs a fourth of a run to look at every node
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
		excused := max(c.w.troubled, l.lost, l.lockedUntil(v.owner))
		if last, was := c.vacant[name]; was {
			c.Vacancies.add(v.kind(), last.since < excused, lookEvery)
		}
		c.vacant[name] = v
		if c.w.quietNetwork() && now-max(v.since, excused) > mostVacant {
			c.violatef(v.kind(), "%s is %s since %s, and a client waits for it", name, v.kind(), v.since)
		}
	}
}

// quietNetwork: messages arrive, once, and before the servers stop waiting for them, and clocks
// are good enough, so that what takes long is the servers' fault.
func (w *world) quietNetwork() bool {
	p := &w.plan
	return p.timed() && p.Loss == 0 && p.Late == 0 && p.Double == 0 && p.Delay <= p.NodeTimeout/4 && p.Maps == nil && len(p.Tardy) == 0
}

// wanted are the resources of which a living server has a request that waits, for no more
// than one of them at once.
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

// believes: a client counts on the lock, or it stays taken on purpose (rule 27).
func (l *ledger) believes(owner string, now time.Duration) bool {
	return owner != "" && slices.ContainsFunc(l.spans, func(s span) bool {
		return s.value == owner && s.until > now || s.value != "" && node.NoLease(s.value) == owner
	})
}

// reserved: the lock is of a request under way whose caller is there: of an acquisition of
// several a part that it has taken, of any other one what it is about to be given.
func (c *checker) reserved(owner string, now time.Duration) bool {
	return owner != "" && slices.ContainsFunc(c.underWay, func(a *action) bool {
		return a.asksAs[owner] && (!a.waits || a.what.several()) && a.hasCaller(now)
	})
}

// hasCaller: the server lives, and nobody has hung up.
func (a *action) hasCaller(now time.Duration) bool {
	return a.epoch == a.server.epoch && (a.patience == 0 || a.began+a.patience > now)
}

// outlasts is for a lock whose client asks for a shorter time: an extend never shortens it.
func (l *ledger) outlasts(owner string, late time.Duration) {
	for i := range l.spans {
		if s := &l.spans[i]; s.owner == owner {
			s.locked = max(s.locked, s.until+late)
		}
	}
}

// unlocked: the client was told that the lease has ended, so no lock of it is to stand.
func (l *ledger) unlocked(owner string, token fencing.Token) {
	for i := range l.spans {
		if s := &l.spans[i]; s.owner == owner && s.token <= token {
			s.locked = 0
		}
	}
}

// lockedUntil is until when the lock of that owner may stand for longer than its client counts on.
func (l *ledger) lockedUntil(owner string) (until time.Duration) {
	for _, s := range l.spans {
		if s.value == owner {
			until = max(until, s.locked)
		}
	}
	return until
}

// excuse is for what may keep others out for a while: a lock whose client got no answer
// stands until its TTL ends.
func (c *checker) excuse(a *action, while time.Duration) {
	for _, part := range a.parts {
		l := c.ledger(part.Resource)
		l.lost, l.used = max(l.lost, c.w.now()+while), max(l.used, c.w.now()+while)
	}
}
