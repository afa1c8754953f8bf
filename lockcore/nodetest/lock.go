package nodetest

import (
	"fmt"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

func lockTests() []test { //nolint:funlen // a table of scenarios
	return []test{
		{"a free lock is granted once, then held", func(s *suite) {
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(acquire("a", "L2"), held(s.base+1, "L1", longTTL))
			s.want(read("a"), locked(s.base+1, "L1", longTTL))
			s.want(read("b"), outcome(node.NotHeld))
		}},
		{"what comes upon a record that cannot be read fails alone", spoiledRecord},
		{"a duplicated acquire finds its own lock", func(s *suite) {
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			again := acquire("a", "L1")
			again.Meta, again.TTL = "the metadata of a retry are ignored", maxTTL
			s.want(again, existing(s.base+1, "L1"))
			s.wantCounter("a", s.base+1)
		}},
		{"grants count up over releases", func(s *suite) {
			for i := range fencing.Token(5) {
				s.want(acquire("a", "L1"), granted(s.base+1+i, longTTL))
				s.want(retract("a", "L1", ""), granted(s.base+1+i, 0))
			}
		}},
		{"a missing counter reads as the node's high-water mark", func(s *suite) {
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(acquire("b", "L2"), granted(s.base+2, longTTL))
			s.want(retract("a", "L1", ""), granted(s.base+1, 0))
			s.want(acquire("a", "L3"), granted(s.base+2, longTTL)) // its own counter
			s.want(acquire("c", "L4"), granted(s.base+3, longTTL))
			s.wantHighWater(s.base + 3)
		}},
		{"a counter stays while it is used", counterStays},
		{"only the owner releases", func(s *suite) {
			s.want(release("a", "L1", 1), outcome(node.NotHeld))
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(release("a", "L2", s.base+1), outcome(node.NotHeld))
			s.want(read("a"), locked(s.base+1, "L1", longTTL))
			s.want(release("a", "L1", s.base+1), granted(s.base+1, 0))
			s.want(release("a", "L1", s.base+1), outcome(node.NotHeld))
			s.want(read("a"), outcome(node.NotHeld))
		}},
		{"a retraction moves no counter", func(s *suite) {
			s.want(retract("a", "L1", ""), outcome(node.NotHeld))
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(retract("a", "L2", ""), outcome(node.NotHeld))
			s.want(read("a"), locked(s.base+1, "L1", longTTL))
			s.want(retractAbove("a", "L1", "", s.base+1), outcome(node.NotHeld))
			s.want(retractAbove("a", "L1", "", s.base), granted(s.base+1, 0))
			s.want(retractAbove("a", "L1", "", s.base), outcome(node.NotHeld))
			s.want(read("a"), outcome(node.NotHeld))
			s.wantCounter("a", s.base+1)
			s.wantHighWater(s.base + 1)
		}},
		{"no extend revives a released lease", func(s *suite) {
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(release("a", "L1", s.base+1), granted(s.base+1, 0))
			s.want(extend("a", "L1", s.base+1, longTTL), outcome(node.NotHeld))
			s.want(release("a", "L1", s.base+1), outcome(node.NotHeld)) // again changes nothing
			s.want(acquire("a", "L2"), granted(s.base+3, longTTL))
			s.want(release("a", "L1", s.base+8), outcome(node.NotHeld)) // another has the lock
			s.want(release("a", "L2", s.base+3), granted(s.base+3, 0))
			s.want(extend("a", "L1", s.base+8, longTTL), outcome(node.NotHeld)) // also without another's lock
			s.want(acquire("b", "L3"), granted(s.base+10, longTTL))
			s.want(release("b", "L3", s.base+15), granted(s.base+10, 0)) // the token may be above the grant
			s.want(acquire("b", "L4"), granted(s.base+17, longTTL))
		}},
		{"a release-after keeps the resource locked, for no lease", func(s *suite) {
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(releaseAfter("a", "L1", s.base+1, longTTL), granted(s.base+1, longTTL))
			taken := withMeta(locked(s.base+1, node.NoLease("L1"), longTTL), "meta of L1")
			s.want(read("a"), taken)
			s.want(extend("a", "L1", s.base+1, longTTL), outcome(node.NotHeld))
			s.want(confirm("a", "L1", s.base+1), outcome(node.NotHeld))
			s.want(releaseAfter("a", "L1", s.base+1, longTTL), outcome(node.NotHeld)) // again changes nothing
			s.want(release("a", "L1", s.base+1), outcome(node.NotHeld))
			taken.Outcome = node.Held
			s.want(acquire("a", "L2"), taken)
		}},
		{"a resource that a release-after kept locked is free after its time", func(s *suite) {
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(releaseAfter("a", "L1", s.base+1, shortTTL), granted(s.base+1, shortTTL))
			s.expires("a", shortTTL)
			s.want(extend("a", "L1", s.base+1, longTTL), outcome(node.NotHeld))
			s.want(acquire("a", "L2"), granted(s.base+3, longTTL))
		}},
		{"a release-after never lengthens, and locks nothing that is free", func(s *suite) {
			s.want(acquireFor("a", "L1", shortTTL), granted(s.base+1, shortTTL))
			s.want(releaseAfter("a", "L1", s.base+1, longTTL), granted(s.base+1, shortTTL))
			s.want(releaseAfter("b", "L2", s.base+1, longTTL), outcome(node.NotHeld))
			s.want(read("b"), outcome(node.NotHeld))
			s.want(acquire("c", "L3"), granted(s.base+3, longTTL))
			s.want(releaseAfter("c", "L3", s.base+3, 0), granted(s.base+3, 0))
			s.want(read("c"), outcome(node.NotHeld))
		}},
		{"a release by the owner that a read returns frees what a release-after left", func(s *suite) {
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(releaseAfter("a", "L1", s.base+1, longTTL), granted(s.base+1, longTTL))
			s.want(release("a", node.NoLease("L1"), s.base+1), granted(s.base+1, 0))
			s.want(acquire("a", "L2"), granted(s.base+3, longTTL))
		}},
		{"a break ends every lease up to its token, whoever's it is", breakEnds},
		{"a break leaves a later lease alone", breakLeaves},
		{"no extend revives a lease that expired before its release", func(s *suite) {
			s.want(release("a", "L1", s.base+5), outcome(node.NotHeld))
			s.want(extend("a", "L1", s.base+5, longTTL), outcome(node.NotHeld))
			s.wantHighWater(s.base + 6)
		}},
		{"a lock expires", func(s *suite) {
			s.want(acquireFor("a", "L1", shortTTL), granted(s.base+1, shortTTL))
			s.expires("a", shortTTL)
			s.want(retract("a", "L1", ""), outcome(node.NotHeld))
			s.want(confirm("a", "L1", s.base+1), outcome(node.NotHeld))
			s.want(acquire("a", "L2"), granted(s.base+2, longTTL))
		}},
		{"a lock does not expire early", func(s *suite) {
			if s.Advance == nil {
				return // a real clock cannot be stopped just before
			}
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.Advance(longTTL - time.Millisecond)
			almost := held(s.base+1, "L1", longTTL)
			almost.Remaining = time.Millisecond
			s.want(acquire("a", "L2"), almost)
			s.Advance(time.Millisecond)
			s.want(acquire("a", "L2"), granted(s.base+2, longTTL))
		}},
		{"confirm raises the counter, the high-water mark and the lock's grant", func(s *suite) {
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(confirm("a", "L1", s.base+5), granted(s.base+5, longTTL))
			s.want(read("a"), locked(s.base+5, "L1", longTTL))
			s.wantCounter("a", s.base+5)
			s.wantHighWater(s.base + 5)
			s.want(retract("a", "L1", ""), granted(s.base+5, 0))
			s.want(acquire("a", "L2"), granted(s.base+6, longTTL))
			s.want(acquire("b", "L3"), granted(s.base+7, longTTL))
		}},
		{"confirm lowers nothing", func(s *suite) {
			s.want(acquire("b", "L0"), granted(s.base+1, longTTL))
			s.want(confirm("b", "L0", s.base+9), granted(s.base+9, longTTL))
			s.want(acquire("a", "L1"), granted(s.base+10, longTTL))
			s.want(confirm("a", "L1", s.base+10), granted(s.base+10, longTTL))
			s.wantHighWater(s.base + 10)
		}},
		{"confirm needs the owner's lock, and a grant that is not above the token", func(s *suite) {
			s.want(confirm("a", "L1", s.base+5), outcome(node.NotHeld))
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(confirm("a", "L2", s.base+5), outcome(node.NotHeld))
			s.want(confirm("a", "L1", s.base), outcome(node.NotHeld))
			s.want(confirm("a", "L1", s.base+1), granted(s.base+1, longTTL))
			s.wantCounter("a", s.base+1)
		}},
		{"extend sets a later expiry, and raises the grant to its token", func(s *suite) {
			s.want(acquireFor("a", "L1", longTTL/2), granted(s.base+1, longTTL/2))
			s.want(extend("a", "L1", s.base+1, maxTTL), withMeta(granted(s.base+1, maxTTL), "meta of L1"))
			s.want(read("a"), locked(s.base+1, "L1", maxTTL))
			s.want(extend("a", "L1", s.base+7, longTTL), withMeta(granted(s.base+7, maxTTL), "meta of L1"))
			s.want(read("a"), locked(s.base+7, "L1", maxTTL)) // an extend never shortens
			s.wantCounter("a", s.base+1)
		}},
		{"extend needs the owner's lock, and a grant that is not above the token", func(s *suite) {
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(extend("a", "L2", s.base+9, longTTL), outcome(node.NotHeld))
			s.want(extend("a", "L1", s.base, longTTL), outcome(node.NotHeld))
			s.want(read("a"), locked(s.base+1, "L1", longTTL))
		}},
		{"extend creates an expired lock again while no other lease had the resource", recreate},
		{"extend revives nothing over a successor", func(s *suite) {
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(retract("a", "L1", ""), granted(s.base+1, 0))
			s.want(acquire("a", "L2"), granted(s.base+2, longTTL))
			s.want(extend("a", "L1", s.base+1, longTTL), outcome(node.NotHeld))
			s.want(retract("a", "L2", ""), granted(s.base+2, 0))
			s.want(extend("a", "L1", s.base+1, longTTL), outcome(node.NotHeld))
			s.want(read("a"), outcome(node.NotHeld))
		}},
		{"an extend that another's lock refuses is refused for good", func(s *suite) {
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(extend("a", "L2", s.base+9, longTTL), outcome(node.NotHeld))
			s.want(read("a"), locked(s.base+1, "L1", longTTL))
			s.wantCounter("a", s.base+10)
			s.want(extend("a", "L1", s.base+1, longTTL), withMeta(granted(s.base+1, longTTL), "meta of L1"))
			s.want(release("a", "L1", s.base+1), granted(s.base+1, 0))
			s.want(extend("a", "L2", s.base+9, longTTL), outcome(node.NotHeld))
			s.want(acquire("a", "L3"), granted(s.base+11, longTTL))
			s.want(extend("a", "L2", s.base+9, longTTL), outcome(node.NotHeld)) // again changes nothing
			s.wantCounter("a", s.base+11)
		}},
		{"extend without a counter compares the token with the high-water mark", func(s *suite) {
			s.want(extend("a", "L1", s.base-1, longTTL), outcome(node.NotHeld))
			s.want(extend("a", "L1", s.base, longTTL), recreated(s.base))
			s.want(acquire("a", "L2"), withMeta(held(s.base, "L1", longTTL), ""))
			s.want(retract("a", "L1", ""), outcome(node.NotHeld)) // the node cannot know the attempt
			s.want(release("a", "L1", s.base), granted(s.base, 0))
			s.want(acquire("a", "L2"), granted(s.base+2, longTTL))
		}},
		{"a TTL above the recorded longest is refused", tooLong},
		{"a smaller epoch is stale, a larger one is ahead", epochs},
		{"a release in a smaller epoch is stale; in a larger one it is done, and does not count", releasesByEpoch},
		{"the last token is granted, and none after it", exhaustion},
		{"large numbers are exact", largeNumbers},
		{"metadata come back unchanged", metadata},
		{"an operation after its deadline is not sent", func(s *suite) {
			op := acquire("a", "L1")
			op.Deadline = time.Now().Add(-time.Second)
			if r := s.do(op); r.Outcome != node.Granted && (r.Outcome != node.Failed || r.Sent || r.Err == nil) {
				s.Errorf("%+v, want a failure that was not sent", r)
			}
		}},
		{"concurrent operations each get their own reply", sideBySide},
		{"operations take effect in the order of their submission", inOrder},
	}
}

func breakEnds(s *suite) {
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.want(breakUpTo("a", s.base+1), granted(s.base+1, 0))
	s.want(read("a"), outcome(node.NotHeld))
	s.want(extend("a", "L1", s.base+1, longTTL), outcome(node.NotHeld)) // the counter is past its token
	s.want(acquire("a", "L2"), granted(s.base+3, longTTL))
	s.want(releaseAfter("a", "L2", s.base+3, longTTL), granted(s.base+3, longTTL))
	s.want(breakUpTo("a", s.base+5), granted(s.base+3, 0)) // what a release-after left, and with a larger token
	s.want(attempt("a", "K", "attempt1"), granted(s.base+7, longTTL))
	s.want(breakUpTo("a", s.base+7), granted(s.base+7, 0))
	elsewhere := attempt("b", "K", "attempt2") // the key is free again
	elsewhere.Scope = "of b"
	s.want(elsewhere, granted(s.base+9, longTTL))
	s.want(breakUpTo("free", s.base+20), outcome(node.NotHeld))
	s.want(extend("free", "L3", s.base+20, longTTL), outcome(node.NotHeld))
}

func breakLeaves(s *suite) {
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.want(breakUpTo("a", s.base+1), granted(s.base+1, 0))
	s.want(acquire("a", "L2"), granted(s.base+3, longTTL))
	s.want(breakUpTo("a", s.base+1), outcome(node.NotHeld)) // again
	s.want(breakUpTo("a", s.base+2), outcome(node.NotHeld))
	s.want(read("a"), locked(s.base+3, "L2", longTTL))
	s.wantCounter("a", s.base+3)
	// This node granted the lease less than the token that it got from others.
	s.want(extend("a", "L2", s.base+9, longTTL), withMeta(granted(s.base+9, longTTL), "meta of L2"))
	s.want(breakUpTo("a", s.base+8), outcome(node.NotHeld)) // the lease counts on this lock
	s.want(extend("a", "L2", s.base+9, longTTL), withMeta(granted(s.base+9, longTTL), "meta of L2"))
	s.want(breakUpTo("a", s.base+9), granted(s.base+9, 0))
}

func releasesByEpoch(s *suite) {
	in := func(epoch node.Epoch, op node.Op) node.Op {
		op.Epoch = epoch
		return op
	}
	stale, behind := node.Reply{Outcome: node.StaleEpoch, Epoch: s.epoch}, node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch}
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.want(acquire("b", "L2"), granted(s.base+2, longTTL))
	s.want(in(s.epoch-1, release("a", "L1", s.base+1)), stale)
	s.want(in(s.epoch-1, releaseAfter("a", "L1", s.base+1, shortTTL)), stale)
	s.want(in(s.epoch-1, breakUpTo("a", s.base+1)), stale)
	s.want(read("a"), locked(s.base+1, "L1", longTTL))
	s.want(in(s.epoch+3, release("a", "L1", s.base+1)), behind)
	s.want(in(s.epoch+3, releaseAfter("b", "L2", s.base+2, 0)), behind)
	s.want(acquire("c", "L3"), granted(s.base+3, longTTL))
	s.want(in(s.epoch+3, breakUpTo("c", s.base+3)), behind)
	s.want(read("c"), outcome(node.NotHeld))
	s.want(read("a"), outcome(node.NotHeld))
	s.want(read("b"), outcome(node.NotHeld))
	s.wantCounter("a", s.base+1)
	s.want(release("a", "L1", s.base+1), outcome(node.NotHeld))
	s.wantCounter("a", s.base+2)
}

