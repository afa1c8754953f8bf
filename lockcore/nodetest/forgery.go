package nodetest

import (
	"fmt"
	"strings"

	"github.com/fencelock/fencelock/lockcore/node"
)

// What a node keeps of one caller stands beside what it keeps of another. These
// texts look like everything that a record, a list, a key or a message of a node
// may be made of: of an owner L1 with attempts, and a ticket t1 of a server s1.
func lures() []string {
	return []string{
		"L1", " L1 ", " L1  ", " L1 - ", " L1 - . ", "1 60000 L1  ", "9007199254740991 60000 L1 = ", " attempt1 ", ",attempt1,", "=", "-", ".", " - . ",
		"l:a", "c:a", "i:K1", "iK1", "K1", "i:holds:a", "holds:a", "q:a", "s:s1", "fencelock", "a\n", "\na", "\n", "1 a", "1 a t1 s1 ",
		"t1", "t1 s1 ", " t1 s1 first", "s1", " s1 ", "\x1f", "1\x1fL1\x1f", "G 1 60000 ", "H 1 60000 60000 0 L1 ", "N", "! ", "\r\n",
		"%d+", "^(%d+)", "\x00", "\xff", "\xda\xff\xff", "\xdd\xff\xff\xff\xff", "", strings.Repeat(" L1 ", 40),
	}
}

// victim holds "a" without an idempotency key, waits for it with ticket t1, and
// holds "b" under one.
func (s *suite) victim() {
	s.Helper()
	s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
	s.want(attempt("b", "K1", "attempt1"), granted(s.high+2, longTTL))
	s.want(keep("s1", longTTL), outcome(node.Granted))
	s.want(stand("a", ticket("t1", "s1", 10)), outcome(node.Granted))
}

// unharmed: everything of the victim is as it was.
func (s *suite) unharmed() {
	s.Helper()
	s.want(read("a"), inQueue(locked(s.high+1, "L1", longTTL), ticket("t1", "s1", 10)))
	s.want(read("b"), locked(s.high+2, "K1", longTTL))
	s.want(attempt("c", "K1", "attempt2"), outcome(node.OtherResource))
	s.want(keep("s1", longTTL), node.Reply{Outcome: node.Granted, Existing: true})
}

