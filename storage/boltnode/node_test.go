package boltnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/nodetest"
)

const testTTL = time.Minute

// joined makes a node that founded itself and knows a longest TTL.
func joined(tb testing.TB, path string, opts Options) *Node {
	tb.Helper()
	n := open(tb, path, opts)
	n.Join(lockcore.Cluster{Nodes: 1, Hash: "c0ffee"})
	if err := n.RaiseMaxTTL(tb.Context(), testTTL); err != nil {
		tb.Fatal(err)
	}
	return n
}

func (n *Node) seen(tb testing.TB) lockcore.Observation {
	tb.Helper()
	seen, err := n.Observe(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return seen
}

// ask does an operation in the node's own view.
func (n *Node) ask(tb testing.TB, op lockcore.Op) lockcore.Reply {
	tb.Helper()
	op.View = n.seen(tb).View
	reply, err := nodetest.Submit(n, op)
	if err != nil {
		tb.Fatal(err)
	}
	return reply
}

func acquire(resource, lease string) lockcore.Op {
	return lockcore.Op{Kind: lockcore.OpAcquire, Resource: resource, Owner: lease, TTL: testTTL}
}

func read(resource string) lockcore.Op { return lockcore.Op{Kind: lockcore.OpRead, Resource: resource} }

func (n *Node) acquired(tb testing.TB, resource, lease string) fencing.Token {
	tb.Helper()
	r := n.ask(tb, acquire(resource, lease))
	if r.Outcome != lockcore.Granted {
		tb.Fatalf("acquire %q: %+v", resource, r)
	}
	return r.Grant
}

func wantLeft(tb testing.TB, r lockcore.Reply, left time.Duration) {
	tb.Helper()
	if r.Outcome != lockcore.Granted || r.Remaining != left {
		tb.Errorf("%+v, want %s left", r, left)
	}
}

func newTestClock() *testClock { return &testClock{wall: time.UnixMilli(1_800_000_000_000)} }

func TestFoundsItself(t *testing.T) {
	clock := newTestClock()
	path := filepath.Join(t.TempDir(), "node.db")
	n := open(t, path, Options{clock: clock.clock()})
	const now = 1_800_000_000_000
	want := lockcore.Observation{
		Incarnation: n.seen(t).Incarnation, Admitted: true, View: now << 10,
		Marks: lockcore.Marks{High: now * 1000, Founded: now << 10},
	}
	if seen := n.seen(t); seen != want || seen.Incarnation == "" {
		t.Fatalf("%+v, want %+v", seen, want)
	}
	n.Join(lockcore.Cluster{Nodes: 1, Hash: "c0ffee"})
	want.Cluster = lockcore.Cluster{Nodes: 1, Hash: "c0ffee"}
	if seen := n.seen(t); seen != want {
		t.Fatalf("%+v, want %+v", seen, want)
	}
	if err := n.RaiseMaxTTL(t.Context(), testTTL); err != nil {
		t.Fatal(err)
	}
	if grant := n.acquired(t, "a", "L1"); grant != now*1000+1 {
		t.Errorf("grant %d", grant)
	}
	n.shut(t)

	// The cluster that came first keeps the file.
	n = open(t, path, Options{clock: clock.clock()})
	n.Join(lockcore.Cluster{Nodes: 1, Hash: "beef"})
	if r := n.ask(t, read("a")); r.Outcome != lockcore.NotAdmitted {
		t.Errorf("%+v", r)
	}
	if seen := n.seen(t); seen.Cluster != want.Cluster {
		t.Errorf("%+v", seen)
	}
	n.shut(t)

	// A file that was deleted does not start again at the tokens of the old one.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Second)
	n = joined(t, path, Options{clock: clock.clock()})
	if grant := n.acquired(t, "a", "L1"); grant != (now+1000)*1000+1 {
		t.Errorf("grant %d of a new file", grant)
	}
}

func TestFloor(t *testing.T) {
	const floor = 4_000_000_000_000_000
	path := filepath.Join(t.TempDir(), "node.db")
	n := joined(t, path, Options{Floor: floor})
	if grant := n.acquired(t, "a", "L1"); grant != floor+1 {
		t.Errorf("grant %d", grant)
	}
	n.shut(t)
	n = joined(t, path, Options{Floor: floor + 1000}) // a guard may have seen more meanwhile
	if grant := n.acquired(t, "b", "L1"); grant != floor+1001 {
		t.Errorf("grant %d", grant)
	}
	n.shut(t)
	n = joined(t, path, Options{})
	if grant := n.acquired(t, "c", "L1"); grant != floor+1002 {
		t.Errorf("grant %d", grant)
	}
}

func TestLockerOverTheFile(t *testing.T) {
	n := open(t, filepath.Join(t.TempDir(), "node.db"), Options{})
	locker, err := lockcore.New([]lockcore.Node{n}, lockcore.Config{WatchInterval: 5 * time.Millisecond, NodeTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = locker.Run(ctx) })
	defer done.Wait()
	defer cancel()
	var last fencing.Token
	for range 3 {
		lease := take(ctx, t, locker)
		if lease.Token <= last {
			t.Errorf("token %d after %d", lease.Token, last)
		}
		last = lease.Token
		if err := locker.Release(ctx, lease.ID); err != nil {
			t.Error(err)
		}
	}
}

// take acquires as soon as the Locker has found its node.
func take(ctx context.Context, t *testing.T, locker *lockcore.Locker) lockcore.Lease {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		lease, err := locker.Acquire(ctx, lockcore.AcquireRequest{Resource: "a"})
		if err == nil {
			return lease
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestReopening(t *testing.T) {
	clock := newTestClock()
	opts := Options{clock: clock.clock()}
	path := filepath.Join(t.TempDir(), "node.db")
	n := joined(t, path, opts)
	before := n.seen(t)
	grant := n.acquired(t, "a", "L1")
	again := func(away, jump time.Duration) {
		n.shut(t)
		clock.advance(away)
		clock.off.Add(int64(jump))
		n = joined(t, path, opts)
	}
	clock.advance(10 * time.Second)
	again(10*time.Second, 0)
	if seen := n.seen(t); seen.Incarnation != before.Incarnation || !seen.Admitted || seen.View != before.View || seen.Marks.High != grant {
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

	again(time.Minute, 0) // it ended while nobody looked
	if r := n.ask(t, read("a")); r.Outcome != lockcore.NotHeld {
		t.Errorf("%+v", r)
	}
	if next := n.acquired(t, "a", "L2"); next != grant+1 {
		t.Errorf("grant %d after %d", next, grant)
	}
	again(0, 0)
	wantLeft(t, n.ask(t, read("a")), testTTL)
}

func TestTheLineDoesNotOutliveItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.db")
	n := joined(t, path, Options{})
	ticket := lockcore.Ticket{ID: "t1", Server: "s1", Arrival: 1}
	n.ask(t, lockcore.Op{Kind: lockcore.OpHeartbeat, Ticket: ticket, TTL: time.Hour})
	n.ask(t, lockcore.Op{Kind: lockcore.OpEnqueue, Resource: "a", Ticket: ticket})
	n.shut(t)
	n = joined(t, path, Options{})
	n.acquired(t, "a", "L1")
	if r := n.ask(t, lockcore.Op{Kind: lockcore.OpHeartbeat, Ticket: ticket, TTL: time.Hour}); r.Existing {
		t.Errorf("%+v", r)
	}
}

// What is answered is in the file: a copy of it, as a kill leaves one, knows it.
func TestWhatIsAnsweredIsInTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "node.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.shut(t)
	n.Join(lockcore.Cluster{Nodes: 1, Hash: "c0ffee"})
	if err := n.RaiseMaxTTL(t.Context(), testTTL); err != nil {
		t.Fatal(err)
	}
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
		if r := reopened.ask(t, read(resource)); r.Outcome != lockcore.Granted || r.Grant != grant {
			t.Fatalf("%s: %+v, want grant %d", resource, r, grant)
		}
	}
}

func TestFailedCommitChangesNothing(t *testing.T) {
	var logged strings.Builder
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{Logger: textLogger(&logged)})
	grant := n.acquired(t, "a", "L1")
	before := n.seen(t)
	n.db.MaxSize = 1 // no growth: the disk is full
	big := acquire("b", "L2")
	big.Meta = strings.Repeat("x", 1<<20)
	r := n.ask(t, big)
	if r.Outcome != lockcore.Failed || !r.Sent || !errors.Is(r.Err, bolterrors.ErrMaxSizeReached) {
		t.Fatalf("%+v", r)
	}
	if seen := n.seen(t); seen != before {
		t.Errorf("%+v, was %+v", seen, before)
	}
	if r := n.ask(t, read("b")); r.Outcome != lockcore.NotHeld {
		t.Errorf("%+v", r)
	}
	n.db.MaxSize = 0
	if next := n.acquired(t, "b", "L3"); next != grant+1 {
		t.Errorf("grant %d after %d", next, grant)
	}
	for _, want := range []string{"cannot commit", "commits again"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("%q is not in the log: %s", want, logged.String())
		}
	}
}