func counterExpires(s *suite) {
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.want(retract("a", "L1", ""), granted(s.base+1, 0))
	s.want(acquire("b", "L2"), granted(s.base+2, longTTL))
	s.want(retract("b", "L2", ""), granted(s.base+2, 0))
	s.afterwards(briefly, func() error {
		if got := s.counter("a"); got != s.base+2 {
			return fmt.Errorf("the counter reads %d, want the high-water mark, %d", got, s.base+2)
		}
		return nil
	})
	s.want(extend("a", "L1", s.base+1, longTTL), outcome(node.NotHeld))
	s.want(acquire("a", "L3"), granted(s.base+3, longTTL))
}

func counterStays(s *suite) {
	if s.Advance == nil {
		return // a real clock cannot be stopped
	}
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.want(acquire("b", "L2"), granted(s.base+2, longTTL))
	s.Advance(counters * 2 / 3)
	s.want(extend("a", "L1", s.base+1, longTTL), recreated(s.base+1))
	s.Advance(counters * 2 / 3)
	s.wantCounter("a", s.base+1)
	// The counter's TTL begins with the last extension of a long lease.
	s.want(acquire("a", "L3"), granted(s.base+2, longTTL))
	for passed := time.Duration(0); passed < 2*counters; passed += longTTL / 2 {
		s.want(extend("a", "L3", s.base+2, longTTL), withMeta(granted(s.base+2, longTTL), "meta of L3"))
		s.Advance(longTTL / 2)
	}
	s.want(retract("a", "L3", ""), granted(s.base+2, 0))
	s.want(acquire("c", "L4"), granted(s.base+3, longTTL))
	s.wantCounter("a", s.base+2)
}

