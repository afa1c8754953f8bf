package nodetest

import (
	"fmt"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

func voteTests() []test { //nolint:gocognit,funlen // a table of scenarios
	return []test{
		{"a free lock is granted once, then held", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(acquire("a", "L2"), held(s.high+1, "L1", longTTL))
			s.want(read("a"), locked(s.high+1, "L1", longTTL))
			s.want(read("b"), outcome(node.NotHeld))
		}},
		{"a duplicated acquire finds its own lock", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			again := acquire("a", "L1")
			again.Meta, again.TTL = "what a retry says does not count", maxTTL
			want := locked(s.high+1, "L1", longTTL)
			want.Existing, want.Owner = true, ""
			s.want(again, want)
			if got := s.counter("a"); got != s.high+1 {
				s.Errorf("the counter is %d: a retry counted", got)
			}
		}},
		{"grants count up over releases", func(s *suite) {
			s.admit(100)
			for i := range fencing.Token(5) {
				s.want(acquire("a", "L1"), granted(s.high+1+i, longTTL))
				s.want(retract("a", "L1", ""), granted(s.high+1+i, 0))
			}
		}},
		{"a missing counter reads as high, which is of the whole node", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(acquire("b", "L2"), granted(s.high+2, longTTL))
			s.want(retract("a", "L1", ""), granted(s.high+1, 0))
			s.want(acquire("a", "L3"), granted(s.high+2, longTTL)) // its own counter, not high
			s.want(acquire("c", "L4"), granted(s.high+3, longTTL))
			if high := s.observe().Marks.HighWater; high != s.high+3 {
				s.Errorf("high is %d, want %d", high, s.high+3)
			}
		}},
		{"a counter that has gone reads as high", counterGoes},
		{"a counter stays as long as it is used", counterStays},
		{"only the owner releases", func(s *suite) {
			s.admit(100)
			s.want(release("a", "L1", 1), outcome(node.NotHeld))
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(release("a", "L2", s.high+1), outcome(node.NotHeld))
			s.want(read("a"), locked(s.high+1, "L1", longTTL))
			s.want(release("a", "L1", s.high+1), granted(s.high+1, 0))
			s.want(release("a", "L1", s.high+1), outcome(node.NotHeld))
			s.want(read("a"), outcome(node.NotHeld))
		}},
		{"a retraction moves no counter", func(s *suite) {
			s.admit(100)
			s.want(retract("a", "L1", ""), outcome(node.NotHeld))
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(retract("a", "L2", ""), outcome(node.NotHeld))
			s.want(read("a"), locked(s.high+1, "L1", longTTL))
			above := retract("a", "L1", "")
			above.Above = s.high + 1
			s.want(above, outcome(node.NotHeld))
			above.Above = s.high
			s.want(above, granted(s.high+1, 0))
			s.want(above, outcome(node.NotHeld))
			s.want(read("a"), outcome(node.NotHeld))
			if counter, high := s.counter("a"), s.observe().Marks.HighWater; counter != s.high+1 || high != s.high+1 {
				s.Errorf("counter %d, high %d, want %d", counter, high, s.high+1)
			}
		}},
		{"a lease that was released stays gone", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(release("a", "L1", s.high+1), granted(s.high+1, 0))
			s.want(extend("a", "L1", s.high+1, longTTL), outcome(node.NotHeld))
			s.want(release("a", "L1", s.high+1), outcome(node.NotHeld)) // again changes nothing
			s.want(acquire("a", "L2"), granted(s.high+3, longTTL))
			s.want(release("a", "L1", s.high+8), outcome(node.NotHeld)) // another's lock stands
			s.want(release("a", "L2", s.high+3), granted(s.high+3, 0))
			s.want(extend("a", "L1", s.high+8, longTTL), outcome(node.NotHeld)) // and when it is gone
			s.want(acquire("b", "L3"), granted(s.high+10, longTTL))
			s.want(release("b", "L3", s.high+15), granted(s.high+10, 0)) // the token may be above the grant
			s.want(acquire("b", "L4"), granted(s.high+17, longTTL))
		}},
		{"a release-after keeps the resource taken, by no lease", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(releaseAfter("a", "L1", s.high+1, longTTL), granted(s.high+1, longTTL))
			taken := locked(s.high+1, node.NoLease("L1"), longTTL)
			taken.Meta = "meta of L1"
			s.want(read("a"), taken)
			s.want(extend("a", "L1", s.high+1, longTTL), outcome(node.NotHeld))
			s.want(confirm("a", "L1", s.high+1), outcome(node.NotHeld))
			s.want(releaseAfter("a", "L1", s.high+1, longTTL), outcome(node.NotHeld)) // again changes nothing
			s.want(release("a", "L1", s.high+1), outcome(node.NotHeld))
			taken.Outcome = node.Held
			s.want(acquire("a", "L2"), taken)
		}},
		{"a resource that a release-after kept taken is free after its time", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(releaseAfter("a", "L1", s.high+1, shortTTL), granted(s.high+1, shortTTL))
			s.expires("a", shortTTL)
			s.want(extend("a", "L1", s.high+1, longTTL), outcome(node.NotHeld))
			s.want(acquire("a", "L2"), granted(s.high+3, longTTL))
		}},
		{"a release-after never lengthens, and takes nothing that is free", func(s *suite) {
			s.admit(100)
			op := acquire("a", "L1")
			op.TTL = shortTTL
			s.want(op, granted(s.high+1, shortTTL))
			s.want(releaseAfter("a", "L1", s.high+1, longTTL), granted(s.high+1, shortTTL))
			s.want(releaseAfter("b", "L2", s.high+1, longTTL), outcome(node.NotHeld))
			s.want(read("b"), outcome(node.NotHeld))
			s.want(acquire("c", "L3"), granted(s.high+3, longTTL))
			s.want(releaseAfter("c", "L3", s.high+3, 0), granted(s.high+3, 0))
			s.want(read("c"), outcome(node.NotHeld))
		}},
		{"a lock that a release-after left is released by who reads its owner", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(releaseAfter("a", "L1", s.high+1, longTTL), granted(s.high+1, longTTL))
			s.want(release("a", node.NoLease("L1"), s.high+1), granted(s.high+1, 0))
			s.want(acquire("a", "L2"), granted(s.high+3, longTTL))
		}},
		{"a release of a lease whose lock had ended keeps it so", func(s *suite) {
			s.admit(100)
			s.want(release("a", "L1", s.high+5), outcome(node.NotHeld))
			s.want(extend("a", "L1", s.high+5, longTTL), outcome(node.NotHeld))
			if high := s.observe().Marks.HighWater; high != s.high+6 {
				s.Errorf("high is %d, want %d", high, s.high+6)
			}
		}},
		{"a lock ends by itself", func(s *suite) {
			s.admit(100)
			op := acquire("a", "L1")
			op.TTL = shortTTL
			s.want(op, granted(s.high+1, shortTTL))
			s.expires("a", shortTTL)
			s.want(retract("a", "L1", ""), outcome(node.NotHeld))
			s.want(confirm("a", "L1", s.high+1), outcome(node.NotHeld))
			s.want(acquire("a", "L2"), granted(s.high+2, longTTL))
		}},
		{"a lock does not end early", func(s *suite) {
			s.admit(100)
			if s.Advance == nil {
				return // a real clock cannot be stopped just before
			}
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.Advance(longTTL - time.Millisecond)
			s.want(acquire("a", "L2"), node.Reply{
				Outcome: node.Held, Grant: s.high + 1, Remaining: time.Millisecond, TTL: longTTL, Owner: "L1", Meta: "meta of L1",
			})
			s.Advance(time.Millisecond)
			s.want(acquire("a", "L2"), granted(s.high+2, longTTL))
		}},
		{"confirm raises counter, high and the lock's grant", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(confirm("a", "L1", s.high+5), granted(s.high+5, longTTL))
			s.want(read("a"), locked(s.high+5, "L1", longTTL))
			if counter, high := s.counter("a"), s.observe().Marks.HighWater; counter != s.high+5 || high != s.high+5 {
				s.Errorf("counter %d, high %d, want %d", counter, high, s.high+5)
			}
			s.want(retract("a", "L1", ""), granted(s.high+5, 0))
			s.want(acquire("a", "L2"), granted(s.high+6, longTTL))
			s.want(acquire("b", "L3"), granted(s.high+7, longTTL))
		}},
		{"confirm lowers nothing", func(s *suite) {
			s.admit(100)
			s.want(acquire("b", "L0"), granted(s.high+1, longTTL))
			s.want(confirm("b", "L0", s.high+9), granted(s.high+9, longTTL))
			s.want(acquire("a", "L1"), granted(s.high+10, longTTL))
			s.want(confirm("a", "L1", s.high+10), granted(s.high+10, longTTL))
			if high := s.observe().Marks.HighWater; high != s.high+10 {
				s.Errorf("high is %d, want %d", high, s.high+10)
			}
		}},
		{"confirm only while owned, and with a grant that is not above the token", func(s *suite) {
			s.admit(100)
			s.want(confirm("a", "L1", s.high+5), outcome(node.NotHeld))
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(confirm("a", "L2", s.high+5), outcome(node.NotHeld))
			s.want(confirm("a", "L1", s.high), outcome(node.NotHeld))
			s.want(confirm("a", "L1", s.high+1), granted(s.high+1, longTTL))
			if counter := s.counter("a"); counter != s.high+1 {
				s.Errorf("a refused confirm left counter %d, want %d", counter, s.high+1)
			}
		}},
		{"extend sets a later end and keeps the rest", func(s *suite) {
			s.admit(100)
			op := acquire("a", "L1")
			op.TTL = 30 * time.Second
			s.want(op, granted(s.high+1, op.TTL))
			s.want(extend("a", "L1", s.high+1, maxTTL), withMeta(granted(s.high+1, maxTTL), "meta of L1"))
			s.want(read("a"), locked(s.high+1, "L1", maxTTL))
			s.want(extend("a", "L1", s.high+7, longTTL), withMeta(granted(s.high+1, maxTTL), "meta of L1"))
			s.want(read("a"), locked(s.high+1, "L1", maxTTL)) // never an earlier one
			if counter := s.counter("a"); counter != s.high+1 {
				s.Errorf("extend moved the counter to %d", counter)
			}
		}},
		{"extend needs ownership and a grant that is not above the token", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(extend("a", "L2", s.high+9, longTTL), outcome(node.NotHeld))
			s.want(extend("a", "L1", s.high, longTTL), outcome(node.NotHeld))
			s.want(read("a"), locked(s.high+1, "L1", longTTL))
		}},
		{"extend makes an absent lock again while nobody came in between", recreate},
		{"extend revives nothing over a successor", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(retract("a", "L1", ""), granted(s.high+1, 0))
			s.want(acquire("a", "L2"), granted(s.high+2, longTTL))
			s.want(extend("a", "L1", s.high+1, longTTL), outcome(node.NotHeld))
			s.want(retract("a", "L2", ""), granted(s.high+2, 0))
			s.want(extend("a", "L1", s.high+1, longTTL), outcome(node.NotHeld))
			s.want(read("a"), outcome(node.NotHeld))
		}},
		{"extend without a counter is measured against high", func(s *suite) {
			s.admit(100)
			s.want(extend("a", "L1", s.high-1, longTTL), outcome(node.NotHeld))
			want := granted(s.high, longTTL)
			want.Recreated = true
			s.want(extend("a", "L1", s.high, longTTL), want)
			s.want(acquire("a", "L2"), node.Reply{
				Outcome: node.Held, Grant: s.high, Remaining: longTTL, TTL: longTTL, Owner: "L1",
			})
			s.want(retract("a", "L1", ""), outcome(node.NotHeld)) // of a key or not, nobody knows
			s.want(release("a", "L1", s.high), granted(s.high, 0))
			s.want(acquire("a", "L2"), granted(s.high+2, longTTL))
		}},
		{"a TTL above the recorded longest is refused", tooLong},
		{"a smaller epoch is stale, a larger one is ahead", epochs},
		{"a release counts in any epoch", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			op := release("a", "L1", s.high+1)
			op.Epoch = s.epoch + 3
			s.want(op, granted(s.high+1, 0))
		}},
		{"the last token is used, and then no more", exhaustion},
		{"large numbers are exact", largeNumbers},
		{"metadata comes back as it was", metadata},
		{"a round that has ended is not joined", func(s *suite) {
			s.admit(100)
			op := acquire("a", "L1")
			op.Deadline = time.Now().Add(-time.Second)
			if r := s.do(op); r.Outcome != node.Granted && (r.Outcome != node.Failed || r.Sent || r.Err == nil) {
				s.Errorf("%+v, want a failure that was not sent", r)
			}
		}},
		{"operations at the same time each get their own reply", sideBySide},
	}
}