func forgeryTests() []test { //nolint:gocognit,funlen // a table of scenarios
	return []test{
		{"metadata that looks like another's record ends nothing", func(s *suite) {
			s.admit(100)
			for i, lure := range lures() {
				resource := fmt.Sprintf("r%d", i)
				for n, meta := range []string{lure, lure + "1 60000 L1  rest", " " + lure + " L1 - . "} {
					op := acquire(resource, "V")
					op.Meta = meta
					grant := s.do(op).Grant
					for _, forged := range []node.Op{
						release(resource, "L1", grant), release(resource, "rest", grant), retract(resource, "L1", ""),
						retract(resource, "L1", "attempt1"), retract(resource, "V", "attempt1"),
						extend(resource, "L1", grant, longTTL), confirm(resource, "L1", grant+5),
					} {
						s.want(forged, outcome(node.NotHeld))
					}
					if r := s.do(read(resource)); r.Owner != "V" || r.Grant != grant || r.Meta != meta || r.TTL != longTTL {
						s.Fatalf("metadata %q, %d: %+v", meta, n, r)
					}
					s.want(confirm(resource, "V", grant+1), granted(grant+1, longTTL))
					s.want(extend(resource, "V", grant+1, longTTL), withMeta(granted(grant+1, longTTL), meta))
					for _, lock := range s.survey() {
						if lock.Resource == resource && (lock.Owner != "V" || lock.Keyed || lock.Grant != grant+1 || lock.Meta != meta) {
							s.Fatalf("metadata %q, surveyed as %+v", meta, lock)
						}
					}
					s.want(release(resource, "V", grant+1), granted(grant+1, 0))
				}
			}
		}},
		{"metadata of a keyed lock adds and strikes no attempt", func(s *suite) {
			s.admit(100)
			for i, lure := range lures() {
				resource, owner := fmt.Sprintf("r%d", i), fmt.Sprintf("V%d", i)
				op := attempt(resource, owner, "attempt7")
				op.Meta = "attempt1 " + lure + " attempt1 "
				grant := s.do(op).Grant
				s.want(retract(resource, owner, "attempt1"), outcome(node.NotHeld))
				s.want(retract(resource, owner, ""), outcome(node.NotHeld))
				if r := s.do(read(resource)); r.Owner != owner || r.Meta != op.Meta {
					s.Fatalf("%q: %+v", lure, r)
				}
				s.want(retract(resource, owner, "attempt7"), granted(grant, 0))
			}
		}},
		{"a resource's name reaches nothing of another", func(s *suite) {
			s.admit(100)
			s.victim()
			for i, lure := range lures() {
				for _, resource := range []string{lure, lure + "a", "a" + lure, "a\n" + lure, "b" + lure} {
					if resource == "" || resource == "a" || resource == "b" {
						continue
					}
					owner := fmt.Sprintf("V%d", i)
					if r := s.do(acquire(resource, owner)); r.Outcome != node.Granted || r.Existing {
						s.Fatalf("%q: %+v", resource, r)
					}
					s.want(stand(resource, ticket("t9", "s9", 1)), outcome(node.Granted))
					r := s.do(read(resource))
					if r.Owner != owner || len(r.Queue) != 1 || r.Queue[0] != ticket("t9", "s9", 1) {
						s.Fatalf("%q: %+v", resource, r)
					}
					s.want(leave(resource, ticket("t9", "s9", 1)), outcome(node.Granted))
					s.want(release(resource, owner, r.Grant), granted(r.Grant, 0))
				}
			}
			s.unharmed()
		}},
		{"the scope of a key is no key, record or other scope", func(s *suite) {
			s.admit(100)
			s.victim()
			for i, lure := range lures() {
				resource, owner := fmt.Sprintf("r%d", i), fmt.Sprintf("V%d", i)
				op := attempt(resource, owner, "attempt1")
				op.Scope = lure
				grant := s.do(op).Grant
				other := op
				other.Attempt, other.Scope = "attempt2", lure+" "
				s.want(other, outcome(node.OtherResource))
				other.Scope = "\n" + lure
				s.want(other, outcome(node.OtherResource))
				s.want(retract(resource, owner, "attempt1"), granted(grant, 0))
			}
			s.unharmed()
		}},
		{"a waiter's label is no other ticket", func(s *suite) {
			s.admit(100)
			s.victim()
			s1, s9 := listen(s, s.Node, "s1"), listen(s, s.Node, "s9")
			for i, lure := range lures() {
				resource := fmt.Sprintf("r %d\nx", i)
				odd := node.Ticket{ID: "t9", Server: "s9", Arrival: 1, Holder: lure}
				more := node.Ticket{ID: "t9", Server: "s9", Arrival: 2, Holder: " " + lure + " s1 t1"}
				s.want(keep("s9", longTTL), node.Reply{Outcome: node.Granted, Existing: i > 0})
				if r := s.do(acquire(resource, "V")); r.Outcome != node.Granted {
					s.Fatalf("%q: %+v", resource, r)
				}
				s.want(stand(resource, odd), outcome(node.Granted))
				s.want(stand(resource, more), outcome(node.Granted))
				r := s.do(read(resource))
				if len(r.Queue) != 2 || r.Queue[0] != odd || r.Queue[1] != more {
					s.Fatalf("%q: %+v", lure, r.Queue)
				}
				s.want(leave(resource, ticket("t1", "s1", 1)), outcome(node.Granted)) // not there
				s.want(release(resource, "V", r.Grant), granted(r.Grant, 0))
				s.wantWake(s9, resource, odd)
				s.want(leave(resource, odd), outcome(node.Granted))
				s.wantWake(s9, resource, more)
				s.want(leave(resource, more), outcome(node.Granted))
			}
			s.wantNoWake(s1, "s1")
			s.unharmed()
		}},
		{"an owner, attempt or ticket that is missing or has a separator is refused", func(s *suite) {
			s.admit(100)
			s.victim()
			for _, lure := range lures() {
				if (&node.Op{Owner: lure}).Validate() == nil {
					continue // it is a word
				}
				worded := ticket("t9", "s9", 1)
				badID, badServer := worded, worded
				badID.ID, badServer.Server = lure, lure
				for what, op := range map[string]node.Op{
					"owner": acquire("c", lure), "attempt": attempt("c", "V", lure), "id": wakesFor("c", "V", badID), "server": wakesFor("c", "V", badServer),
					"confirm": confirm("a", lure, s.high+1), "extend": extend("a", lure, s.high+1, longTTL), "release": release("a", lure, s.high+1),
					"retract": retract("b", "K1", lure), "enqueue": stand("a", badID), "dequeue": leave("a", badServer), "heartbeat": keep(lure, longTTL),
				} {
					if r := s.do(op); r.Outcome != node.Failed || r.Sent || r.Err == nil {
						s.Fatalf("%s %q: %+v, want a failure that was not sent", what, lure, r)
					}
				}
			}
			for what, op := range map[string]node.Op{
				"owner": acquire("c", ""), "id": stand("c", ticket("", "s9", 1)), "server": stand("c", ticket("t9", "", 1)),
				"acquire's server": wakesFor("c", "V", ticket("t9", "", 1)), "released owner": release("a", "", s.high+1), "heartbeat": keep("", longTTL),
			} {
				if r := s.do(op); r.Outcome != node.Failed || r.Sent || r.Err == nil {
					s.Fatalf("%s missing: %+v, want a failure that was not sent", what, r)
				}
			}
			s.want(read("c"), outcome(node.NotHeld))
			s.unharmed()
		}},
	}
}
