package boltstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
)

const (
	testTTL        = time.Minute
	testCounterTTL = time.Hour
)

// node is a replica on a file.
type testNode struct {
	*replica.Node
	file *file
	opts replica.Options
}

func openNode(tb testing.TB, path string, opts Options, nodeOpts replica.Options) *testNode {
	tb.Helper()
	n := &testNode{file: openFile(tb, path, opts), opts: nodeOpts}
	n.begin(tb)
	tb.Cleanup(func() { n.end(tb) })
	return n
}

func (n *testNode) begin(tb testing.TB) {
	tb.Helper()
	var err error
	if n.Node, err = replica.New(tb.Context(), "embedded", n.file.Store, n.opts); err != nil {
		tb.Fatal(err)
	}
}

func (n *testNode) end(tb testing.TB) {
	tb.Helper()
	if err := n.Close(); err != nil {
		tb.Error(err)
	}
}

// joined is a node that bootstrapped itself and knows a longest TTL.
func joined(tb testing.TB, path string, opts Options) *testNode {
	tb.Helper()
	n := openNode(tb, path, opts, replica.Options{Rules: replica.Rules{CounterTTL: testCounterTTL}, Bootstrap: true})
	n.join(tb)
	return n
}

func (n *testNode) join(tb testing.TB) {
	tb.Helper()
	n.Join(node.Cluster{Nodes: 1, Hash: "c0ffee"})
	if err := n.RaiseMaxTTL(tb.Context(), testTTL); err != nil {
		tb.Fatal(err)
	}
}

// reincarnate gives the file another incarnation, which a restart does not do.
func (n *testNode) reincarnate() { n.file.incarnation += "'" }