func withMeta(r node.Reply, meta string) node.Reply {
	r.Meta = meta
	return r
}

func counterGoes(s *suite) {
	s.admit(100)
	if s.CounterTTL > 3*time.Second && s.Advance == nil {
		s.Fatal("the harness keeps counters for longer than anybody waits")
	}
	s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
	s.want(retract("a", "L1", ""), granted(s.high+1, 0))
	s.want(acquire("b", "L2"), granted(s.high+2, longTTL))
	s.want(retract("b", "L2", ""), granted(s.high+2, 0))
	s.passes(s.CounterTTL, func() error {
		if got := s.counter("a"); got != s.high+2 {
			return fmt.Errorf("the counter reads %d, want high, %d", got, s.high+2)
		}
		return nil
	})
	s.want(extend("a", "L1", s.high+1, longTTL), outcome(node.NotHeld))
	s.want(acquire("a", "L3"), granted(s.high+3, longTTL))
}

func counterStays(s *suite) {
	s.admit(100)
	if s.Advance == nil {
		return // a real clock cannot be kept from going on
	}
	s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
	s.want(acquire("b", "L2"), granted(s.high+2, longTTL))
	s.Advance(s.CounterTTL * 2 / 3)
	s.want(extend("a", "L1", s.high+1, longTTL), node.Reply{
		Outcome: node.Granted, Grant: s.high + 1, Remaining: longTTL, Recreated: true,
	})
	s.Advance(s.CounterTTL * 2 / 3)
	if got := s.counter("a"); got != s.high+1 {
		s.Errorf("a counter in use reads %d, want %d", got, s.high+1)
	}
	// A long lease: the counter's time begins with its last extension.
	s.want(acquire("a", "L3"), granted(s.high+2, longTTL))
	for passed := time.Duration(0); passed < 2*s.CounterTTL; passed += longTTL / 2 {
		s.want(extend("a", "L3", s.high+2, longTTL), withMeta(granted(s.high+2, longTTL), "meta of L3"))
		s.Advance(longTTL / 2)
	}
	s.want(retract("a", "L3", ""), granted(s.high+2, 0))
	s.want(acquire("c", "L4"), granted(s.high+3, longTTL))
	if got := s.counter("a"); got != s.high+2 {
		s.Errorf("the counter of a lease that ended just now reads %d, want %d", got, s.high+2)
	}
}