// A failed commit fails everything that was in it, and tells nobody of a turn.
func TestFailedCommitFailsTheWholeBatch(t *testing.T) {
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{})
	n.acquired(t, "a", "L1")
	ticket := lockcore.Ticket{ID: "t1", Server: "s1", Arrival: 1}
	n.ask(t, lockcore.Op{Kind: lockcore.OpEnqueue, Resource: "a", Ticket: ticket})
	told := &turns{}
	remove := n.wakes.add("s1", told)
	defer remove()
	view := n.seen(t).View
	ops := []lockcore.Op{
		{Kind: lockcore.OpRelease, View: view, Resource: "a", Owner: "L1"},
		{Kind: lockcore.OpRead, View: view, Resource: "a"},
		{Kind: lockcore.OpAcquire, View: view, Resource: "b", Owner: "L2", TTL: testTTL, Meta: strings.Repeat("x", 1<<20)},
	}
	free := n.block(t)
	n.db.MaxSize = 1
	replies := n.submit(ops)
	free()
	for range ops {
		if r := <-replies; r.Outcome != lockcore.Failed || !r.Sent || r.Err == nil {
			t.Errorf("%+v", r)
		}
	}
	n.db.MaxSize = 0
	wantGranted(t, n.ask(t, read("a")))
	if told.n.Load() != 0 {
		t.Error("a turn was told that did not come")
	}
	n.ask(t, ops[0])
	if told.n.Load() != 1 {
		t.Error("a turn was not told")
	}
}