func recreate(s *suite) {
	s.want(acquireFor("a", "L1", shortTTL), granted(s.base+1, shortTTL))
	s.want(acquire("b", "L9"), granted(s.base+2, longTTL)) // raises the high-water mark, and not the counter of a
	s.expires("a", shortTTL)
	s.want(extend("a", "L1", s.base+1, longTTL), recreated(s.base+1))
	s.want(read("a"), withMeta(locked(s.base+1, "L1", longTTL), ""))
	s.want(acquire("a", "L2"), withMeta(held(s.base+1, "L1", longTTL), ""))
	s.want(release("a", "L1", s.base+1), granted(s.base+1, 0))
	// A node that granted less takes the quorum's token.
	s.want(extend("a", "L1", s.base+8, longTTL), recreated(s.base+8))
	s.want(confirm("a", "L1", s.base+8), granted(s.base+8, longTTL))
	s.want(release("a", "L1", s.base+8), granted(s.base+8, 0))
	s.want(acquire("a", "L2"), granted(s.base+10, longTTL))
}

func tooLong(s *suite) {
	refused := node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch}
	s.want(acquireFor("a", "L1", maxTTL+time.Millisecond), refused)
	s.want(read("a"), outcome(node.NotHeld))
	s.want(acquireFor("a", "L1", maxTTL), granted(s.base+1, maxTTL))
	s.want(extend("a", "L1", s.base+1, maxTTL+time.Millisecond), refused)
	s.must(s.Node.RaiseMaxTTL(s.Context(), maxTTL+time.Second))
	s.want(extend("a", "L1", s.base+1, maxTTL+time.Second), withMeta(granted(s.base+1, maxTTL+time.Second), "meta of L1"))
	s.must(s.Node.RaiseMaxTTL(s.Context(), time.Second)) // lowers nothing
	s.wantMaxTTL(maxTTL + time.Second)
}

