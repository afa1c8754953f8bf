package nodetest

import (
	"fmt"

	"github.com/fencelock/fencelock/lockcore/node"
)

// attempt is an acquire under an idempotency key: the owner is the key's.
func attempt(resource, owner, name string) node.Op {
	op := acquire(resource, owner)
	op.Attempt, op.Scope = name, "scope of "+resource
	return op
}

func keyTests() []test { //nolint:funlen // a table of scenarios
	return []test{
		{"an attempt retracts its own lock", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.want(retract("a", "K1", "attempt2"), outcome(node.NotHeld))
			s.want(retract("a", "K2", "attempt1"), outcome(node.NotHeld))
			s.want(retract("a", "K1", "attempt1"), granted(s.high+1, 0))
		}},
		{"an attempt retracts nothing that another was told of", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			existing := locked(s.high+1, "K1", longTTL)
			existing.Existing, existing.Owner = true, ""
			s.want(attempt("a", "K1", "attempt2"), existing)
			s.want(retract("a", "K1", "attempt1"), outcome(node.NotHeld))
			s.want(retract("a", "K1", "attempt1"), outcome(node.NotHeld)) // twice is once
			s.want(read("a"), locked(s.high+1, "K1", longTTL))
			s.want(release("a", "K1", s.high+1), granted(s.high+1, 0)) // its holder may
		}},
		{"the last attempt retracts what all were told of", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			for _, name := range []string{"attempt2", "attempt3", "attempt2"} {
				if r := s.do(attempt("a", "K1", name)); !r.Existing {
					s.Errorf("%+v, want an existing lock", r)
				}
			}
			s.want(retract("a", "K1", "attempt2"), outcome(node.NotHeld))
			s.want(retract("a", "K1", "attempt1"), outcome(node.NotHeld))
			s.want(retract("a", "K1", "attempt3"), granted(s.high+1, 0))
			s.want(read("a"), outcome(node.NotHeld))
		}},
		{"of too many attempts none takes the lock back", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt0"), granted(s.high+1, longTTL))
			for i := range node.MaxAttempts {
				s.do(attempt("a", "K1", fmt.Sprintf("attempt%d", i+1)))
			}
			for i := range node.MaxAttempts + 1 {
				s.want(retract("a", "K1", fmt.Sprintf("attempt%d", i)), outcome(node.NotHeld))
			}
			s.want(release("a", "K1", s.high+1), granted(s.high+1, 0))
		}},
		{"the same attempt may come twice", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			if r := s.do(attempt("a", "K1", "attempt1")); !r.Existing {
				s.Errorf("%+v, want an existing lock", r)
			}
			s.want(retract("a", "K1", "attempt1"), granted(s.high+1, 0))
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
			s.want(retract("a", "K1", "attempt1"), granted(s.high+3, 0))
		}},
		{"an attempt does not retract a lock of no attempt", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "K1"), granted(s.high+1, longTTL))
			s.want(retract("a", "K1", "attempt1"), outcome(node.NotHeld))
			s.want(attempt("b", "K2", "attempt1"), granted(s.high+2, longTTL))
			s.want(retract("b", "K2", ""), outcome(node.NotHeld)) // nor the other way round
			s.want(release("a", "K1", s.high+1), granted(s.high+1, 0))
		}},
		{"a key finds no lock that it made for something else", func(s *suite) {
			s.admit(100)
			other := attempt("a", "K1", "attempt2")
			other.Scope = "scope of a and b"
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.want(other, outcome(node.OtherResource))
			s.want(retract("a", "K1", "attempt1"), granted(s.high+1, 0)) // its note stands
		}},
		{"a key cannot be used for something else while it is in use", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.want(attempt("b", "K1", "attempt2"), outcome(node.OtherResource))
			s.want(read("b"), outcome(node.NotHeld))
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
			s.want(release("a", "K1", s.high+1), granted(s.high+1, 0))
			s.want(attempt("b", "K1", "attempt2"), granted(s.high+3, longTTL)) // the release took high past the token
			s.want(retract("b", "K1", "attempt2"), granted(s.high+3, 0))
			s.want(attempt("c", "K1", "attempt3"), granted(s.high+4, longTTL))
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
			if r := s.do(extend("a", "K1", s.high+1, longTTL)); r.Outcome != node.Granted || r.Recreated {
				return // too slow a machine: the lock has ended
			}
			other := acquire("z", "Z")
			other.TTL = shortTTL
			s.want(other, granted(s.high+2, shortTTL))
			s.expires("z", shortTTL)
			s.want(attempt("b", "K1", "attempt2"), outcome(node.OtherResource))
		}},
		{"a release leaves the next lease under its key alone", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.want(confirm("a", "K1", s.high+5), granted(s.high+5, longTTL))
			s.want(release("a", "K1", s.high+4), outcome(node.NotHeld))
			s.want(read("a"), locked(s.high+5, "K1", longTTL))
			s.want(release("a", "K1", s.high+5), granted(s.high+5, 0))
			// An attempt retracts what was granted above a token.
			s.want(attempt("c", "K1", "attempt2"), granted(s.high+7, longTTL))
			spare := retract("c", "K1", "attempt2")
			spare.Above = s.high + 7
			s.want(spare, outcome(node.NotHeld))
			spare.Above = s.high + 6
			s.want(spare, granted(s.high+7, 0))
			s.want(spare, outcome(node.NotHeld))
			if counter := s.counter("c"); counter != s.high+7 {
				s.Errorf("the counter went to %d", counter)
			}
			// Without a key no other lease can have the value.
			s.want(acquire("b", "L1"), granted(s.high+8, longTTL)) // the release took high past the token
			s.want(release("b", "L1", 1), granted(s.high+8, 0))
		}},
		{"keys do not survive a purge", func(s *suite) {
			s.admit(100)
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.admit(100)
			s.want(attempt("b", "K1", "attempt2"), granted(s.high+1, longTTL))
		}},
	}
}
