package nodetest

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// Harness is a node under test, and the means of the suite to change it.
type Harness struct {
	// Node is unused and empty. It may have bootstrapped itself, unless Wanted.Blank was set.
	Node node.Node
	// Advance moves the node's clock forward by d. If it is nil, the suite waits for a real clock, for short
	// times only.
	Advance func(d time.Duration)
	// Restart gives the node another incarnation with the same data; nil if its
	// incarnation never changes.
	Restart func()
	// Wipe deletes the node's data and keeps its incarnation; nil if no other program can do that.
	Wipe func()
	// Spoil makes the record of a resource's lock unreadable.
	Spoil func(resource string)
}

// SpoilRow returns a Spoil for a replica on the store.
func SpoilRow(tb testing.TB, store replica.Store) func(resource string) {
	tb.Helper()
	return func(resource string) {
		err := store.Update(tb.Context(), func(tx replica.Tx) error {
			tx.Put(replica.LockKey(resource), []byte("no lock"), longTTL)
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// suite is one test of one node.
type suite struct {
	testing.TB
	Harness
	scale

	epoch   node.Epoch // for operations that name no epoch: that of its admission
	mapName string     // for operations that name no map
	cluster node.Cluster
	began   time.Time
	way     way

	// Set while a text is played.
	lacking     bool // the node does not meet the scenario's requirements
	incarnation string
	tickets     map[string]node.Ticket
	plans       map[string]node.Admission
	locks       map[string]node.CarriedLock
	listening   map[string]*recorder
}

const (
	longTTL  = time.Minute      // does not pass during a test
	counters = time.Hour        // how long a node keeps a counter
	maxTTL   = 2 * time.Minute  // the longest allowed
	patience = time.Minute      // how long a real node may take for anything
	rounding = 20 * time.Second // of times in fixtures: the maximum delay of a real clock's reading
	apart    = 2 * time.Second  // maximum difference of two readings of real clocks at the same moment
)

// Wanted is the node that a test needs.
type Wanted struct {
	CounterTTL time.Duration // how long it keeps counters
	Blank      bool          // it has not bootstrapped itself; also for a node that will be wiped
}

// Open makes a node, and cleans up with tb.Cleanup.
type Open func(tb testing.TB, wanted Wanted) Harness

// Run tests a node through only its interface: each scenario with single operations, and with every operation
// in a batch with strangers' operations. It calls open once for every test; open cleans up with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T, wanted Wanted) Harness) {
	t.Helper()
	RunSingle(t, open)
	RunBatched(t, open)
}

// RunSingle is the part of Run that plays the rules with single operations.
func RunSingle(t *testing.T, open func(t *testing.T, wanted Wanted) Harness) {
	t.Helper()
	t.Run("rules", func(t *testing.T) { rules(t, open, way{}) })
}

// RunBatched is the rest of Run: the rules in batches, which are harder for a node, and everything else.
func RunBatched(t *testing.T, open func(t *testing.T, wanted Wanted) Harness) {
	t.Helper()
	run(t, open, way{batches: true})
}

// RunReplica is Run for a replica on a store. Run already tests the rules of package replica in memory, so
// here each scenario runs once: in batches, which are harder for a store, and with one of five texts where a
// scenario runs with each text of a list. A store keeps texts as bytes, which storetest covers.
func RunReplica(t *testing.T, open func(t *testing.T, wanted Wanted) Harness) {
	t.Helper()
	run(t, open, way{batches: true, sample: 5})
}

func run(t *testing.T, open func(t *testing.T, wanted Wanted) Harness, batched way) {
	t.Helper()
	t.Run("rules in batches", func(t *testing.T) { rules(t, open, batched) })
	runAll(t, open, way{})
	t.Run("in batches", func(t *testing.T) { runAll(t, open, batched) })
}

// way is how scenarios are run.
type way struct {
	batches bool // each operation in a batch with strangers'
	sample  int  // use one of this many texts of a list; 0 for all
}

func runAll(t *testing.T, open func(t *testing.T, wanted Wanted) Harness, w way) {
	t.Helper()
	for name, run := range map[string]func(*suite){
		"an operation after its deadline is not sent":             afterItsDeadline,
		"concurrent operations each get their own reply":          sideBySide,
		"operations take effect in the order of their submission": inOrder,
		"odd names are distinguished":                             namesDiffer,
		"odd names are listed":                                    namesAreListed,
		"a prefix is taken literally":                             prefixIsLiteral,
		"a read lists the first MaxShown tickets":                 longQueue,
		"a survey pages through all locks":                        survey,
		"a listing comes in pages":                                listingInPages,
		"a cursor that no call returned is refused":               strangeCursor,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSuite(t, w)
			s.Harness = open(t, Wanted{CounterTTL: counters})
			s.Node.Join(s.cluster)
			s.admit(100)
			run(s)
		})
	}
}

// admit bootstraps a cluster on the node, with tokens above floor. It sets "+0" to the high-water mark and "E"
// to the epoch.
func (s *suite) admit(floor fencing.Token) {
	s.Helper()
	seen := s.observe()
	a := s.bootstrap(seen, floor)
	s.install(a)
	s.base, s.first, s.incarnation = max(floor, seen.Marks.HighWater), a.Epoch, a.Incarnation
}

// install stages and admits.
func (s *suite) install(a node.Admission) {
	s.Helper()
	s.must(s.Node.Stage(s.Context(), a))
	s.must(s.Node.Admit(s.Context(), a))
	s.epoch = a.Epoch
}

// bootstrap returns an admission that a node in the observed state accepts: the node is not admitted, or
// missed this bootstrap.
func (s *suite) bootstrap(seen node.Observation, floor fencing.Token) node.Admission {
	epoch := max(seen.Epoch, seen.Staged) + 10
	a := node.Admission{
		Incarnation: seen.Incarnation, Note: seen.Note, Epoch: epoch, Bootstrapped: epoch, Cluster: s.cluster, Floor: floor, MaxTTL: maxTTL,
	}
	if seen.Admitted {
		a.Note = node.MissedNote(seen.Epoch)
	}
	return a
}

// observe returns the node's state without the fields for display.
func (s *suite) observe() node.Observation {
	s.Helper()
	seen, err := s.Node.Observe(s.Context())
	s.must(err)
	seen.Version, seen.Role = "", ""
	return seen
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// do submits an operation and waits for its reply. An operation without an epoch gets the suite's.
func (s *suite) do(op node.Op) node.Reply {
	s.Helper()
	if op.Epoch == 0 {
		op.Epoch = s.epoch
	}
	op.Map = cmp.Or(op.Map, s.mapName)
	if s.way.batches {
		return s.amid(op)
	}
	reply, err := Submit(s.Node, op)
	s.must(err)
	return reply
}

// Submit submits an operation and waits for its reply, for a limited time.
func Submit(n node.Voter, op node.Op) (node.Reply, error) {
	const index = 7
	replies := make(sink, 2)
	n.Submit(&op, index, replies)
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case d := <-replies:
		if d.index != index {
			return d.reply, fmt.Errorf("reply under index %d, want %d", d.index, index)
		}
		return d.reply, nil
	case <-timeout.C:
		return node.Reply{}, fmt.Errorf("no reply to operation %d within %s", op.Kind, patience)
	}
}

type delivery struct {
	index int
	reply node.Reply
}

// sink has room for a second reply, so that a wrong second reply would be noticed and not block.
type sink chan delivery

// Deliver receives a reply.
func (s sink) Deliver(index int, reply node.Reply) { s <- delivery{index, reply} }

// mayHavePassed is how much time may have passed on the node's clock since the test began.
func (s *suite) mayHavePassed() time.Duration {
	if s.Advance != nil {
		return 0
	}
	return time.Since(s.began) + apart
}

// Operations.

func acquire(resource, owner string) node.Op {
	return node.Op{Kind: node.OpAcquire, Resource: resource, Owner: owner, TTL: longTTL, Meta: usual(owner)}
}

func retract(resource, owner string) node.Op {
	return node.Op{Kind: node.OpRetract, Resource: resource, Owner: owner}
}

func read(resource string) node.Op { return node.Op{Kind: node.OpRead, Resource: resource} }