func wantGranted(tb testing.TB, r lockcore.Reply) {
	tb.Helper()
	if r.Outcome != lockcore.Granted {
		tb.Errorf("%+v", r)
	}
}

type turns struct{ n atomic.Int64 }

func (s *turns) Subscribed()                  {}
func (s *turns) Turn(string, lockcore.Ticket) { s.n.Add(1) }

// block keeps the committer busy until free is called.
func (n *Node) block(tb testing.TB) (free func()) {
	tb.Helper()
	running, gate := make(chan struct{}), make(chan struct{})
	c := &call{ctx: context.Background(), done: make(chan struct{}), run: func(*txn) error {
		close(running)
		<-gate
		return nil
	}}
	n.queue <- job{call: c}
	<-running
	return func() { close(gate); <-c.done }
}

type replyChan chan lockcore.Reply

func (c replyChan) Deliver(_ int, r lockcore.Reply) { c <- r }

func (n *Node) submit(ops []lockcore.Op) replyChan {
	replies := make(replyChan, 2*len(ops))
	for i := range ops {
		n.Submit(&ops[i], i, replies)
	}
	return replies
}

// lastTx is the number of the last transaction that wrote.
func (n *Node) lastTx(tb testing.TB) (id int) {
	tb.Helper()
	err := n.db.View(func(tx *bbolt.Tx) error {
		id = tx.ID()
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

func TestWhatWaitsIsOneTransaction(t *testing.T) {
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{})
	view := n.seen(t).View
	ops := make([]lockcore.Op, 300)
	for i := range ops {
		ops[i] = acquire(fmt.Sprintf("r%d", i), "L1")
		ops[i].View = view
	}
	before := n.lastTx(t)
	free := n.block(t)
	replies := n.submit(ops)
	free()
	for range ops {
		wantGranted(t, <-replies)
	}
	if after := n.lastTx(t); after != before+1 {
		t.Errorf("%d transactions for %d operations", after-before, len(ops))
	}
	before = n.lastTx(t)
	for range 10 {
		wantGranted(t, n.ask(t, read("r1")))
	}
	if after := n.lastTx(t); after != before {
		t.Errorf("reads wrote %d transactions", after-before)
	}
}

func TestQueueIsBounded(t *testing.T) {
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{Queue: 4})
	view := n.seen(t).View
	ops := make([]lockcore.Op, 5)
	for i := range ops {
		ops[i] = lockcore.Op{Kind: lockcore.OpRead, View: view, Resource: "a"}
	}
	free := n.block(t)
	replies := n.submit(ops)
	if r := <-replies; !errors.Is(r.Err, lockcore.ErrQueueFull) || r.Sent {
		t.Errorf("%+v", r)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := n.Observe(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call into a full queue: %v", err)
	}
	free()
	for range 4 {
		if r := <-replies; r.Outcome != lockcore.NotHeld {
			t.Errorf("%+v", r)
		}
	}
}

func TestACallThatWasGivenUpDoesNothing(t *testing.T) {
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{})
	free := n.block(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := n.RaiseMaxTTL(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	free()
	if got := n.seen(t).Marks.MaxTTL; got != testTTL {
		t.Errorf("the longest TTL is %s", got)
	}
}

func TestCloseAnswersWhatWaits(t *testing.T) {
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{})
	ops := []lockcore.Op{acquire("a", "L1"), acquire("b", "L1")}
	free := n.block(t)
	replies := n.submit(ops)
	closed := make(chan error)
	go func() { closed <- n.Close() }()
	<-n.closed
	free()
	for range ops {
		r := <-replies // it may have been taken up just before
		if r.Outcome == lockcore.Failed && (!errors.Is(r.Err, lockcore.ErrNodeDown) || r.Sent) {
			t.Errorf("%+v", r)
		}
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if r, err := nodetest.Submit(n, acquire("c", "L1")); err != nil || !errors.Is(r.Err, lockcore.ErrNodeDown) || r.Sent {
		t.Errorf("after Close: %+v, %v", r, err)
	}
	if _, err := n.Observe(t.Context()); !errors.Is(err, lockcore.ErrNodeDown) {
		t.Errorf("after Close: %v", err)
	}
}

// Every operation gets exactly one reply, whenever the node is closed.
func TestCloseWhileSubmitting(t *testing.T) {
	for range 20 {
		n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{Queue: 16})
		var wg sync.WaitGroup
		replies := make(replyChan, 10_000)
		var sent atomic.Int64
		for range 4 {
			wg.Go(func() {
				for range 200 {
					op := lockcore.Op{Kind: lockcore.OpRead, Resource: "a"}
					n.Submit(&op, 0, replies)
					sent.Add(1)
				}
			})
		}
		wg.Go(func() { _ = n.Close() })
		wg.Wait()
		for range sent.Load() {
			select {
			case <-replies:
			case <-time.After(10 * time.Second):
				t.Fatal("an operation without a reply")
			}
		}
		if len(replies) != 0 {
			t.Fatalf("%d replies too many", len(replies))
		}
	}
}

func TestWhatCannotBeStoredFailsAlone(t *testing.T) {
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{})
	view := n.seen(t).View
	huge := strings.Repeat("x", 40_000)
	ops := []lockcore.Op{
		acquire("", "L1"), acquire(huge, "L1"), acquire("a", ""), acquire("a", huge),
		{Kind: lockcore.OpRead}, {Kind: lockcore.OpHeartbeat, TTL: testTTL}, {Kind: 99, Resource: "a"}, {},
		{Kind: lockcore.OpEnqueue, Resource: "a", Ticket: lockcore.Ticket{ID: "t", Server: "s", Holder: huge}},
		{Kind: lockcore.OpEnqueue, Resource: "a", Ticket: lockcore.Ticket{ID: "t"}},
	}
	good := acquire("a", "L1")
	ops = append(ops, good)
	for i := range ops {
		ops[i].View = view
	}
	free := n.block(t)
	replies := n.submit(ops)
	free()
	for range len(ops) - 1 {
		if r := <-replies; r.Outcome != lockcore.Failed || r.Err == nil || r.Sent {
			t.Errorf("%+v", r)
		}
	}
	wantGranted(t, <-replies)
}

func TestABrokenEntryIsAFailure(t *testing.T) {
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{})
	n.acquired(t, "b", "L2")
	err := n.db.Update(func(tx *bbolt.Tx) error {
		return errors.Join(
			tx.Bucket([]byte(locksBucket)).Put([]byte("a"), []byte("no lock")),
			tx.Bucket([]byte(countersBucket)).Put([]byte("c"), []byte("no counter")),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []lockcore.Op{acquire("a", "L1"), acquire("c", "L1"), read("a")} {
		if r := n.ask(t, op); !errors.Is(r.Err, errCorrupt) {
			t.Errorf("%+v", r)
		}
	}
	if _, _, err := n.Scan(t.Context(), "", "", 10); !errors.Is(err, errCorrupt) {
		t.Error(err)
	}
	wantGranted(t, n.ask(t, read("b")))
}

func TestAStateOfAnotherVersionIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.db")
	n := joined(t, path, Options{})
	n.shut(t)
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, raw := range []string{`{"format":2,"high":7}`, `no JSON`, `{}`} {
		err := db.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte(metaBucket)).Put([]byte(stateKey), []byte(raw))
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(db, Options{}); err == nil {
			t.Errorf("state %s was taken", raw)
		}
	}
}

func TestStateIsReadable(t *testing.T) {
	st := newState()
	st.found(time.UnixMilli(1_800_000_000_000))
	raw, err := json.Marshal(st)
	if err != nil || !strings.Contains(string(raw), `"high":1800000000000`) {
		t.Errorf("%s, %v", raw, err)
	}
}
