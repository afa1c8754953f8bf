package nodetest

import (
	"fmt"
	"strings"

	"github.com/fencelock/fencelock/lockcore/node"
)

// A node stores the texts of one caller beside those of another. These texts look like
// everything that a record, a list, a key or a message of a node may consist of: of an
// owner L1 with attempts, and a ticket t1 of a server s1.
func forgeries() []string {
	return []string{
		"L1", " L1 ", " L1  ", " L1 - ", " L1 - . ", "1 60000 L1  ", "9007199254740991 60000 L1 = ", " attempt1 ", ",attempt1,", "=", "-", ".", " - . ",
		"l:a", "c:a", "i:K1", "iK1", "K1", "i:holds:a", "holds:a", "q:a", "s:s1", "fencelock", "a\n", "\na", "\n", "1 a", "1 a t1 s1 ",
		"t1", "t1 s1 ", " t1 s1 first", "s1", " s1 ", "\x1f", "1\x1fL1\x1f", "G 1 60000 ", "H 1 60000 60000 0 L1 ", "N", "! ", "\r\n",
		"%d+", "^(%d+)", "\x00", "\xff", "\xda\xff\xff", "\xdd\xff\xff\xff\xff", "", strings.Repeat(" L1 ", 40),
	}
}

// victim holds "a" without an idempotency key, holds "b" under one, and waits for "a"
// with ticket t1.
func (s *suite) victim() {
	s.Helper()
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.want(attempt("b", "K1", "attempt1"), granted(s.base+2, longTTL))
	s.want(heartbeat("s1", longTTL), outcome(node.Granted))
	s.want(enqueue("a", ticket("t1", "s1", 10)), outcome(node.Granted))
}

// unharmed checks that everything of the victim is as victim left it.
func (s *suite) unharmed() {
	s.Helper()
	s.want(read("a"), inQueue(locked(s.base+1, "L1", longTTL), ticket("t1", "s1", 10)))
	s.want(read("b"), locked(s.base+2, "K1", longTTL))
	s.want(attempt("c", "K1", "attempt2"), outcome(node.OtherResource))
	s.want(heartbeat("s1", longTTL), node.Reply{Outcome: node.Granted, Existing: true})
}

func forgeryTests() []test {
	return []test{
		{"metadata that look like another's record end nothing", forgedMetadata},
		{"metadata of a keyed lock add and remove no attempt", forgedKeyedMetadata},
		{"a resource's name reaches nothing of another", forgedResources},
		{"the scope of a key is no key, record or other scope", forgedScopes},
		{"a waiter's label is no other ticket", forgedLabels},
		{"an owner, attempt or ticket that is missing or has a separator is refused", forgedWords},
	}
}

func forgedMetadata(s *suite) {
	for i, forged := range forgeries() {
		for _, meta := range []string{forged, forged + "1 60000 L1  rest", " " + forged + " L1 - . "} {
			s.isOnlyMetadata(fmt.Sprintf("r%d", i), meta)
		}
	}
}

// isOnlyMetadata checks that nothing is done to V's lock for any other owner or attempt
// than its own, and that the metadata come back as they were.
func (s *suite) isOnlyMetadata(resource, meta string) {
	s.Helper()
	op := acquire(resource, "V")
	op.Meta = meta
	grant := s.do(op).Grant
	for _, op := range []node.Op{
		release(resource, "L1", grant), release(resource, "rest", grant), retract(resource, "L1", ""),
		retract(resource, "L1", "attempt1"), retract(resource, "V", "attempt1"),
		extend(resource, "L1", grant, longTTL), confirm(resource, "L1", grant+5),
	} {
		s.want(op, outcome(node.NotHeld))
	}
	s.want(read(resource), withMeta(locked(grant, "V", longTTL), meta))
	s.want(confirm(resource, "V", grant+1), granted(grant+1, longTTL))
	s.want(extend(resource, "V", grant+1, longTTL), withMeta(granted(grant+1, longTTL), meta))
	for _, lock := range s.survey() {
		if lock.Resource == resource && (lock.Owner != "V" || lock.Keyed || lock.Grant != grant+1 || lock.Meta != meta) {
			s.Fatalf("metadata %q, surveyed as %+v", meta, lock)
		}
	}
	s.want(release(resource, "V", grant+1), granted(grant+1, 0))
}

func forgedKeyedMetadata(s *suite) {
	for i, forged := range forgeries() {
		resource, owner := fmt.Sprintf("r%d", i), fmt.Sprintf("V%d", i)
		op := attempt(resource, owner, "attempt7")
		op.Meta = "attempt1 " + forged + " attempt1 "
		grant := s.do(op).Grant
		s.want(retract(resource, owner, "attempt1"), outcome(node.NotHeld))
		s.want(retract(resource, owner, ""), outcome(node.NotHeld))
		if r := s.do(read(resource)); r.Owner != owner || r.Meta != op.Meta {
			s.Fatalf("%q: %+v", forged, r)
		}
		s.want(retract(resource, owner, "attempt7"), granted(grant, 0))
	}
}

