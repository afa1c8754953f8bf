package replica_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// In a batch, only the operation that meets an unreadable row fails, whatever its place in the batch.
func TestABrokenRowFailsNoOther(t *testing.T) {
	n := open(t, newStore(), replica.Options{})
	epoch := n.seen(t).Epoch
	n.write(t, replica.LockKey("broken"), "no lock")
	for broken := range 5 {
		var ops []node.Op
		for i := range 5 {
			op := acquire(fmt.Sprint(broken, i), "L1")
			if i == broken {
				op = acquire("broken", "L1")
			}
			op.Epoch = epoch
			ops = append(ops, op)
		}
		free := n.Block(t)
		replies := n.submit(ops)
		free()
		failed := 0
		for range ops {
			if r := <-replies; errors.Is(r.Err, replica.ErrUnreadable) {
				failed++
			} else {
				wantGranted(t, r)
			}
		}
		if failed != 1 {
			t.Errorf("%d failed", failed)
		}
	}
}

func TestFailedCommitChangesNothing(t *testing.T) {
	n := open(t, newStore(), replica.Options{})
	grant := n.acquired(t, "a", "L1")
	before := n.seen(t)
	n.store.full.Store(true)
	if r := n.ask(t, acquire("b", "L2")); r.Outcome != node.Failed || !r.Sent || !errors.Is(r.Err, errFull) {
		t.Fatalf("%+v", r)
	}
	if seen := n.seen(t); seen != before {
		t.Errorf("%+v, was %+v", seen, before)
	}
	n.store.full.Store(false)
	if next := n.acquired(t, "b", "L3"); next != grant+1 {
		t.Errorf("grant %d after %d", next, grant)
	}
}

// If a commit fails, every operation in it fails, and no listener is notified.
func TestFailedCommitFailsTheWholeBatch(t *testing.T) {
	n := open(t, newStore(), replica.Options{})
	grant := n.acquired(t, "a", "L1")
	ticket := node.Ticket{ID: "t1", Server: "s1", Arrival: 1}
	n.ask(t, node.Op{Kind: node.OpEnqueue, Resource: "a", Ticket: ticket})
	woken := &turns{subscribed: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	var listening sync.WaitGroup
	listening.Go(func() { n.Subscribe(ctx, "s1", woken) })
	defer listening.Wait()
	defer cancel()
	<-woken.subscribed
	epoch := n.seen(t).Epoch
	ops := []node.Op{
		{Kind: node.OpRelease, Epoch: epoch, Resource: "a", Owner: "L1", Token: grant},
		{Kind: node.OpRead, Epoch: epoch, Resource: "a"},
		{Kind: node.OpAcquire, Epoch: epoch, Resource: "b", Owner: "L2", TTL: testTTL},
	}
	free := n.Block(t)
	n.store.full.Store(true)
	replies := n.submit(ops)
	free()
	for range ops {
		if r := <-replies; r.Outcome != node.Failed || !r.Sent || r.Err == nil {
			t.Errorf("%+v", r)
		}
	}
	n.store.full.Store(false)
	wantGranted(t, n.ask(t, read("a")))
	if woken.n.Load() != 0 {
		t.Error("a turn was notified that did not come")
	}
	n.ask(t, ops[0])
	if woken.n.Load() != 1 {
		t.Error("a turn was not notified")
	}
}

// An observation in the same transaction as a failing write still succeeds, and shows a node that replies.
func TestFailedCommitFailsNoObservation(t *testing.T) {
	n := open(t, newStore(), replica.Options{})
	before := n.seen(t)
	write := acquire("a", "L1")
	write.Epoch = before.Epoch
	free := n.Block(t)
	n.store.full.Store(true)
	replies := n.submit([]node.Op{write})
	observed := make(chan error, 1)
	go func() {
		seen, err := n.Observe(t.Context())
		if err == nil && seen != before {
			err = fmt.Errorf("%+v, was %+v", seen, before)
		}
		observed <- err
	}()
	testenv.Eventually(t, time.Minute, func() error {
		if queued := n.Queued(); queued != 2 {
			return fmt.Errorf("%d jobs wait", queued)
		}
		return nil
	})
	free()
	if r := <-replies; !errors.Is(r.Err, errFull) {
		t.Errorf("the write: %+v", r)
	}
	if err := <-observed; err != nil {
		t.Errorf("the observation: %v", err)
	}
	if err := n.Prove(t.Context(), time.Hour); !errors.Is(err, node.ErrUnwritable) {
		t.Errorf("the proof: %v", err)
	}
}

func TestWhatCannotBeStoredFailsAlone(t *testing.T) {
	n := open(t, newStore(), replica.Options{})
	epoch := n.seen(t).Epoch
	huge := strings.Repeat("x", 40_000)
	ops := []node.Op{
		acquire("", "L1"), acquire(huge, "L1"), acquire("a", ""), acquire("a", huge), acquire("a", "L 1"),
		{Kind: node.OpRead}, {Kind: node.OpHeartbeat, TTL: testTTL}, {Kind: 99, Resource: "a"}, {},
		{Kind: node.OpEnqueue, Resource: "a", Ticket: node.Ticket{ID: "t", Server: "s", Holder: huge}},
		{Kind: node.OpEnqueue, Resource: "a", Ticket: node.Ticket{ID: "t"}},
	}
	ops = append(ops, acquire("a", "L1"))
	for i := range ops {
		ops[i].Epoch = epoch
	}
	free := n.Block(t)
	replies := n.submit(ops)
	free()
	for range len(ops) - 1 {
		if r := <-replies; r.Outcome != node.Failed || r.Err == nil || r.Sent {
			t.Errorf("%+v", r)
		}
	}
	wantGranted(t, <-replies)
}

func (n *testNode) write(tb testing.TB, key, value string) {
	tb.Helper()
	err := n.store.Update(tb.Context(), func(tx replica.Tx) error {
		tx.Put(key, []byte(value), 0)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

func TestABrokenRowIsAFailure(t *testing.T) {
	n := open(t, newStore(), replica.Options{})
	n.acquired(t, "b", "L2")
	n.write(t, replica.LockKey("a"), "no lock")
	n.write(t, replica.CounterKey("c"), "no counter")
	for _, op := range []node.Op{acquire("a", "L1"), acquire("c", "L1"), read("a")} {
		if r := n.ask(t, op); !errors.Is(r.Err, replica.ErrUnreadable) {
			t.Errorf("%+v", r)
		}
	}
	if _, _, err := n.Survey(t.Context(), n.seen(t).Epoch, ""); !errors.Is(err, replica.ErrUnreadable) {
		t.Error(err)
	}
	wantGranted(t, n.ask(t, read("b")))
}

func TestARecordOfAnotherVersionIsRefused(t *testing.T) {
	s := newStore()
	n := open(t, s, replica.Options{})
	for _, raw := range []string{`{"format":1,"high_water":7}`, "\x01", "\x02", "\x02\x00", ``} {
		n.write(t, "s", raw)
		if _, err := replica.New(t.Context(), "node", s, replica.Options{}); err == nil {
			t.Errorf("record %q was taken", raw)
		}
	}
}
