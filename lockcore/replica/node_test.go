package replica_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/memstore"
)

const testTTL = time.Minute

// store counts its transactions, and fails to commit on request.
type store struct {
	*memstore.Store
	updates, epochs atomic.Int64
	full            atomic.Bool
}

var errFull = errors.New("the disk is full")

func (s *store) Update(ctx context.Context, fn func(replica.Tx) error) error {
	s.updates.Add(1)
	return s.Store.Update(ctx, func(tx replica.Tx) error {
		err := fn(tx)
		if s.full.Load() {
			return errFull
		}
		return err
	})
}

func (s *store) View(ctx context.Context, fn func(replica.Tx) error) error {
	s.epochs.Add(1)
	return s.Store.Update(ctx, fn)
}

func newStore() *store { return &store{Store: memstore.New(memstore.Options{})} }

// node is a Node that bootstrapped itself and knows a longest TTL.
type testNode struct {
	*replica.Node
	store *store
}

func open(tb testing.TB, s *store, opts replica.Options) *testNode {
	tb.Helper()
	opts.Bootstrap = true
	n, err := replica.New(tb.Context(), "node", s, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := n.Close(); err != nil {
			tb.Error(err)
		}
	})
	n.Join(node.Cluster{Nodes: 1, Hash: "c0ffee"})
	if err := n.RaiseMaxTTL(tb.Context(), testTTL); err != nil {
		tb.Fatal(err)
	}
	return &testNode{n, s}
}

func (n *testNode) seen(tb testing.TB) node.Observation {
	tb.Helper()
	seen, err := n.Observe(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return seen
}

// ask does an operation in the epoch that the node is in.
func (n *testNode) ask(tb testing.TB, op node.Op) node.Reply {
	tb.Helper()
	op.Epoch = n.seen(tb).Epoch
	reply, err := nodetest.Submit(n, op)
	if err != nil {
		tb.Fatal(err)
	}
	return reply
}

type replyChan chan node.Reply

func (c replyChan) Deliver(_ int, r node.Reply) { c <- r }

func (n *testNode) submit(ops []node.Op) replyChan {
	replies := make(replyChan, 2*len(ops))
	for i := range ops {
		n.Submit(&ops[i], i, replies)
	}
	return replies
}

func acquire(resource, owner string) node.Op {
	return node.Op{Kind: node.OpAcquire, Resource: resource, Owner: owner, TTL: testTTL}
}

func read(resource string) node.Op { return node.Op{Kind: node.OpRead, Resource: resource} }

func wantGranted(tb testing.TB, r node.Reply) {
	tb.Helper()
	if r.Outcome != node.Granted {
		tb.Errorf("%+v", r)
	}
}

func (n *testNode) acquired(tb testing.TB, resource, owner string) fencing.Token {
	tb.Helper()
	r := n.ask(tb, acquire(resource, owner))
	wantGranted(tb, r)
	return r.Grant
}

func TestConformance(t *testing.T) {
	nodetest.Run(t, func(t *testing.T, wanted nodetest.Wanted) nodetest.Harness {
		t.Helper()
		var passed atomic.Int64
		began := time.Now()
		s := memstore.New(memstore.Options{Now: func() time.Time { return began.Add(time.Duration(passed.Load())) }})
		n, err := replica.New(t.Context(), "node", s, replica.Options{Rules: replica.Rules{CounterTTL: wanted.CounterTTL}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Close() }) // has no error to give
		return nodetest.Harness{
			Node: n, Advance: func(d time.Duration) { passed.Add(int64(d)) },
			Restart: func() { s.Restart(true) }, Wipe: s.Wipe, Spoil: nodetest.SpoilRow(t, s),
		}
	})
}

func TestBootstrapsItself(t *testing.T) {
	s := newStore()
	s.JumpClock(time.Until(time.UnixMilli(1_800_000_000_000)))
	n := open(t, s, replica.Options{})
	seen := n.seen(t)
	if !seen.Admitted || seen.Epoch < 1_800_000_000_000<<10 || seen.Marks.Bootstrapped != seen.Epoch || seen.Marks.HighWater < 1_800_000_000_000_000 {
		t.Fatalf("%+v", seen)
	}
	if grant := n.acquired(t, "a", "L1"); grant != seen.Marks.HighWater+1 {
		t.Errorf("grant %d above %d", grant, seen.Marks.HighWater)
	}
	again := open(t, s, replica.Options{})
	if now := again.seen(t); now.Epoch != seen.Epoch || now.Incarnation != seen.Incarnation {
		t.Errorf("%+v, was %+v", now, seen)
	}
	again.Join(node.Cluster{Nodes: 1, Hash: "beef"}) // the cluster that came first keeps the store
	if r := again.ask(t, read("a")); r.Outcome != node.NotAdmitted {
		t.Errorf("%+v", r)
	}
}

// busy is a store that takes a while for each transaction.
type busy struct {
	*memstore.Store
	takes time.Duration
}

func (s busy) Update(ctx context.Context, fn func(replica.Tx) error) error {
	ctx, cancel := replica.Limit(ctx, 2*time.Second)
	defer cancel()
	select {
	case <-time.After(s.takes):
		return s.Store.Update(ctx, fn)
	case <-ctx.Done():
		return fmt.Errorf("commit: %w", ctx.Err())
	}
}

// A start waits for a store that is busy for longer than a call may take, as after an election. If it gives up, its
// error says what to look at.
func TestAStartIsPatient(t *testing.T) {
	for took, wanted := range map[time.Duration]string{
		9 * time.Second:  "",
		11 * time.Second: "took no write within 10s: look at its load and its disk",
	} {
		synctest.Test(t, func(t *testing.T) {
			n, err := replica.New(t.Context(), "node", busy{memstore.New(memstore.Options{}), took}, replica.Options{})
			if wanted == "" && err == nil {
				err = n.Close()
			}
			if wanted == "" && err != nil || wanted != "" && (err == nil || !strings.Contains(err.Error(), wanted)) {
				t.Errorf("a start that takes %s: %v, want %q", took, err, wanted)
			}
		})
	}
}

// If the caller gives a start up, the error does not blame the store.
func TestAStartThatIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := replica.New(ctx, "node", busy{memstore.New(memstore.Options{}), time.Minute}, replica.Options{})
		if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "took no write") {
			t.Errorf("given up after a second: %v", err)
		}
	})
}