func forgedResources(s *suite) {
	s.victim()
	for i, forged := range forgeries() {
		for _, resource := range []string{forged, forged + "a", "a" + forged, "a\n" + forged, "b" + forged} {
			if resource == "" || resource == "a" || resource == "b" {
				continue
			}
			owner := fmt.Sprintf("V%d", i)
			if r := s.do(acquire(resource, owner)); r.Outcome != node.Granted || r.Existing {
				s.Fatalf("%q: %+v", resource, r)
			}
			s.want(enqueue(resource, ticket("t9", "s9", 1)), outcome(node.Granted))
			r := s.do(read(resource))
			if r.Owner != owner || len(r.Queue) != 1 || r.Queue[0] != ticket("t9", "s9", 1) {
				s.Fatalf("%q: %+v", resource, r)
			}
			s.want(dequeue(resource, ticket("t9", "s9", 1)), outcome(node.Granted))
			s.want(release(resource, owner, r.Grant), granted(r.Grant, 0))
		}
	}
	s.unharmed()
}

func forgedScopes(s *suite) {
	s.victim()
	for i, forged := range forgeries() {
		resource, owner := fmt.Sprintf("r%d", i), fmt.Sprintf("V%d", i)
		op := attempt(resource, owner, "attempt1")
		op.Scope = forged
		grant := s.do(op).Grant
		other := op
		other.Attempt, other.Scope = "attempt2", forged+" "
		s.want(other, outcome(node.OtherResource))
		other.Scope = "\n" + forged
		s.want(other, outcome(node.OtherResource))
		s.want(retract(resource, owner, "attempt1"), granted(grant, 0))
	}
	s.unharmed()
}

func forgedLabels(s *suite) {
	s.victim()
	s1, s9 := listen(s, s.Node, "s1"), listen(s, s.Node, "s9")
	for i, forged := range forgeries() {
		resource := fmt.Sprintf("r %d\nx", i)
		odd := node.Ticket{ID: "t9", Server: "s9", Arrival: 1, Holder: forged}
		more := node.Ticket{ID: "t9", Server: "s9", Arrival: 2, Holder: " " + forged + " s1 t1"}
		s.want(heartbeat("s9", longTTL), node.Reply{Outcome: node.Granted, Existing: i > 0})
		if r := s.do(acquire(resource, "V")); r.Outcome != node.Granted {
			s.Fatalf("%q: %+v", resource, r)
		}
		s.want(enqueue(resource, odd), outcome(node.Granted))
		s.want(enqueue(resource, more), outcome(node.Granted))
		r := s.do(read(resource))
		if len(r.Queue) != 2 || r.Queue[0] != odd || r.Queue[1] != more {
			s.Fatalf("%q: %+v", forged, r.Queue)
		}
		s.want(dequeue(resource, ticket("t1", "s1", 1)), outcome(node.Granted)) // not there
		s.want(release(resource, "V", r.Grant), granted(r.Grant, 0))
		s.wantWake(s9, resource, odd)
		s.want(dequeue(resource, odd), outcome(node.Granted))
		s.wantWake(s9, resource, more)
		s.want(dequeue(resource, more), outcome(node.Granted))
	}
	s.wantNoWake(s1, "s1")
	s.unharmed()
}

func forgedWords(s *suite) {
	s.victim()
	for _, forged := range forgeries() {
		if (&node.Op{Owner: forged}).Validate() == nil {
			continue // it is a valid word
		}
		worded := ticket("t9", "s9", 1)
		badID, badServer := worded, worded
		badID.ID, badServer.Server = forged, forged
		for what, op := range map[string]node.Op{
			"owner": acquire("c", forged), "attempt": attempt("c", "V", forged), "id": acquireWith("c", "V", badID), "server": acquireWith("c", "V", badServer),
			"confirm": confirm("a", forged, s.base+1), "extend": extend("a", forged, s.base+1, longTTL), "release": release("a", forged, s.base+1),
			"retract": retract("b", "K1", forged), "enqueue": enqueue("a", badID), "dequeue": dequeue("a", badServer), "forget": forget("a", badServer), "heartbeat": heartbeat(forged, longTTL),
		} {
			if r := s.do(op); r.Outcome != node.Failed || r.Sent || r.Err == nil {
				s.Fatalf("%s %q: %+v, want a failure that was not sent", what, forged, r)
			}
		}
	}
	for what, op := range map[string]node.Op{
		"owner": acquire("c", ""), "id": enqueue("c", ticket("", "s9", 1)), "server": enqueue("c", ticket("t9", "", 1)),
		"acquire's server": acquireWith("c", "V", ticket("t9", "", 1)), "released owner": release("a", "", s.base+1), "heartbeat": heartbeat("", longTTL),
	} {
		if r := s.do(op); r.Outcome != node.Failed || r.Sent || r.Err == nil {
			s.Fatalf("%s missing: %+v, want a failure that was not sent", what, r)
		}
	}
	s.want(read("c"), outcome(node.NotHeld))
	s.unharmed()
}
