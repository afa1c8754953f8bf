package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// What follows is about leases that their holders lose or cannot find, and about callers that
// are kept out by others which have gone: on a network that brings every message, once, where
// nothing has struck a node or a server since.

// promptly is how long a call takes at most where nothing is in its way.
const promptly = 500 * time.Millisecond

// newest is what the owner believes of its lease, and of no other than that of the token if one
// is given. It is zero if the owner believes nothing.
func (l *ledger) newest(owner string, part lockcore.LeasePart, now time.Duration) (s span) {
	for _, o := range l.spans {
		if o.owner == owner && o.until > now && o.token > l.released[owner] && (part.Token == 0 || part.Token == o.token) {
			if o.token == s.token { // extended
				o.from = s.from
			}
			s = o
		}
	}
	return s
}

// stands reports whether the lease that was believed in when the call began must still be
// there: nobody has ended it since it was asked for (a break may find what one of several
// resources has got already), nothing has happened since it was granted, and since then all
// nodes have voted in one epoch: otherwise a repeat may find too few of its locks.
func (c *checker) stands(d *completion, i int) bool {
	l, s := c.ledger(d.parts[i].Resource), d.floors[i].believed
	ended := s.until <= d.at || s.token <= l.mayBreak || l.breaking > 0 || l.since[d.owner] <= l.breakEnd || l.largest != s.token
	return c.w.quietNetwork() && !c.acrossCalm(d) && !c.w.plan.Twins && max(c.w.struck, c.w.parted) <= s.from && !ended && !l.blind[d.owner]
}

// acrossCalm: the call began on a network that lost messages, and ended on one that does not.
func (c *checker) acrossCalm(d *completion) bool { return c.w.calm && d.began < c.w.calmAt }

// lasts checks that a lease which was granted can be extended, looked at and released until its
// validity ends.
func (c *checker) lasts(d *completion) {
	if d.grip == nil || !errors.Is(d.err, lockcore.ErrNotHeld) {
		return
	}
	for i := range d.parts { // a lease of several ends with any of them
		if !c.stands(d, i) {
			return
		}
	}
	c.violatef("lasting lease", "%s of %s with token %d says that the lease has ended; it was granted at %s, is valid until %s, and nobody ended it",
		d.verb, d.names(), d.parts[0].Token, d.floors[0].believed.from, d.floors[0].believed.until)
}

// finds checks that a request which repeats another one finds the lease that its key has at
// once, whoever waits, and is told so at no limit of its caller.
func (c *checker) finds(d *completion) {
	full := errors.Is(d.err, lockcore.ErrTooManyWaiters) // the server asked no node
	if d.verb != "acquire" || d.key == "" || errors.Is(d.err, context.Canceled) || full || d.kept() {
		return
	}
	found := 0
	for i := range d.parts {
		if c.stands(d, i) {
			found++
		}
	}
	if want := len(d.parts); found < want && d.what.slots == 0 || found == 0 {
		return
	}
	i := slices.IndexFunc(d.floors, func(f floor) bool { return f.believed.token > 0 })
	held := d.floors[i].believed
	took := d.at - d.began
	if d.err != nil || took > promptly || partsOf(&d.lease)[0].Token != d.floors[0].believed.token && d.what.slots == 0 {
		c.violatef("repeat", "%s was asked for again under the key that holds it since %s with token %d until %s: after %s it got %v, %v",
			d.what, held.from, held.token, held.until, took, partsOf(&d.lease), d.err)
	}
}

// kept: what the key has is a lease that an extend has made shorter than a node knows.
func (d *completion) kept() bool {
	return slices.ContainsFunc(d.floors, func(f floor) bool { return f.believed.token > 0 && f.believed.until-d.at < promptly })
}

// unused notes that nobody has the resource, waits for it or asks for it, or since when not.
func (c *checker) unused(name string, now time.Duration) {
	asked := slices.ContainsFunc(c.underWay, func(a *action) bool { return a.verb == "acquire" && a.isFor(name) && a.hasCaller(now) })
	if asked || slices.ContainsFunc(c.w.nodes, func(n *simNode) bool { return n.model.Read(name).Owner != "" }) {
		c.ledger(name).used = now
	}
}

func (a *action) isFor(name string) bool {
	return slices.ContainsFunc(a.parts, func(part lockcore.LeasePart) bool { return part.Resource == name })
}

// undisturbed: nothing has gone wrong in the whole run.
func (w *world) undisturbed() bool { return w.quietNetwork() && w.struck == 0 && !w.calm }

// keepsOut checks that a caller which does not wait is refused no resource that nobody has:
// who hung up, or cancelled, costs nobody anything. What a lossy network left is not told apart once it is calm.
func (c *checker) keepsOut(d *completion) {
	if d.verb != "acquire" || d.waits || d.what.several() || d.what.slots > 0 || !errors.Is(d.err, lockcore.ErrHeld) || !c.w.undisturbed() {
		return
	}
	const while = 300 * time.Millisecond
	l, f := c.ledger(d.parts[0].Resource), d.floors[0]
	if l.asks == f.asks && d.began > c.w.recovery(1) && d.began-f.used > while {
		c.violatef("kept out", "%s was refused, and nobody has had it, waited for it or asked for it since %s: %v", d.what, f.used, d.err)
	}
}