func (n *testNode) wipe(tb testing.TB) func() {
	tb.Helper()
	return func() {
		tb.Helper()
		err := n.file.Update(context.Background(), func(tx replica.Tx) error {
			tx.Purge()
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

func TestConformance(t *testing.T) {
	nodetest.RunReplica(t, func(t *testing.T, wanted nodetest.Wanted) nodetest.Harness {
		t.Helper()
		clock := newTestClock()
		n := openNode(t, filepath.Join(t.TempDir(), "node.db"),
			Options{clock: clock.clock(), sweep: quick(3)},
			replica.Options{Rules: replica.Rules{CounterTTL: wanted.CounterTTL}, Bootstrap: !wanted.Blank})
		return nodetest.Harness{Node: n, Advance: clock.advance, Restart: n.reincarnate, Wipe: n.wipe(t), Spoil: nodetest.SpoilRow(t, n.file.Store)}
	})
}

func TestDifferential(t *testing.T) {
	dir, files := t.TempDir(), 0
	nodetest.Differential(t, func() (nodetest.Harness, func()) {
		files++
		n := openNode(t, filepath.Join(dir, fmt.Sprintf("%d.db", files)), Options{sweep: quick(3)}, replica.Options{})
		return nodetest.Harness{Node: n, Restart: n.reincarnate, Wipe: n.wipe(t)}, func() {
			n.end(t)
			n.file.shut(t)
		}
	})
}

func (n *testNode) seen(tb testing.TB) node.Observation {
	tb.Helper()
	seen, err := n.Observe(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return seen
}

// ask does an operation in the node's own epoch.
func (n *testNode) ask(tb testing.TB, op node.Op) node.Reply {
	tb.Helper()
	op.Epoch = n.seen(tb).Epoch
	reply, err := nodetest.Submit(n, op)
	if err != nil {
		tb.Fatal(err)
	}
	return reply
}

func acquire(resource, owner string) node.Op {
	return node.Op{Kind: node.OpAcquire, Resource: resource, Owner: owner, TTL: testTTL}
}

func read(resource string) node.Op { return node.Op{Kind: node.OpRead, Resource: resource} }

func (n *testNode) acquired(tb testing.TB, resource, owner string) fencing.Token {
	tb.Helper()
	r := n.ask(tb, acquire(resource, owner))
	if r.Outcome != node.Granted {
		tb.Fatalf("acquire %q: %+v", resource, r)
	}
	return r.Grant
}

func wantLeft(tb testing.TB, r node.Reply, left time.Duration) {
	tb.Helper()
	if r.Outcome != node.Granted || r.Remaining != left {
		tb.Errorf("%+v, want %s left", r, left)
	}
}

func TestReopening(t *testing.T) {
	clock := newTestClock()
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{clock: clock.clock()})
	before := n.seen(t)
	grant := n.acquired(t, "a", "L1")
	again := func(away, jump time.Duration) {
		n.end(t)
		n.file.shut(t)
		clock.advance(away)
		clock.off.Add(int64(jump))
		n.file.open(t)
		n.begin(t)
		n.join(t)
	}
	clock.advance(10 * time.Second)
	again(10*time.Second, 0)
	if seen := n.seen(t); seen.Incarnation != before.Incarnation || !seen.Admitted || seen.Epoch != before.Epoch || seen.Marks.HighWater != grant {
		t.Errorf("%+v, was %+v", seen, before)
	}
	wantLeft(t, n.ask(t, read("a")), testTTL-20*time.Second)
	clock.advance(5 * time.Second) // on the monotonic clock from here on
	clock.off.Add(int64(time.Hour))
	wantLeft(t, n.ask(t, read("a")), testTTL-25*time.Second)
	clock.off.Add(-int64(time.Hour))

	again(0, -time.Hour) // never longer than its TTL from the opening
	wantLeft(t, n.ask(t, read("a")), testTTL)
	clock.off.Add(int64(time.Hour))

	again(time.Minute, 0) // it expired while no process ran
	if r := n.ask(t, read("a")); r.Outcome != node.NotHeld {
		t.Errorf("%+v", r)
	}
	if next := n.acquired(t, "a", "L2"); next != grant+1 {
		t.Errorf("grant %d after %d", next, grant)
	}
	again(0, 0)
	wantLeft(t, n.ask(t, read("a")), testTTL)
}

// After its file was deleted, a node does not start again at the tokens of the old file, even if the clock was set
// back by less than the time for which the file was missing.
func TestADeletedFile(t *testing.T) {
	clock := newTestClock()
	path := filepath.Join(t.TempDir(), "node.db")
	n := joined(t, path, Options{clock: clock.clock()})
	grant := n.acquired(t, "a", "L1")
	n.end(t)
	n.file.shut(t)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Minute)
	clock.off.Add(-int64(59 * time.Second))
	n = joined(t, path, Options{clock: clock.clock()})
	if again := n.acquired(t, "a", "L1"); again <= grant {
		t.Errorf("grant %d of a new file, %d before", again, grant)
	}
}

// When an operation has got its reply, its effect is in the file: a copy of the file, such as a kill leaves, has it.
func TestWhatIsAnsweredIsInTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "node.db")
	db, err := bbolt.Open(path, 0o600, nil) // with syncs
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s, err := New(db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, err := replica.New(t.Context(), "embedded", s, replica.Options{Bootstrap: true})
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{Node: r}
	defer n.end(t)
	n.join(t)
	for i := range 20 {
		resource := fmt.Sprintf("r%d", i)
		grant := n.acquired(t, resource, "L1")
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		left := filepath.Join(dir, fmt.Sprintf("copy%d.db", i))
		if err := os.WriteFile(left, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		reopened := joined(t, left, Options{})
		if r := reopened.ask(t, read(resource)); r.Outcome != node.Granted || r.Grant != grant {
			t.Fatalf("%s: %+v, want grant %d", resource, r, grant)
		}
	}
}

func TestAFullDiskIsAFailureThatEnds(t *testing.T) {
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{})
	grant := n.acquired(t, "a", "L1")
	before := n.seen(t)
	n.file.db.MaxSize = 1 // no growth: the disk is full
	big := acquire("b", "L2")
	big.Meta = strings.Repeat("x", 1<<20)
	if r := n.ask(t, big); r.Outcome != node.Failed || !r.Sent || !errors.Is(r.Err, bolterrors.ErrMaxSizeReached) {
		t.Fatalf("%+v", r)
	}
	if seen := n.seen(t); seen != before {
		t.Errorf("%+v, was %+v", seen, before)
	}
	n.file.db.MaxSize = 0
	if next := n.acquired(t, "b", "L3"); next != grant+1 {
		t.Errorf("grant %d after %d", next, grant)
	}
}

func TestABrokenRowIsAFailure(t *testing.T) {
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{})
	err := n.file.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(rowsBucket)).Put([]byte(replica.LockKey("a")), []byte("no row"))
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := n.ask(t, read("a")); !errors.Is(r.Err, replica.ErrUnreadable) {
		t.Errorf("%+v", r)
	}
}

