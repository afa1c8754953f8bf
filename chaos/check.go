package chaos

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Violation is a promise that was not kept.
type Violation struct {
	Kind     string // tokens, exclusion, order, writes, stuck, leaked, service, waits, lost, limits, vacant
	Resource string
	What     string
}

func (v Violation) String() string { return v.Kind + ": " + v.Resource + ": " + v.What }

// checker looks at the history of one resource.
type checker struct {
	resource string
	ops      []*op
	found    []Violation
}

func (c *checker) violationf(kind, format string, args ...any) {
	c.found = append(c.found, Violation{Kind: kind, Resource: c.resource, What: fmt.Sprintf(format, args...)})
}

// of returns the operations of some kinds that satisfy keep.
func (c *checker) of(keep func(*op) bool, kinds ...string) []*op {
	return slices.DeleteFunc(slices.Clone(c.ops), func(o *op) bool { return !slices.Contains(kinds, o.Kind) || !keep(o) })
}

// tokens checks that tokens are unique and follow the order of the acquisitions: a request that was sent after
// a token was granted gets a larger one. An idempotency key gets its own token again, and an extension keeps
// its token.
func (c *checker) tokens(before int64) {
	granted := c.of((*op).ok, opAcquire, opExtend)
	c.unique(granted)
	bySent := slices.SortedFunc(slices.Values(granted), func(a, b *op) int { return cmp.Compare(a.Sent, b.Sent) })
	byDone := slices.SortedFunc(slices.Values(granted), func(a, b *op) int { return cmp.Compare(a.Done, b.Done) })
	largest := &op{Token: before}
	next := 0
	for _, o := range bySent {
		for ; byDone[next].Done < o.Sent; next++ {
			if byDone[next].Token > largest.Token {
				largest = byDone[next]
			}
		}
		again := o.Kind == opExtend || o.Key != "" && o.Key == largest.Key
		if o.Token < largest.Token || o.Token == largest.Token && !again {
			c.violationf("tokens", "%s sent at %s got token %d, but token %d was answered at %s",
				o.Kind, o.Sent, o.Token, largest.Token, largest.Done)
		}
	}
}

// tooLate is how much later than the requested wait a response may come.
const tooLate = time.Second

// waits checks that no acquisition took much longer than its wait, except while the machine was too busy.
func (c *checker) waits(late []time.Duration) {
	for _, o := range c.of(func(o *op) bool { return o.Done-o.Sent > o.Wait+tooLate }, opAcquire) {
		busy := slices.ContainsFunc(late, func(t time.Duration) bool { return o.Sent <= t && t <= o.Done })
		if !busy {
			c.violationf("waits", "an acquisition sent at %s to wait for %s was answered after %s, with status %d", o.Sent, o.Wait, o.Done-o.Sent, o.Status)
		}
	}
}

// unique checks that two acquisitions never share a token.
func (c *checker) unique(granted []*op) {
	owner := map[int64]*op{}
	for _, o := range granted {
		if o.Kind != opAcquire {
			continue
		}
		first := owner[o.Token]
		if first != nil && (o.Key == "" || o.Key != first.Key) {
			c.violationf("tokens", "token %d was granted twice, at %s and at %s", o.Token, first.Done, o.Done)
		}
		owner[o.Token] = o
	}
}

// lost checks that a granted lease can be extended and released for as long as it is valid by its holder's own
// count, unless somebody ended it. If a key got several responses, the one with the largest token counts.
func (c *checker) lost() {
	for _, o := range c.of(func(o *op) bool { return o.Status == http.StatusNotFound }, opExtend, opRelease) {
		until, ended := c.lifeOf(o)
		if !ended && o.Done < until {
			c.violationf("lost", "%s sent at %s got 404, but the lease with token %d was valid until %s, and nobody ended it", o.Kind, o.Sent, o.Token, until)
		}
	}
}