func epochs(s *suite) {
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	ops := map[string]node.Op{
		"acquire":         acquire("a", "L1"),
		"acquire held":    acquire("a", "L2"),
		"acquire free":    acquire("b", "L2"),
		"confirm":         confirm("a", "L1", s.base+5),
		"extend":          extend("a", "L1", s.base+1, longTTL),
		"extend too long": extend("a", "L1", s.base+1, 10*maxTTL),
		"extend unlocked": extend("c", "L1", fencing.MaxToken, longTTL),
		"enqueue":         enqueue("a", ticket("t1", "s1", 1)),
	}
	for name, op := range ops {
		op.Epoch = s.epoch - 1
		if diff := s.diff(op.Kind, s.do(op), node.Reply{Outcome: node.StaleEpoch, Epoch: s.epoch}); diff != "" {
			s.Errorf("%s in a smaller epoch: %s", name, diff)
		}
		op.Epoch = s.epoch + 1
		if diff := s.diff(op.Kind, s.do(op), node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch}); diff != "" {
			s.Errorf("%s in a larger epoch: %s", name, diff)
		}
	}
	s.want(read("a"), locked(s.base+1, "L1", longTTL)) // no operation had an effect
	s.want(read("b"), outcome(node.NotHeld))
	s.want(read("c"), outcome(node.NotHeld))
	s.wantCounter("a", s.base+1)
}

