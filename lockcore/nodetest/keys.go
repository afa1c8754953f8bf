package nodetest

import (
	"fmt"

	"github.com/fencelock/fencelock/lockcore/node"
)

// attempt is an acquire under an idempotency key, whose owner is the key's.
func attempt(resource, owner, name string) node.Op {
	op := acquire(resource, owner)
	op.Attempt, op.Scope = name, "scope of "+resource
	return op
}

func keyTests() []test { //nolint:funlen // a table of scenarios
	return []test{
		{"an attempt retracts its own lock", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			s.want(retract("a", "K1", "attempt2"), outcome(node.NotHeld))
			s.want(retract("a", "K2", "attempt1"), outcome(node.NotHeld))
			s.want(retract("a", "K1", "attempt1"), granted(s.base+1, 0))
		}},
		{"an attempt does not retract a lock that another found", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			s.want(attempt("a", "K1", "attempt2"), existing(s.base+1, "K1"))
			s.want(retract("a", "K1", "attempt1"), outcome(node.NotHeld))
			s.want(retract("a", "K1", "attempt1"), outcome(node.NotHeld)) // a repetition changes nothing
			s.want(read("a"), locked(s.base+1, "K1", longTTL))
			s.want(release("a", "K1", s.base+1), granted(s.base+1, 0)) // its holder can
		}},
		{"the last attempt retracts the lock that all found", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			for _, name := range []string{"attempt2", "attempt3", "attempt2"} {
				if r := s.do(attempt("a", "K1", name)); !r.Existing {
					s.Errorf("%+v, want an existing lock", r)
				}
			}
			s.want(retract("a", "K1", "attempt2"), outcome(node.NotHeld))
			s.want(retract("a", "K1", "attempt1"), outcome(node.NotHeld))
			s.want(retract("a", "K1", "attempt3"), granted(s.base+1, 0))
			s.want(read("a"), outcome(node.NotHeld))
		}},
		{"after too many attempts no retraction deletes the lock", func(s *suite) {
			s.want(attempt("a", "K1", "attempt0"), granted(s.base+1, longTTL))
			for i := range node.MaxAttempts {
				s.do(attempt("a", "K1", fmt.Sprintf("attempt%d", i+1)))
			}
			for i := range node.MaxAttempts + 1 {
				s.want(retract("a", "K1", fmt.Sprintf("attempt%d", i)), outcome(node.NotHeld))
			}
			s.want(release("a", "K1", s.base+1), granted(s.base+1, 0))
		}},
		{"no attempt retracts a lock on which a lease counts", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			s.want(extend("a", "K1", s.base+5, longTTL/2), withMeta(granted(s.base+5, longTTL), "meta of K1"))
			s.want(retract("a", "K1", "attempt1"), outcome(node.NotHeld))
			s.want(release("a", "K1", s.base+3), outcome(node.NotHeld)) // of the key's lease before
			s.want(read("a"), locked(s.base+5, "K1", longTTL))
			s.want(release("a", "K1", s.base+5), granted(s.base+5, 0))
		}},
		{"an attempt retracts what it extended", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			longer := extend("a", "K1", s.base+1, maxTTL)
			longer.Attempt = "attempt1"
			s.want(longer, withMeta(granted(s.base+1, maxTTL), "meta of K1"))
			s.want(retract("a", "K1", "attempt1"), granted(s.base+1, 0))
		}},
		{"the same attempt may come twice", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			if r := s.do(attempt("a", "K1", "attempt1")); !r.Existing {
				s.Errorf("%+v, want an existing lock", r)
			}
			s.want(retract("a", "K1", "attempt1"), granted(s.base+1, 0))
		}},
		{"an attempt that finds the lock changes nothing else", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			s.want(confirm("a", "K1", s.base+3), granted(s.base+3, longTTL))
			s.do(attempt("a", "K1", "attempt2"))
			s.want(read("a"), locked(s.base+3, "K1", longTTL))
			s.want(extend("a", "K1", s.base+3, maxTTL), withMeta(granted(s.base+3, maxTTL), "meta of K1"))
		}},
		{"confirm keeps the recorded attempts", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			s.want(confirm("a", "K1", s.base+3), granted(s.base+3, longTTL))
			s.want(retract("a", "K1", "attempt1"), granted(s.base+3, 0))
		}},
		{"an attempt does not retract a lock without attempts", func(s *suite) {
			s.want(acquire("a", "K1"), granted(s.base+1, longTTL))
			s.want(retract("a", "K1", "attempt1"), outcome(node.NotHeld))
			s.want(attempt("b", "K2", "attempt1"), granted(s.base+2, longTTL))
			s.want(retract("b", "K2", ""), outcome(node.NotHeld)) // nor the other way round
			s.want(release("a", "K1", s.base+1), granted(s.base+1, 0))
		}},
		{"a key does not find a lock of another scope", func(s *suite) {
			other := attempt("a", "K1", "attempt2")
			other.Scope = "scope of a and b"
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			s.want(other, outcome(node.OtherResource))
			s.want(retract("a", "K1", "attempt1"), granted(s.base+1, 0)) // the attempt is still recorded
		}},
		{"a key in use is refused for another resource", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			s.want(attempt("b", "K1", "attempt2"), outcome(node.OtherResource))
			s.want(read("b"), outcome(node.NotHeld))
			s.want(attempt("b", "K2", "attempt3"), granted(s.base+2, longTTL))
			s.want(attempt("b", "K1", "attempt4"), held(s.base+2, "K2", longTTL))
		}},
		{"a key may be used twice in the same scope", func(s *suite) {
			first, second := attempt("a", "K1", "attempt1"), attempt("b", "K1", "attempt1")
			first.Scope, second.Scope = "a and b", "a and b"
			s.want(first, granted(s.base+1, longTTL))
			s.want(second, granted(s.base+2, longTTL))
		}},
		{"a release frees the key", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			s.want(release("a", "K1", s.base+1), granted(s.base+1, 0))
			s.want(attempt("b", "K1", "attempt2"), granted(s.base+3, longTTL)) // the release took the high-water mark past the token
			s.want(retract("b", "K1", "attempt2"), granted(s.base+3, 0))
			s.want(attempt("c", "K1", "attempt3"), granted(s.base+4, longTTL))
		}},
		{"an expiry frees the key", func(s *suite) {
			op := attempt("a", "K1", "attempt1")
			op.TTL = shortTTL
			s.want(op, granted(s.base+1, shortTTL))
			s.expires("a", shortTTL)
			s.want(attempt("b", "K1", "attempt2"), granted(s.base+2, longTTL))
		}},
		{"an extend keeps the key in use", func(s *suite) {
			op := attempt("a", "K1", "attempt1")
			op.TTL = shortTTL
			s.want(op, granted(s.base+1, shortTTL))
			if r := s.do(extend("a", "K1", s.base+1, longTTL)); r.Outcome != node.Granted || r.Recreated {
				return // the machine is too slow: the lock has expired
			}
			s.want(acquireFor("z", "Z", shortTTL), granted(s.base+2, shortTTL))
			s.expires("z", shortTTL)
			s.want(attempt("b", "K1", "attempt2"), outcome(node.OtherResource))
		}},
		{"a release leaves the next lease under its key", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			s.want(confirm("a", "K1", s.base+5), granted(s.base+5, longTTL))
			s.want(release("a", "K1", s.base+4), outcome(node.NotHeld))
			s.want(read("a"), locked(s.base+5, "K1", longTTL))
			s.want(release("a", "K1", s.base+5), granted(s.base+5, 0))
			// A retraction above a token leaves a lock that was granted at most that.
			s.want(attempt("c", "K1", "attempt2"), granted(s.base+7, longTTL))
			s.want(retractAbove("c", "K1", "attempt2", s.base+7), outcome(node.NotHeld))
			s.want(retractAbove("c", "K1", "attempt2", s.base+6), granted(s.base+7, 0))
			s.want(retractAbove("c", "K1", "attempt2", s.base+6), outcome(node.NotHeld))
			s.wantCounter("c", s.base+7)
			// Without a key no other lease can have the same owner.
			s.want(acquire("b", "L1"), granted(s.base+8, longTTL)) // the release took the high-water mark past the token
			s.want(release("b", "L1", 1), granted(s.base+8, 0))
		}},
		{"keys do not survive a purge", func(s *suite) {
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			s.admit(100)
			s.want(attempt("b", "K1", "attempt2"), granted(s.base+1, longTTL))
		}},
	}
}