func TestFloor(t *testing.T) {
	const floor = 4_000_000_000_000_000
	s := newStore()
	for _, c := range []struct {
		floor, want fencing.Token
	}{{floor, floor + 1}, {floor + 1000, floor + 1001}, {0, floor + 1002}, {fencing.MaxToken, floor + 1003}} {
		n := open(t, s, replica.Options{Floor: c.floor})
		if grant := n.acquired(t, fmt.Sprint(c.want), "L1"); grant != c.want {
			t.Errorf("grant %d, want %d", grant, c.want)
		}
	}
}

// A request that waits under a key and comes again after a restart finds its place.
func TestQueuesOutliveARestart(t *testing.T) {
	s := newStore()
	ticket := node.Ticket{ID: "t1", Server: "s1", Arrival: 1, Keyed: true}
	n := open(t, s, replica.Options{})
	n.ask(t, node.Op{Kind: node.OpHeartbeat, Ticket: ticket, TTL: time.Hour})
	n.ask(t, node.Op{Kind: node.OpEnqueue, Resource: "a", Ticket: ticket})
	n = open(t, s, replica.Options{})
	if r := n.ask(t, acquire("a", "L1")); r.Outcome != node.Queued {
		t.Errorf("a newcomer overtakes: %+v", r)
	}
	again := acquire("a", "L2")
	again.Ticket = node.Ticket{ID: "t1", Server: "s2", Arrival: 2, Keyed: true}
	wantGranted(t, n.ask(t, again))
}

// A ticket that its server forgot to dequeue expires. After that it is not counted, even while other tickets come and
// go.
func TestExpiredTicketsAreNotCounted(t *testing.T) {
	const forgotten, step = 50, node.TicketTTL/2 + time.Minute
	for name, c := range map[string]struct{ stay, steps int }{
		"a short queue": {1, 3},
		"a long queue":  {node.MaxShown + 20, 4}, // its length is counted again in the last step
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t, newStore(), replica.Options{})
			if err := n.RaiseMaxTTL(t.Context(), time.Hour); err != nil {
				t.Fatal(err)
			}
			long := acquire("a", "L1")
			long.TTL = time.Hour
			wantGranted(t, n.ask(t, long))
			enqueue := func(prefix string, count int) {
				for i := range count {
					ticket := node.Ticket{ID: fmt.Sprintf("%s%d", prefix, i), Server: "s1", Arrival: 1}
					wantGranted(t, n.ask(t, node.Op{Kind: node.OpEnqueue, Resource: "a", Ticket: ticket}))
				}
			}
			enqueue("stays", c.stay)
			for i := range c.steps {
				n.store.JumpClock(step)
				if i == 0 {
					enqueue("forgotten", forgotten)
				}
				enqueue("stays", c.stay+i)
			}
			want := c.stay + c.steps - 1
			for _, op := range []node.Op{read("a"), acquire("a", "L2")} {
				if r := n.ask(t, op); r.Waiting != want {
					t.Errorf("%d wait, want %d", r.Waiting, want)
				}
			}
		})
	}
}