func exhaustion(s *suite) {
	s.admit(fencing.MaxToken - 2)
	s.want(acquire("a", "L1"), granted(fencing.MaxToken-1, longTTL))
	s.want(attempt("b", "L2", "attempt1"), granted(fencing.MaxToken, longTTL))
	s.want(acquire("c", "L3"), outcome(node.Exhausted))
	s.want(read("c"), outcome(node.NotHeld))
	s.want(extend("c", "L3", fencing.MaxToken-1, longTTL), outcome(node.NotHeld)) // the counter is still missing
	s.wantCounter("c", fencing.MaxToken)
	s.want(attempt("b", "L2", "attempt2"), existing(fencing.MaxToken, "L2"))
	s.want(extend("b", "L2", fencing.MaxToken, longTTL), withMeta(granted(fencing.MaxToken, longTTL), "meta of L2"))
	s.want(release("b", "L2", fencing.MaxToken), granted(fencing.MaxToken, 0))
	s.want(release("c", "L3", fencing.MaxToken), outcome(node.NotHeld))
	s.want(acquire("b", "L3"), outcome(node.Exhausted))
	s.wantCounter("b", fencing.MaxToken)
	s.wantHighWater(fencing.MaxToken)
}

// largeNumbers are changed by an IEEE 754 double and by a short decimal text.
func largeNumbers(s *suite) {
	const large = 1<<53 - 10_001
	s.admit(large)
	if s.base != large {
		s.Fatalf("the high-water mark is %d, want %d", s.base, fencing.Token(large))
	}
	s.want(acquire("a", "L1"), granted(large+1, longTTL))
	s.want(confirm("a", "L1", large+778), granted(large+778, longTTL))
	s.want(read("a"), locked(large+778, "L1", longTTL))
	s.want(extend("a", "L1", large+777, longTTL), outcome(node.NotHeld))
	s.want(extend("a", "L1", large+778, longTTL), withMeta(granted(large+778, longTTL), "meta of L1"))
	s.wantCounter("a", large+778)
	epoch := node.Epoch(1<<53 - 1)
	marks, err := s.Node.InstallEpoch(s.Context(), epoch)
	s.must(err)
	if marks.HighWater != large+778 || s.observe().Epoch != epoch {
		s.Errorf("marks %+v, epoch %d", marks, s.observe().Epoch)
	}
	op := acquire("b", "L2")
	op.Epoch = epoch - 1
	s.want(op, node.Reply{Outcome: node.StaleEpoch, Epoch: epoch})
	op.Epoch = epoch
	s.want(op, granted(large+779, longTTL))
}