func recreate(s *suite) {
	s.admit(100)
	op := acquire("a", "L1")
	op.TTL = shortTTL
	s.want(op, granted(s.high+1, shortTTL))
	s.want(acquire("b", "L9"), granted(s.high+2, longTTL)) // high moves on, the counter of a does not
	s.expires("a", shortTTL)
	again := granted(s.high+1, longTTL)
	again.Recreated = true
	s.want(extend("a", "L1", s.high+1, longTTL), again)
	s.want(read("a"), node.Reply{
		Outcome: node.Granted, Grant: s.high + 1, Remaining: longTTL, TTL: longTTL, Owner: "L1",
	})
	s.want(acquire("a", "L2"), node.Reply{
		Outcome: node.Held, Grant: s.high + 1, Remaining: longTTL, TTL: longTTL, Owner: "L1",
	})
	s.want(release("a", "L1", s.high+1), granted(s.high+1, 0))
	// A node that was behind takes the token that a quorum named.
	again.Grant = s.high + 8
	s.want(extend("a", "L1", s.high+8, longTTL), again)
	s.want(confirm("a", "L1", s.high+8), granted(s.high+8, longTTL))
	s.want(release("a", "L1", s.high+8), granted(s.high+8, 0))
	s.want(acquire("a", "L2"), granted(s.high+10, longTTL))
}