// rows counts the rows in the file, without the node's record.
func (n *testNode) rows(tb testing.TB) (count int) {
	tb.Helper()
	err := n.file.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket([]byte(rowsBucket)).Cursor()
		for key, _ := c.First(); key != nil; key, _ = c.Next() {
			count++
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return count - 1
}

func awaitRows(t *testing.T, n *testNode, want int) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, func() error {
		if got := n.rows(t); got != want {
			return fmt.Errorf("the file holds %d rows, want %d", got, want)
		}
		return nil
	})
}

// perLock is the number of rows that fill makes for each lock: lock, counter, key, and two for its queue.
const (
	perLock  = 5
	perQueue = 2
)

type replyChan chan node.Reply

func (c replyChan) Deliver(_ int, r node.Reply) { c <- r }

// fill takes n locks under keys, with a queue each.
func fill(t *testing.T, n *testNode, prefix string, locks int) {
	t.Helper()
	epoch := n.seen(t).Epoch
	ops := []node.Op{{Kind: node.OpHeartbeat, Ticket: node.Ticket{Server: "s1"}, TTL: testTTL}}
	for i := range locks {
		op := acquire(fmt.Sprintf("%s/%d", prefix, i), fmt.Sprintf("%sL%d", prefix, i))
		op.Attempt, op.Scope = "attempt1", op.Resource
		enqueue := node.Op{Kind: node.OpEnqueue, Resource: op.Resource, Ticket: node.Ticket{ID: "t1", Server: "s1", Arrival: 1}}
		ops = append(ops, op, enqueue)
	}
	replies := make(replyChan, len(ops))
	for i := range ops {
		ops[i].Epoch = epoch
		n.Submit(&ops[i], i, replies)
	}
	for range ops {
		if r := <-replies; r.Outcome != node.Granted {
			t.Errorf("%+v", r)
		}
	}
}

func TestSweepRemovesWhatHasExpired(t *testing.T) {
	clock := newTestClock()
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{clock: clock.clock(), sweep: quick(7)})
	const locks, server = 100, 1
	fill(t, n, "r", locks)
	awaitRows(t, n, perLock*locks+server)
	clock.advance(testTTL - time.Second)
	fill(t, n, "s", 10) // stays, and so does the server
	clock.advance(time.Second)
	awaitRows(t, n, (1+perQueue)*locks+perLock*10+server)
	clock.advance(lockcore.MaxWait + testTTL)
	awaitRows(t, n, locks+10) // the counters
	high := n.seen(t).Marks.HighWater
	clock.advance(testCounterTTL)
	awaitRows(t, n, 0)
	if grant := n.acquired(t, "r/1", "L1"); grant != high+1 {
		t.Errorf("grant %d, want one above the high-water mark, %d", grant, high)
	}
}

// The file does not grow with resources that are used once and never again.
func TestFileFollowsTheResourcesInUse(t *testing.T) {
	clock := newTestClock()
	path := filepath.Join(t.TempDir(), "node.db")
	n := joined(t, path, Options{clock: clock.clock(), sweep: quick(500)})
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	var first int64
	for round := range 40 {
		fill(t, n, fmt.Sprintf("round%d", round), 500)
		clock.advance(2 * time.Hour)
		awaitRows(t, n, 0)
		if round == 9 {
			first = size()
		}
	}
	if last := size(); last > 2*first { // bbolt grows a file by doubling it; how full pages are depends on the sweeps
		t.Errorf("the file grew from %d bytes after 10 rounds to %d after 40", first, last)
	}
}