func metadata(s *suite) {
	for i, meta := range []string{
		"", " ", "  two blanks  ", "a\nb\r\n", "\x1f1\x1fholder\x1f{\"a\": 1}", "- = . ,", "zero \x00 byte", "\xff\xfe no UTF-8",
		`{"text":"ümläut 🔒","n":9007199254740991}`, string(make([]byte, 9000)),
	} {
		resource := fmt.Sprintf("r%d", i)
		op := acquire(resource, "L1")
		op.Meta = meta
		first := s.do(op)
		for what, reply := range map[string]node.Reply{
			"again":  s.do(op),
			"other":  s.do(acquire(resource, "L2")),
			"read":   s.do(read(resource)),
			"extend": s.do(extend(resource, "L1", first.Grant, longTTL)),
		} {
			if reply.Meta != meta {
				s.Errorf("%s: metadata %.40q came back as %.40q", what, meta, reply.Meta)
			}
		}
	}
}

func sideBySide(s *suite) {
	const callers = 64
	replies := make(sink, 2*callers)
	for i := range callers {
		op := acquire(fmt.Sprintf("r%d", i), "L1")
		op.Epoch = s.epoch
		s.Node.Submit(&op, i, replies)
	}
	seen, grants := make(map[int]bool), make(map[fencing.Token]bool)
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for len(seen) < callers {
		select {
		case d := <-replies:
			if seen[d.index] || grants[d.reply.Grant] || d.reply.Outcome != node.Granted {
				s.Fatalf("index %d: %+v; index seen %v, grant seen %v", d.index, d.reply, seen[d.index], grants[d.reply.Grant])
			}
			seen[d.index], grants[d.reply.Grant] = true, true
		case <-timeout.C:
			s.Fatalf("%d of %d replies", len(seen), callers)
		}
	}
}