func tooLong(s *suite) {
	s.admit(100)
	op := acquire("a", "L1")
	op.TTL = maxTTL + time.Millisecond
	refused := node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch}
	s.want(op, refused)
	s.want(read("a"), outcome(node.NotHeld))
	op.TTL = maxTTL
	s.want(op, granted(s.high+1, maxTTL))
	s.want(extend("a", "L1", s.high+1, maxTTL+time.Millisecond), refused)
	s.must(s.Node.RaiseMaxTTL(s.Context(), maxTTL+time.Second))
	s.want(extend("a", "L1", s.high+1, maxTTL+time.Second), withMeta(granted(s.high+1, maxTTL+time.Second), "meta of L1"))
	s.must(s.Node.RaiseMaxTTL(s.Context(), time.Second)) // lowers nothing
	if got := s.observe().Marks.MaxTTL; got != maxTTL+time.Second {
		s.Errorf("the recorded longest TTL is %s, want %s", got, maxTTL+time.Second)
	}
}

func epochs(s *suite) {
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
	ops := map[string]node.Op{
		"acquire":        acquire("a", "L1"),
		"another's":      acquire("a", "L2"),
		"acquire free":   acquire("b", "L2"),
		"confirm":        confirm("a", "L1", s.high+5),
		"extend":         extend("a", "L1", s.high+1, longTTL),
		"extend too far": extend("a", "L1", s.high+1, 10*maxTTL),
		"extend absent":  extend("c", "L1", fencing.MaxToken, longTTL),
		"stand":          {Kind: node.OpEnqueue, Resource: "a", Ticket: node.Ticket{ID: "t1", Server: "s1", Arrival: 1}},
	}
	for name, op := range ops {
		op.Epoch = s.epoch - 1
		if diff := Diff(op.Kind, s.do(op), node.Reply{Outcome: node.StaleEpoch, Epoch: s.epoch}); diff != "" {
			s.Errorf("%s in a smaller epoch: %s", name, diff)
		}
		op.Epoch = s.epoch + 1
		if diff := Diff(op.Kind, s.do(op), node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch}); diff != "" {
			s.Errorf("%s in a larger epoch: %s", name, diff)
		}
	}
	s.want(read("a"), locked(s.high+1, "L1", longTTL)) // none of them did anything
	s.want(read("b"), outcome(node.NotHeld))
	s.want(read("c"), outcome(node.NotHeld))
	if counter := s.counter("a"); counter != s.high+1 {
		s.Errorf("the counter is %d, want %d", counter, s.high+1)
	}
}

