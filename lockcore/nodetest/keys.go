package nodetest

import (
	"errors"
	"fmt"

	"github.com/fencelock/fencelock/lockcore"
)

// attempt is an acquire under an idempotency key: the lease value is the key's.
func attempt(resource, lease, name string) lockcore.Op {
	op := acquire(resource, lease)
	op.Attempt, op.Scope = name, "scope of "+resource
	return op
}

func releaseAttempt(resource, lease, name string) lockcore.Op {
	op := release(resource, lease)
	op.Attempt = name
	return op
}

func keyTests() []test { //nolint:funlen // a table of scenarios
	return []test{
		{"an attempt takes back its own lock", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.want(releaseAttempt("a", "K1", "attempt2"), outcome(lockcore.NotHeld))
			s.want(releaseAttempt("a", "K2", "attempt1"), outcome(lockcore.NotHeld))
			s.want(releaseAttempt("a", "K1", "attempt1"), granted(s.high+1, 0))
		}},
		{"an attempt takes back nothing that another was told of", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			existing := locked(s.high+1, "K1", longTTL)
			existing.Existing, existing.Lease = true, ""
			s.want(attempt("a", "K1", "attempt2"), existing)
			s.want(releaseAttempt("a", "K1", "attempt1"), outcome(lockcore.NotHeld))
			s.want(releaseAttempt("a", "K1", "attempt1"), outcome(lockcore.NotHeld)) // twice is once
			s.want(read("a"), locked(s.high+1, "K1", longTTL))
			s.want(release("a", "K1"), granted(s.high+1, 0)) // its holder may
		}},
		{"the last attempt takes back what all were told of", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			for _, name := range []string{"attempt2", "attempt3", "attempt2"} {
				if r := s.do(attempt("a", "K1", name)); !r.Existing {
					s.Errorf("%+v, want an existing lock", r)
				}
			}
			s.want(releaseAttempt("a", "K1", "attempt2"), outcome(lockcore.NotHeld))
			s.want(releaseAttempt("a", "K1", "attempt1"), outcome(lockcore.NotHeld))
			s.want(releaseAttempt("a", "K1", "attempt3"), granted(s.high+1, 0))
			s.want(read("a"), outcome(lockcore.NotHeld))
		}},
		{"of too many attempts none takes the lock back", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt0"), granted(s.high+1, longTTL))
			for i := range lockcore.MostAttempts {
				s.do(attempt("a", "K1", fmt.Sprintf("attempt%d", i+1)))
			}
			for i := range lockcore.MostAttempts + 1 {
				s.want(releaseAttempt("a", "K1", fmt.Sprintf("attempt%d", i)), outcome(lockcore.NotHeld))
			}
			s.want(release("a", "K1"), granted(s.high+1, 0))
		}},
		{"the same attempt may come twice", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			if r := s.do(attempt("a", "K1", "attempt1")); !r.Existing {
				s.Errorf("%+v, want an existing lock", r)
			}
			s.want(releaseAttempt("a", "K1", "attempt1"), granted(s.high+1, 0))
		}},
		{"a reunion changes nothing else", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.want(confirm("a", "K1", s.high+3), granted(s.high+3, longTTL))
			s.do(attempt("a", "K1", "attempt2"))
			s.want(read("a"), locked(s.high+3, "K1", longTTL))
			s.want(extend("a", "K1", s.high+3, maxTTL), withMeta(granted(s.high+3, maxTTL), "meta of K1"))
		}},
		{"confirm and extend keep the note", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.want(confirm("a", "K1", s.high+3), granted(s.high+3, longTTL))
			s.want(extend("a", "K1", s.high+3, longTTL), withMeta(granted(s.high+3, longTTL), "meta of K1"))
			s.want(releaseAttempt("a", "K1", "attempt1"), granted(s.high+3, 0))
		}},
		{"an attempt does not take back a lock of no attempt", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "K1"), granted(s.high+1, longTTL))
			s.want(releaseAttempt("a", "K1", "attempt1"), outcome(lockcore.NotHeld))
			s.want(release("a", "K1"), granted(s.high+1, 0))
		}},
		{"a key finds no lock that it made for something else", func(s *suite) {
			s.admit(100)
			other := attempt("a", "K1", "attempt2")
			other.Scope = "scope of a and b"
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.want(other, outcome(lockcore.OtherResource))
			s.want(releaseAttempt("a", "K1", "attempt1"), granted(s.high+1, 0)) // its note stands
		}},
		{"a key cannot be used for something else while it is in use", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.want(attempt("b", "K1", "attempt2"), outcome(lockcore.OtherResource))
			s.want(read("b"), outcome(lockcore.NotHeld))
			s.want(attempt("b", "K2", "attempt3"), granted(s.high+2, longTTL))
			s.want(attempt("b", "K1", "attempt4"), held(s.high+2, "K2", longTTL))
		}},
		{"a key may be used twice for the same", func(s *suite) {
			s.admit(100)
			first, second := attempt("a", "K1", "attempt1"), attempt("b", "K1", "attempt1")
			first.Scope, second.Scope = "a and b", "a and b"
			s.want(first, granted(s.high+1, longTTL))
			s.want(second, granted(s.high+2, longTTL))
		}},
		{"a key is free again with its release", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.want(release("a", "K1"), granted(s.high+1, 0))
			s.want(attempt("b", "K1", "attempt2"), granted(s.high+2, longTTL))
			s.want(releaseAttempt("b", "K1", "attempt2"), granted(s.high+2, 0))
			s.want(attempt("c", "K1", "attempt3"), granted(s.high+3, longTTL))
		}},
		{"a key is free again when its lock has ended", func(s *suite) {
			s.admit(100)
			op := attempt("a", "K1", "attempt1")
			op.TTL = shortTTL
			s.want(op, granted(s.high+1, shortTTL))
			s.expires("a", shortTTL)
			s.want(attempt("b", "K1", "attempt2"), granted(s.high+2, longTTL))
		}},
		{"a key is in use for as long as its lock is extended", func(s *suite) {
			s.admit(100)
			op := attempt("a", "K1", "attempt1")
			op.TTL = shortTTL
			s.want(op, granted(s.high+1, shortTTL))
			if r := s.do(extend("a", "K1", s.high+1, longTTL)); r.Outcome != lockcore.Granted || r.Recreated {
				return // too slow a machine: the lock has ended
			}
			other := acquire("z", "Z")
			other.TTL = shortTTL
			s.want(other, granted(s.high+2, shortTTL))
			s.expires("z", shortTTL)
			s.want(attempt("b", "K1", "attempt2"), outcome(lockcore.OtherResource))
		}},
		{"a release leaves the next lease under its key alone", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.want(confirm("a", "K1", s.high+5), granted(s.high+5, longTTL))
			late := release("a", "K1")
			late.Token = s.high + 4
			s.want(late, outcome(lockcore.NotHeld))
			late.Hold = lockcore.OwnHold
			s.want(late, outcome(lockcore.NotHeld))
			s.want(read("a"), locked(s.high+5, "K1", longTTL))
			late.Token = s.high + 5
			s.want(late, granted(s.high+5, 0))
			// An attempt takes back what was granted above a token.
			s.want(attempt("c", "K1", "attempt2"), granted(s.high+7, longTTL))
			spare := releaseAttempt("c", "K1", "attempt2")
			spare.Token = s.high + 7
			s.want(spare, outcome(lockcore.NotHeld))
			spare.Token = s.high + 6
			s.want(spare, granted(s.high+7, 0))
			s.want(spare, outcome(lockcore.NotHeld))
			if counter := s.counter("c"); counter != s.high+7 {
				s.Errorf("the counter went to %d", counter)
			}
			// Without a key no other lease can have the value.
			s.want(acquire("b", "L1"), granted(s.high+8, longTTL)) // the release took high past the token
			late = release("b", "L1")
			late.Token = 1
			s.want(late, granted(s.high+8, 0))
		}},
		{"keys do not survive a purge", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.admit(100)
			s.want(attempt("b", "K1", "attempt2"), granted(s.high+1, longTTL))
		}},
	}
}