// lifeOf returns until when the lease of an operation is valid, as its client knew when it sent the operation,
// and whether somebody ended the lease before the response.
func (c *checker) lifeOf(o *op) (until time.Duration, ended bool) {
	ended = twins(c.ops, o.Key)
	for _, p := range c.ops {
		mine := p.Lease == o.Lease || p.Key != "" && p.Key == o.Key
		switch {
		case p == o || !mine:
		case p.Kind == opAcquire || p.Kind == opExtend && p.ok():
			if p.ok() && p.Done <= o.Sent && p.Lease == o.Lease {
				until = max(until, p.until())
			}
			ended = ended || p.Token > o.Token
		case p.Sent <= o.Done && p.Kind != opClaim && p.Kind != opPut:
			ended = true // a release, a cancel, or an extend with a status other than 200
		}
	}
	return until, ended
}

// refused checks that no client is at a limit: no client can reach the servers' limits.
func (c *checker) refused() {
	for _, o := range c.of(func(o *op) bool { return o.Status == http.StatusTooManyRequests }, opAcquire, opExtend, opRelease, opCancel) {
		c.violationf("limits", "%s sent at %s got 429", o.Kind, o.Sent)
	}
}

// span is a time in which a client certainly held the lease.
type span struct {
	from, to time.Duration
	token    int64
	key      string
}

// exclusion checks that no two leases were valid at the same time. Two responses to one idempotency key belong
// to one holder, even if their tokens differ. This happens when both requests were under way at once and the
// nodes' counters differed.
func (c *checker) exclusion() {
	spans := c.spans()
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var last span
	for _, s := range spans {
		another := s.token != last.token && (s.key == "" || s.key != last.key)
		if another && s.from < last.to {
			c.violationf("exclusion", "tokens %d and %d were both valid from %s to %s", last.token, s.token, s.from, min(s.to, last.to))
		}
		if s.to > last.to {
			last = s
		}
	}
}

// spans returns the times of validity. Each begins with a grant and lasts for the granted time. It ends earlier
// if the holder began to give the lease up, or to extend it, because an extension may shorten it. Leases under one
// idempotency key are given up together.
func (c *checker) spans() []span {
	var spans []span
	changes := c.of(func(*op) bool { return true }, opRelease, opExtend, opCancel)
	for _, o := range c.of((*op).ok, opAcquire, opExtend) {
		s := span{from: o.Done, to: o.Sent + o.Validity, token: o.Token, key: o.Key}
		for _, r := range changes {
			if r.Sent > o.Sent && (r.Token == o.Token || r.Key != "" && r.Key == o.Key) {
				s.to = min(s.to, r.Sent)
			}
		}
		if s.from < s.to {
			spans = append(spans, s)
		}
	}
	return spans
}

// writes checks the final record: it contains every acknowledged write exactly once, every other write at most
// once, and no refused write.
func (c *checker) writes(final string) {
	there := map[string]int{}
	for id := range strings.FieldsSeq(final) {
		there[id]++
	}
	acknowledged, open := map[string]bool{}, map[string]bool{}
	for _, o := range c.ops {
		if o.Kind == opPut && o.ID != "" {
			acknowledged[o.ID] = acknowledged[o.ID] || o.ok()
			open[o.ID] = open[o.ID] || o.open()
		}
	}
	for id, n := range there {
		if n > 1 {
			c.violationf("writes", "write %s is there %d times", id, n)
		}
		if !acknowledged[id] && !open[id] {
			c.violationf("writes", "write %s is there, and was refused or never sent", id)
		}
	}
	for id, ok := range acknowledged {
		if ok && there[id] == 0 {
			c.violationf("writes", "write %s was acknowledged and is lost", id)
		}
	}
}

// order checks that the guard's responses are right in some order of the operations.
func (c *checker) order(start mark, final string) {
	seen := map[string]bool{}
	for id := range strings.FieldsSeq(final) {
		seen[id] = true
	}
	guarded := c.of(func(*op) bool { return true }, opClaim, opPut)
	switch linearizable(start, guarded, func(id string) bool { return seen[id] }) {
	case porcupine.Illegal:
		c.violationf("order", "%d answers of the guard have no order in which all are right", len(guarded))
	case porcupine.Unknown:
		c.violationf("order", "no order of %d answers of the guard was found within %s: undecided", len(guarded), searchWithin)
	}
}