// A node whose writes fail reports that until a write succeeds. An operation that only reads, or finds nothing to
// write, does not prove that the node can be written.
func TestProofOfANode(t *testing.T) {
	n := open(t, newStore(), replica.Options{})
	prove := func(within time.Duration) error { return n.Prove(t.Context(), within) }
	n.acquired(t, "a", "L1")
	before := n.store.updates.Load()
	if err := prove(time.Hour); err != nil || n.store.updates.Load() != before {
		t.Fatalf("after a grant: %v, and %d writes", err, n.store.updates.Load()-before)
	}
	seen := n.seen(t)
	if err := prove(0); err != nil || n.store.updates.Load() != before+1 {
		t.Fatalf("a proof was asked for: %v, and %d writes", err, n.store.updates.Load()-before)
	}
	if now := n.seen(t); now != seen {
		t.Errorf("a proof changes the node: %+v, was %+v", now, seen)
	}

	n.store.full.Store(true)
	n.ask(t, acquire("b", "L2"))
	for range 3 {
		wantGranted(t, n.ask(t, read("a")))
		n.seen(t)
		if err := prove(time.Hour); !errors.Is(err, node.ErrUnwritable) || !errors.Is(err, errFull) {
			t.Fatalf("a read takes the failure away: %v", err)
		}
	}
	n.store.full.Store(false)
	n.acquired(t, "b", "L3")
	testenv.Eventually(t, time.Minute, func() error { return prove(time.Hour) })
}

// A write that hangs proves nothing, and an observation behind it reports why the last write failed.
func TestProofThatHangs(t *testing.T) {
	n := open(t, newStore(), replica.Options{})
	shortly := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	free := n.Block(t)
	defer free()
	if _, err := n.Observe(shortly()); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, node.ErrUnwritable) {
		t.Errorf("behind a transaction that takes long: %v", err)
	}
	if err := n.Prove(shortly(), 0); !errors.Is(err, node.ErrUnwritable) {
		t.Errorf("a write that hangs proves: %v", err)
	}
	if _, err := n.Observe(shortly()); !errors.Is(err, node.ErrUnwritable) {
		t.Errorf("behind a write that hangs: %v", err)
	}
}

type turns struct {
	n          atomic.Int64
	subscribed chan struct{}
}

func (s *turns) Subscribed()              { close(s.subscribed) }
func (s *turns) Wake(string, node.Ticket) { s.n.Add(1) }

func TestWhatWaitsIsOneTransaction(t *testing.T) {
	n := open(t, newStore(), replica.Options{})
	epoch := n.seen(t).Epoch
	ops := make([]node.Op, 300)
	for i := range ops {
		ops[i] = acquire(fmt.Sprintf("r%d", i), "L1")
		ops[i].Epoch = epoch
	}
	free := n.Block(t)
	before := n.store.updates.Load()
	replies := n.submit(ops)
	free()
	for range ops {
		wantGranted(t, <-replies)
	}
	if after := n.store.updates.Load(); after != before+1 {
		t.Errorf("%d transactions for %d operations", after-before, len(ops))
	}
	before = n.store.updates.Load()
	for range 10 {
		wantGranted(t, n.ask(t, read("r1")))
	}
	if after := n.store.updates.Load(); after != before {
		t.Errorf("reads wrote %d transactions", after-before)
	}
}

func TestQueueIsBounded(t *testing.T) {
	n := open(t, newStore(), replica.Options{Queue: 4})
	epoch := n.seen(t).Epoch
	ops := make([]node.Op, 5)
	for i := range ops {
		ops[i] = node.Op{Kind: node.OpRead, Epoch: epoch, Resource: "a"}
	}
	free := n.Block(t)
	replies := n.submit(ops)
	if r := <-replies; !errors.Is(r.Err, node.ErrQueueFull) || r.Sent {
		t.Errorf("%+v", r)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := n.RaiseMaxTTL(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call into a full queue: %v", err)
	}
	free()
	for range 4 {
		if r := <-replies; r.Outcome != node.NotHeld {
			t.Errorf("%+v", r)
		}
	}
}

func TestACallThatWasGivenUpDoesNothing(t *testing.T) {
	n := open(t, newStore(), replica.Options{})
	free := n.Block(t)
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
	n := open(t, newStore(), replica.Options{})
	ops := []node.Op{acquire("a", "L1"), acquire("b", "L1")}
	free := n.Block(t)
	replies := n.submit(ops)
	closed := make(chan error)
	go func() { closed <- n.Close() }()
	<-n.Closed()
	free()
	for range ops {
		r := <-replies // it may have been taken up just before
		if r.Outcome == node.Failed && (!errors.Is(r.Err, node.ErrNodeDown) || r.Sent) {
			t.Errorf("%+v", r)
		}
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if r, err := nodetest.Submit(n, acquire("c", "L1")); err != nil || !errors.Is(r.Err, node.ErrNodeDown) || r.Sent {
		t.Errorf("after Close: %+v, %v", r, err)
	}
	if _, err := n.Observe(t.Context()); !errors.Is(err, node.ErrNodeDown) {
		t.Errorf("after Close: %v", err)
	}
}

// Every operation gets exactly one reply, whenever the node is closed.
func TestCloseWhileSubmitting(t *testing.T) {
	for range 20 {
		n := open(t, newStore(), replica.Options{Queue: 16})
		var wg sync.WaitGroup
		replies := make(replyChan, 10_000)
		var sent atomic.Int64
		for range 4 {
			wg.Go(func() {
				for range 200 {
					op := node.Op{Kind: node.OpRead, Resource: "a"}
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
