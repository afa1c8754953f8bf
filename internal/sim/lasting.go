package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// The following checks concern leases that their holders lose or cannot find, and callers that are kept out by
// others which have gone. They apply on a network that delivers every message exactly once, after the last
// fault of a node or a server.

// promptly is the maximum time of a call that nothing delays.
const promptly = 500 * time.Millisecond

// newest returns the time for which the owner believes in its newest lease, or in the lease with the given
// token. It is zero if the owner believes in no lease.
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

// stands reports whether the lease in which its client believed when the call began must still exist. That is
// so if three things hold. No client has tried to end it since the call began (a break may find a resource
// that one of several has taken). No fault has happened since it was granted. And since then all nodes have
// voted in one epoch; otherwise a repetition may find too few of its locks.
func (c *checker) stands(d *completion, i int) bool {
	l, s := c.ledger(d.parts[i].Resource), d.floors[i].believed
	ended := s.until <= d.at || s.token <= l.mayBreak || l.breaking > 0 || l.since[d.owner] <= l.breakEnd || l.largest != s.token
	return c.w.quietNetwork() && !c.acrossCalm(d) && !c.w.plan.Twins && max(c.w.struck, c.w.parted) <= s.from && !ended && !l.blind[d.owner]
}

// acrossCalm reports that the call began on a network that lost messages, and ended on one that does not.
func (c *checker) acrossCalm(d *completion) bool { return c.w.calm && d.began < c.w.calmAt }

// lasts checks that a granted lease can be extended, inspected and released until its validity ends.
func (c *checker) lasts(d *completion) {
	if d.grip == nil || !errors.Is(d.err, lockcore.ErrNotHeld) {
		return
	}
	for i := range d.parts { // a lease of several ends with any part
		if !c.stands(d, i) {
			return
		}
	}
	c.violatef("lasting lease", "%s of %s with token %d says that the lease has ended; it was granted at %s, is valid until %s, and nobody ended it",
		d.verb, d.names(), d.parts[0].Token, d.floors[0].believed.from, d.floors[0].believed.until)
}

// finds checks that a request which repeats another one finds its key's lease at once, even if others wait.
func (c *checker) finds(d *completion) {
	if d.verb != "acquire" || d.key == "" || errors.Is(d.err, context.Canceled) || d.kept() {
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

// kept reports that an extend has shortened the key's lease, so that a node may know a longer one.
func (d *completion) kept() bool {
	return slices.ContainsFunc(d.floors, func(f floor) bool { return f.believed.token > 0 && f.believed.until-d.at < promptly })
}

// unused records since when no client has the resource, waits for it or requests it.
func (c *checker) unused(name string, now time.Duration) {
	asked := slices.ContainsFunc(c.underWay, func(a *action) bool { return a.verb == "acquire" && a.isFor(name) && a.hasCaller(now) })
	if asked || slices.ContainsFunc(c.w.nodes, func(n *simNode) bool { return n.model.Read(name).Owner != "" }) {
		c.ledger(name).used = now
	}
}

func (a *action) isFor(name string) bool {
	return slices.ContainsFunc(a.parts, func(part lockcore.LeasePart) bool { return part.Resource == name })
}

// undisturbed reports that no fault has happened in the whole run.
func (w *world) undisturbed() bool { return w.quietNetwork() && w.struck == 0 && !w.calm }

// keepsOut checks that a caller which does not wait gets every free resource: a request that was cancelled or
// whose caller hung up must not cost others anything. After a lossy network, the check cannot tell what that
// network left behind.
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
