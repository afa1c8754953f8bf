package nodetest

import (
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// State is what a node may hold when another version of the program takes it over.
// A node's test compares what Write leaves in its storage with a stored fixture, and has
// Read look at a node that was loaded with the fixture.
type State struct {
	Name string
	// Write brings a node from the state before to this one: the first from nothing.
	Write func(t *testing.T, n node.Node)
	// Read uses a node as every version has to be able to.
	Read func(t *testing.T, n node.Node)
}

// States are the states, which hold every kind of row.
func States() []State {
	return []State{
		{"quarantined", writeQuarantined, readQuarantined},
		{"admitted", writeAdmitted, readAdmitted},
		{"staged", writeStaged, readStaged},
	}
}

const (
	storedNote  = "since noon"
	storedEpoch = node.Epoch(1000)
	storedFloor = fencing.Token(1_000_000)
	anyMeta     = "meta of all\x1fkinds ü" // texts of callers may hold anything but what ends a line
)

func storedSecrets() node.Secrets {
	return node.NewSecrets(storedEpoch, [node.MinSecretBytes]byte{1, 2, 3})
}

func storedSuite(t *testing.T, n node.Node, epoch node.Epoch) *suite {
	t.Helper()
	s := &suite{T: t, Harness: Harness{Node: n}, cluster: node.Cluster{Nodes: 1, Hash: "c0ffee"}, base: storedFloor, epoch: epoch, began: time.Now().Add(-rounding)}
	n.Join(s.cluster)
	return s
}

func (s *suite) storedAdmission(epoch node.Epoch, note string) node.Admission {
	return node.Admission{
		Incarnation: s.observe().Incarnation, Note: note, Epoch: epoch, Bootstrapped: epoch, Cluster: s.cluster,
		Floor: storedFloor, MaxTTL: maxTTL, Secrets: storedSecrets(),
	}
}

func writeQuarantined(t *testing.T, n node.Node) {
	t.Helper()
	s := storedSuite(t, n, 0)
	s.must(n.Quarantine(t.Context(), storedNote))
}

func readQuarantined(t *testing.T, n node.Node) {
	t.Helper()
	s := storedSuite(t, n, storedEpoch)
	if seen := s.observe(); !seen.Empty || seen.Admitted || seen.Note != storedNote {
		t.Errorf("observed %+v", seen)
	}
	s.must(n.Quarantine(t.Context(), "another"))
	s.wantNote(storedNote)
	a := s.storedAdmission(storedEpoch, storedNote)
	s.must(n.Stage(t.Context(), a))
	s.must(n.Admit(t.Context(), a))
	s.want(acquire("a", "L1"), granted(storedFloor+1, longTTL))
}

// The tickets of the queue, in the order of their arrival.
func storedTickets() (keyed, plain, bare node.Ticket) {
	keyed, plain = ticket("t2", "s2", 10), ticket("t1", "s1", 20)
	keyed.Keyed = true
	return keyed, plain, node.Ticket{ID: "t-_3", Server: "s1", Arrival: 30}
}

func writeAdmitted(t *testing.T, n node.Node) {
	t.Helper()
	s := storedSuite(t, n, storedEpoch)
	a := s.storedAdmission(storedEpoch, storedNote)
	s.must(n.Stage(t.Context(), a))
	s.must(n.Load(t.Context(), a, []node.CarriedLock{
		{Resource: "carried", Counter: storedFloor + 50, Owner: "L0", Grant: storedFloor + 40, Remaining: longTTL, TTL: longTTL, Meta: anyMeta, Keyed: true},
		{Resource: "counted", Counter: storedFloor + 60},
	}))
	s.must(n.Admit(t.Context(), a))
	keyed, plain, bare := storedTickets()
	for _, op := range []node.Op{
		heartbeat("s1", longTTL), heartbeat("s2", longTTL), heartbeat("s3", longTTL),
		acquire("plain", "L1"),
		attempt("keyed", "K1", "attempt1"), attempt("keyed", "K1", "attempt2"),
		acquire("confirmed", "L2"), confirm("confirmed", "L2", storedFloor+100),
		acquire("extended", "L3"), extend("extended", "L3", storedFloor+101, maxTTL),
		acquire("kept", "L4"), releaseAfter("kept", "L4", storedFloor+102, longTTL),
		acquire("freed", "L5"), release("freed", "L5", storedFloor+104),
		extend("created again", "L6", storedFloor+200, longTTL),
		acquire("waited for", "L7"), enqueue("waited for", bare),
	} {
		if r := s.do(op); r.Outcome != node.Granted {
			t.Fatalf("%+v: %+v", op, r)
		}
	}
	former := keyed
	former.Server = "s3"
	for _, op := range []node.Op{
		acquireWith("waited for", "L8", plain), acquireWith("waited for", "L9", former), acquireWith("waited for", "L9", keyed),
	} {
		if r := s.do(op); r.Outcome != node.Held {
			t.Fatalf("%+v: %+v", op, r)
		}
	}
	_, err := n.InstallEpoch(t.Context(), storedEpoch+1)
	s.must(err)
}

// readAdmitted: leases can be looked at, listed, extended and released; tokens continue
// above; queues keep their order.
func readAdmitted(t *testing.T, n node.Node) {
	t.Helper()
	s := storedSuite(t, n, storedEpoch+1)
	const high = storedFloor + 106
	incarnation := s.observe().Incarnation
	s.wantObserved(node.Observation{
		Incarnation: incarnation, Admitted: true, Cluster: s.cluster, Epoch: s.epoch,
		Marks: node.Marks{HighWater: high, MaxTTL: maxTTL, Bootstrapped: storedEpoch, Secrets: storedSecrets()},
	})
	s.readStoredLists(high)
	s.readStoredLocks(high)
	s.readStoredQueue(high)
}

func (s *suite) readStoredLists(high fencing.Token) {
	s.Helper()
	var names []string
	for cursor, more := "", true; more; more = cursor != "" {
		locks, next, err := s.Node.Survey(s.Context(), s.epoch, cursor)
		s.must(err)
		for _, l := range locks {
			names = append(names, l.Resource)
			if keyed := l.Resource == "carried" || l.Resource == "keyed" || l.Resource == "created again"; l.Keyed != keyed {
				s.Errorf("%s: keyed is %t", l.Resource, l.Keyed)
			}
		}
		cursor = next
	}
	slices.Sort(names)
	want := []string{"carried", "confirmed", "created again", "extended", "kept", "keyed", "plain", "waited for"}
	if !slices.Equal(names, want) {
		s.Errorf("%q are locked, want %q", names, want)
	}
	for resource, counter := range map[string]fencing.Token{
		"carried": storedFloor + 50, "counted": storedFloor + 60, "plain": storedFloor + 61, "confirmed": storedFloor + 100, "freed": storedFloor + 105, "new": high,
	} {
		s.wantCounter(resource, counter)
	}
}

func (s *suite) readStoredLocks(high fencing.Token) {
	s.Helper()
	s.want(read("plain"), locked(storedFloor+61, "L1", longTTL))
	s.want(extend("plain", "L1", storedFloor+61, maxTTL), withMeta(granted(storedFloor+61, maxTTL), "meta of L1"))
	s.want(release("plain", "L1", storedFloor+61), granted(storedFloor+61, 0))
	s.want(acquire("plain", "L11"), granted(storedFloor+63, longTTL))

	s.want(attempt("keyed", "K1", "attempt3"), existing(storedFloor+62, "K1"))
	other := attempt("keyed", "K1", "attempt3")
	other.Scope = "another"
	s.want(other, outcome(node.OtherResource))
	for _, name := range []string{"attempt1", "attempt2"} {
		s.want(retract("keyed", "K1", name), outcome(node.NotHeld))
	}
	s.want(retract("keyed", "K1", "attempt3"), granted(storedFloor+62, 0))

	s.want(read("confirmed"), locked(storedFloor+100, "L2", longTTL))
	s.want(read("extended"), withMeta(locked(storedFloor+101, "L3", maxTTL), "meta of L3"))
	kept := locked(storedFloor+102, node.NoLease("L4"), longTTL)
	s.want(read("kept"), withMeta(kept, "meta of L4"))
	s.want(extend("freed", "L5", storedFloor+104, longTTL), outcome(node.NotHeld))
	s.want(acquire("freed", "L12"), granted(storedFloor+106, longTTL))
	s.want(read("created again"), withMeta(locked(storedFloor+200, "L6", longTTL), ""))
	s.want(read("carried"), withMeta(locked(storedFloor+40, "L0", longTTL), anyMeta))
	s.want(retract("carried", "L0", "attempt1"), outcome(node.NotHeld)) // it is shared
	s.want(acquire("new", "L13"), granted(high+1, longTTL))
}

func (s *suite) readStoredQueue(high fencing.Token) {
	s.Helper()
	keyed, plain, bare := storedTickets()
	shown := keyed
	shown.Keyed = false
	s.want(read("waited for"), inQueue(locked(high, "L7", longTTL), shown, plain, bare))
	s.want(heartbeat("s2", longTTL), node.Reply{Outcome: node.Granted, Existing: true}) // its tickets are alive
	moved := keyed
	moved.Server, moved.Arrival = "s1", 40 // a retry at another server keeps its place
	s.want(acquireWith("waited for", "L9", moved), waiting(held(high, "L7", longTTL), 3))
	s1 := listen(s, s.Node, "s1")
	told := moved
	told.Keyed = false
	s.want(release("waited for", "L7", high), granted(high, 0))
	s.wantWake(s1, "waited for", told)
	s.want(acquireWith("waited for", "L8", plain), outcome(node.Queued))
	s.wantWake(s1, "waited for", told)
	s.want(acquireWith("waited for", "L9", moved), granted(high+2, longTTL))
	s3 := listen(s, s.Node, "s3")
	s.want(dequeue("waited for", moved), outcome(node.Granted))
	s.wantWake(s3, "waited for", node.Ticket{ID: keyed.ID, Server: "s3"}) // its request waits there, too
}

func writeStaged(t *testing.T, n node.Node) {
	t.Helper()
	s := storedSuite(t, n, 0)
	s.must(n.Stage(t.Context(), s.storedAdmission(storedEpoch+10, node.MissedNote(storedEpoch+1))))
}

func readStaged(t *testing.T, n node.Node) {
	t.Helper()
	s := storedSuite(t, n, storedEpoch+10)
	note := node.MissedNote(storedEpoch + 1)
	if seen := s.observe(); seen.Admitted || seen.Staged != s.epoch || seen.Note != note || seen.Marks.HighWater != storedFloor+106 {
		t.Errorf("observed %+v", seen)
	}
	s.want(acquire("a", "L1"), outcome(node.NotAdmitted))
	s.must(n.Admit(t.Context(), s.storedAdmission(s.epoch, note)))
	s.want(acquire("a", "L1"), granted(storedFloor+107, longTTL))
	s.wantMaxTTL(maxTTL)
}

// LeftOf is what is left of a row's time to live as a fixture has it: rounded up, since
// time passes in a test of a real clock; 0 is for good.
func LeftOf(left time.Duration) time.Duration { return (left + rounding - 1).Truncate(rounding) }