// inOrder hands a lock from owner to owner without waiting for a reply, as a server does
// whose waiter asks right behind a release.
func inOrder(s *suite) {
	const owners = 40
	replies := make(sink, 2*owners)
	for i := range owners {
		owner := fmt.Sprintf("L%d", i)
		for k, op := range []node.Op{acquire("a", owner), retract("a", owner, "")} {
			op.Epoch = s.epoch
			s.Node.Submit(&op, 2*i+k, replies)
		}
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for range 2 * owners {
		select {
		case d := <-replies:
			if d.reply.Outcome != node.Granted {
				s.Fatalf("operation %d: %+v", d.index, d.reply)
			}
		case <-timeout.C:
			s.Fatal("not all replied")
		}
	}
}

func spoiledRecord(s *suite) {
	s.want(acquire("bad", "L1"), granted(s.base+1, longTTL))
	s.Spoil("bad")
	ops := []node.Op{
		acquire("a", "L2"), acquire("bad", "L3"), acquire("b", "L4"), read("bad"), read("a"), extend("bad", "L1", s.base+1, longTTL),
		acquire("c", "L5"),
	}
	for i := range ops {
		ops[i].Epoch = s.epoch
	}
	replies, err := SubmitBatch(s.Node, ops...)
	s.must(err)
	for i, r := range replies {
		if bad := ops[i].Resource == "bad"; bad != (r.Outcome == node.Failed) {
			s.Errorf("%s: %s", brief(ops[i]), brief(r))
		}
	}
	s.want(acquire("a", "L6"), held(s.base+2, "L2", longTTL))
}