func holdTests() []test { //nolint:funlen // a table of scenarios
	hold := func(lease, id string, s *suite) lockcore.Op {
		return lockcore.Op{Kind: lockcore.OpHold, Resource: "a", Lease: lease, Token: s.high + 1, Hold: id}
	}
	unhold := func(lease, id string) lockcore.Op {
		op := release("a", lease)
		op.Hold = id
		return op
	}
	holds := func(s *suite, n int) lockcore.Reply {
		r := withMeta(granted(s.high+1, longTTL), "meta of L1")
		r.Holds = n
		return r
	}
	less := func(s *suite, n int) lockcore.Reply {
		r := granted(s.high+1, longTTL)
		r.Holds = n
		return r
	}
	return []test{
		{"a lease ends with its last hold", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(hold("L1", "h2", s), holds(s, 2))
			s.want(hold("L1", "h3", s), holds(s, 3))
			s.want(hold("L1", "h2", s), holds(s, 3)) // a retry
			s.want(unhold("L1", "h2"), less(s, 2))
			s.want(unhold("L1", "h2"), lockcore.Reply{Outcome: lockcore.NotHeld, Holds: 2})
			s.want(unhold("L1", lockcore.OwnHold), less(s, 1))
			s.want(read("a"), locked(s.high+1, "L1", longTTL))
			s.want(unhold("L1", "h3"), granted(s.high+1, 0))
			s.want(read("a"), outcome(lockcore.NotHeld))
		}},
		{"a release without a hold ends the lease whatever the holds", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(hold("L1", "h2", s), holds(s, 2))
			s.want(release("a", "L1"), granted(s.high+1, 0))
		}},
		{"holds need ownership", func(s *suite) {
			s.admit(100)
			s.want(hold("L1", "h2", s), outcome(lockcore.NotHeld))
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(hold("L2", "h2", s), outcome(lockcore.NotHeld))
			below := hold("L1", "h2", s)
			below.Token = s.high
			s.want(below, outcome(lockcore.NotHeld))
			s.want(unhold("L2", lockcore.OwnHold), outcome(lockcore.NotHeld))
			s.want(hold("L1", "h2", s), holds(s, 2))
		}},
		{"holds that look alike are told apart", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(hold("L1", "h", s), holds(s, 2))
			s.want(hold("L1", "hh", s), holds(s, 3))
			s.want(hold("L1", "%w+", s), holds(s, 4))
			s.want(unhold("L1", "hhh"), lockcore.Reply{Outcome: lockcore.NotHeld, Holds: 4})
			s.want(unhold("L1", "h"), less(s, 3))
			s.want(unhold("L1", "h"), lockcore.Reply{Outcome: lockcore.NotHeld, Holds: 3})
			s.want(unhold("L1", "hh"), less(s, 2))
			s.want(unhold("L1", "%w+"), less(s, 1))
		}},
		{"holds survive confirm, extend and reunion", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "L1", "attempt1"), granted(s.high+1, longTTL))
			s.want(hold("L1", "h2", s), holds(s, 2))
			s.do(attempt("a", "L1", "attempt2"))
			s.want(confirm("a", "L1", s.high+1), granted(s.high+1, longTTL))
			s.want(extend("a", "L1", s.high+1, longTTL), withMeta(granted(s.high+1, longTTL), "meta of L1"))
			s.want(unhold("L1", lockcore.OwnHold), less(s, 1))
			s.want(unhold("L1", "h2"), granted(s.high+1, 0))
		}},
		{"a lock that was made again does not know the lease's holds", func(s *suite) {
			s.admit(100)
			token := s.high + 50
			again := extend("a", "L1", token, longTTL)
			s.want(again, lockcore.Reply{Outcome: lockcore.Granted, Recreated: true, Grant: token, Remaining: longTTL})
			unsure := func(n int) lockcore.Reply {
				r := granted(token, longTTL)
				r.Holds, r.Unsure = n, true
				return r
			}
			s.want(unhold("L1", lockcore.OwnHold), unsure(1))
			s.want(unhold("L1", "h2"), unsure(1))
			add := hold("L1", "h2", s)
			add.Token = token
			two := granted(token, longTTL)
			two.Holds = 2
			s.want(add, two)
			s.want(unhold("L1", lockcore.OwnHold), unsure(2))
			s.want(unhold("L1", "h2"), unsure(1))
			late := release("a", "L1")
			late.Token = token - 1
			s.want(late, outcome(lockcore.NotHeld)) // it may be of a key
			late.Token = token
			s.want(late, granted(token, 0))
			s.want(read("a"), outcome(lockcore.NotHeld))
		}},
		{"a lock that was seen to end is made again with its holds", func(s *suite) {
			s.admit(100)
			op := acquire("a", "L1")
			op.TTL = shortTTL
			s.want(op, granted(s.high+1, shortTTL))
			if r := s.do(hold("L1", "h2", s)); r.Holds != 2 {
				return // too slow a machine: the lock has ended
			}
			s.expires("a", shortTTL)
			s.want(extend("a", "L1", s.high+1, longTTL), lockcore.Reply{Outcome: lockcore.Granted, Recreated: true, Grant: s.high + 1, Remaining: longTTL})
			s.want(unhold("L1", lockcore.OwnHold), less(s, 1))
			s.want(unhold("L1", "h2"), granted(s.high+1, 0))
		}},
		{"a lock that was seen to end without other holds has none when it is made again", func(s *suite) {
			s.admit(100)
			op := acquire("a", "L1")
			op.TTL = shortTTL
			s.want(op, granted(s.high+1, shortTTL))
			s.expires("a", shortTTL)
			s.want(extend("a", "L1", s.high+1, longTTL), lockcore.Reply{Outcome: lockcore.Granted, Recreated: true, Grant: s.high + 1, Remaining: longTTL})
			s.want(unhold("L1", lockcore.OwnHold), granted(s.high+1, 0))
		}},
		{"holds are bounded", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			for i := 2; i <= lockcore.MostHolds; i++ {
				s.want(hold("L1", fmt.Sprintf("h%d", i), s), holds(s, i))
			}
			if r := s.do(hold("L1", "more", s)); r.Outcome != lockcore.Failed || !errors.Is(r.Err, lockcore.ErrMostHolds) {
				s.Errorf("%+v", r)
			}
			s.want(hold("L1", "h2", s), holds(s, lockcore.MostHolds))
			s.want(unhold("L1", "h2"), less(s, lockcore.MostHolds-1))
			s.want(hold("L1", "more", s), holds(s, lockcore.MostHolds))
		}},
	}
}