func exhaustion(s *suite) {
	s.admit(fencing.MaxToken - 2)
	s.want(acquire("a", "L1"), granted(fencing.MaxToken-1, longTTL))
	s.want(attempt("b", "L2", "attempt1"), granted(fencing.MaxToken, longTTL))
	s.want(acquire("c", "L3"), outcome(node.Exhausted))
	s.want(read("c"), outcome(node.NotHeld))
	s.want(extend("c", "L3", fencing.MaxToken-1, longTTL), outcome(node.NotHeld)) // the counter is still missing
	if counter := s.counter("c"); counter != fencing.MaxToken {
		s.Errorf("a refused acquire left the counter at %d", counter)
	}
	s.want(attempt("b", "L2", "attempt2"), node.Reply{
		Outcome: node.Granted, Existing: true, Grant: fencing.MaxToken, Remaining: longTTL, TTL: longTTL, Meta: "meta of L2",
	})
	s.want(extend("b", "L2", fencing.MaxToken, longTTL), withMeta(granted(fencing.MaxToken, longTTL), "meta of L2"))
	s.want(release("b", "L2", fencing.MaxToken), granted(fencing.MaxToken, 0))
	s.want(release("c", "L3", fencing.MaxToken), outcome(node.NotHeld))
	s.want(acquire("b", "L3"), outcome(node.Exhausted))
	if counter := s.counter("b"); counter != fencing.MaxToken {
		s.Errorf("a refused acquire left the counter at %d", counter)
	}
	if high := s.observe().Marks.HighWater; high != fencing.MaxToken {
		s.Errorf("high is %d, want %d", high, fencing.MaxToken)
	}
}

// largeNumbers: what passes through an IEEE 754 double, or through a short
// decimal text, comes back changed.
func largeNumbers(s *suite) {
	const large = 1<<53 - 10_001
	s.admit(large)
	if s.high != large {
		s.Fatalf("high is %d, want %d", s.high, fencing.Token(large))
	}
	s.want(acquire("a", "L1"), granted(large+1, longTTL))
	s.want(confirm("a", "L1", large+778), granted(large+778, longTTL))
	s.want(read("a"), locked(large+778, "L1", longTTL))
	s.want(extend("a", "L1", large+777, longTTL), outcome(node.NotHeld))
	s.want(extend("a", "L1", large+778, longTTL), withMeta(granted(large+778, longTTL), "meta of L1"))
	if counter := s.counter("a"); counter != large+778 {
		s.Errorf("the counter is %d, want %d", counter, fencing.Token(large+778))
	}
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
	s.admit(100)
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
	s.admit(100)
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
