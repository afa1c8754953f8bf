package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// waitFor waits in the queue for the resource in the background.
func (q *quorum) waitFor(ctx context.Context, resource, holder string, wait time.Duration) chan result {
	out := make(chan result, 1)
	go func() {
		lease, err := q.Acquire(ctx, lockcore.Request{Resource: resource, Holder: holder, Wait: wait})
		out <- result{lease: lease, err: err, at: time.Now()}
	}()
	return out
}

type result struct {
	lease lockcore.Lease
	err   error
	at    time.Time
}

func (q *quorum) awaitWaiting(t *testing.T, resource string, n int) {
	t.Helper()
	testenv.Eventually(t, 5*time.Second, func() error {
		s, err := q.Inspect(t.Context(), resource)
		if err != nil || s.Waiting != n || len(s.Waiters) != n {
			return fmt.Errorf("%d wait: %+v, %w", n, s, err)
		}
		return nil
	})
}

// longTTL is for tests that neither wait for a lease to end nor stop a node. It is long enough for any busy machine.
func longTTL(c *sets.Config) { c.MaxTTL, c.NodeTimeout = 30*time.Second, 3*time.Second }

func TestWaitersAreServedInOrder(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 5, longTTL)
	q.awaitVoting(t, 5)
	lease, err := q.Acquire(t.Context(), lockcore.Request{Resource: "r"})
	if err != nil {
		t.Fatal(err)
	}
	const n = 8
	waiters := make([]chan result, n)
	for i := range waiters {
		waiters[i] = q.waitFor(t.Context(), "r", fmt.Sprint("w", i), 20*time.Second)
		q.awaitWaiting(t, "r", i+1)
	}
	if _, err := q.Acquire(t.Context(), lockcore.Request{Resource: "r"}); !errors.Is(err, lockcore.ErrHeld) {
		t.Fatal(err)
	}
	last := lease
	for i := range waiters {
		released := time.Now()
		if err := q.Release(t.Context(), last.ID); err != nil {
			t.Fatal(err)
		}
		got := <-waiters[i]
		if got.err != nil || got.lease.Token <= last.Token {
			t.Fatalf("waiter %d: %+v after token %d", i, got, last.Token)
		}
		t.Logf("hand-off %d took %s", i, got.at.Sub(released))
		last = got.lease
	}
	q.awaitWaiting(t, "r", 0)
}

func TestWaitTimesOutAndDequeues(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, longTTL)
	q.awaitVoting(t, 3)
	lease, err := q.Acquire(t.Context(), lockcore.Request{Resource: "r", Holder: "first"})
	if err != nil {
		t.Fatal(err)
	}
	got := <-q.waitFor(t.Context(), "r", "late", 100*time.Millisecond)
	var timeout *lockcore.WaitTimeoutError
	if !errors.As(got.err, &timeout) || timeout.Position != 1 || timeout.Holder != "first" || timeout.Token != lease.Token {
		t.Fatalf("%+v", got.err)
	}
	q.awaitWaiting(t, "r", 0)
	ctx, cancel := context.WithCancel(t.Context())
	gone := q.waitFor(ctx, "r", "hangs up", 10*time.Second)
	q.awaitWaiting(t, "r", 1)
	cancel()
	if got := <-gone; !errors.Is(got.err, context.Canceled) {
		t.Fatal(got.err)
	}
	q.awaitWaiting(t, "r", 0)
}

func TestExpiryAndOtherServersHandOff(t *testing.T) {
	t.Parallel()
	patient := func(c *sets.Config) { c.MaxTTL, c.NodeTimeout = 5*time.Second, 500*time.Millisecond } // a busy machine may take its time
	a := startQuorum(t, 5, patient)
	a.awaitVoting(t, 5)
	b := joinQuorum(t, a.servers, patient)
	b.awaitVoting(t, 5)
	a.take(t, "r") // never released
	first := b.waitFor(t.Context(), "r", "b", time.Minute)
	b.awaitWaiting(t, "r", 1)
	second := a.waitFor(t.Context(), "r", "a", time.Minute)
	a.awaitWaiting(t, "r", 2)
	got := <-first
	if got.err != nil {
		t.Fatal(got.err)
	}
	if err := a.Release(t.Context(), got.lease.ID); err != nil { // any server can
		t.Fatal(err)
	}
	if next := <-second; next.err != nil || next.lease.Token <= got.lease.Token {
		t.Fatalf("%+v", next)
	}
}

func TestHotResource(t *testing.T) {
	servers := testenv.StartRedisN(t, 5)
	var qs []*quorum
	for range 3 {
		q := joinQuorum(t, servers, longTTL)
		q.awaitVoting(t, 5)
		qs = append(qs, q)
	}
	const callers, each = 48, 10
	var wg sync.WaitGroup
	began := time.Now()
	for i := range callers {
		q := qs[i%len(qs)]
		wg.Go(func() {
			for range each {
				lease, err := q.Acquire(t.Context(), lockcore.Request{Resource: "hot", Wait: time.Minute})
				if err == nil {
					err = q.Release(t.Context(), lease.ID)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%.0f hand-offs/s", callers*each/time.Since(began).Seconds())
}

// Over three servers no waiter is overtaken by one that arrived more than 50 ms later (not counting the time for
// which this machine was late), and tokens rise in the order of the grants.
func TestOrderOverServers(t *testing.T) {
	machine := testenv.MeasureLateness(t)
	servers := testenv.StartRedisN(t, 5)
	var qs []*quorum
	for range 3 {
		q := joinQuorum(t, servers, longTTL)
		q.awaitVoting(t, 5)
		qs = append(qs, q)
	}
	const callers, each = 30, 30
	grants := make(chan grant, callers*each)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range each {
				arrived := time.Now()
				lease, err := qs[i%len(qs)].Acquire(t.Context(), lockcore.Request{Resource: "hot", Wait: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				grants <- grant{arrived: arrived, token: lease.Token} // still held: in the order of the grants
				qs[(i+1)%len(qs)].give(t, lease)
			}
		})
	}
	wg.Wait()
	close(grants)
	var latest time.Time
	var last fencing.Token
	worst := time.Duration(0)
	for g := range grants {
		if g.token <= last {
			t.Errorf("token %d after %d", g.token, last)
		}
		last = g.token
		worst = max(worst, latest.Sub(g.arrived))
		if g.arrived.After(latest) {
			latest = g.arrived
		}
	}
	late := machine.Longest() // between a caller's look at the clock and its ticket on the nodes
	t.Logf("%d hand-offs; the worst overtaking is by %s; the machine was late by %s", callers*each, worst, late)
	if worst > 50*time.Millisecond+2*late {
		t.Errorf("a waiter was overtaken by one that arrived %s later; the machine was late by %s", worst, late)
	}
}

type grant struct {
	arrived time.Time
	token   fencing.Token
}

// Two requests under one idempotency key wait in the queue at two servers. One gets the lease, and the other finds
// it. After that neither may stay in the queue, where it would block all later tickets.
func TestFindingOnesOwnLeaseDequeues(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, longTTL)
	q.awaitVoting(t, 3)
	other := joinQuorum(t, q.servers, longTTL)
	other.awaitVoting(t, 3)
	first, err := q.Acquire(t.Context(), lockcore.Request{Resource: "r"})
	if err != nil {
		t.Fatal(err)
	}
	twins := make(chan result, 2)
	var members [2]string
	for i, at := range []*quorum{q, other} {
		go func() {
			lease, err := at.Acquire(t.Context(), lockcore.Request{Resource: "r", Wait: 20 * time.Second, IdempotencyKey: "key"})
			twins <- result{lease: lease, err: err}
		}()
		q.awaitWaiting(t, "r", 1)
		testenv.Eventually(t, 10*time.Second, func() error { // the second ticket takes the first one's place
			for _, server := range q.servers {
				now := server.Client().ZRange(t.Context(), "ql:r", 0, 0).Val()
				if len(now) != 1 || slices.Contains(members[:i], now[0]) {
					return fmt.Errorf("request %d is not in the queue: %q", i, now)
				}
				members[i] = now[0]
			}
			return nil
		})
	}
	if err := q.Release(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	a, b := <-twins, <-twins
	if a.err != nil || b.err != nil || a.lease.Token != b.lease.Token {
		t.Fatalf("%+v and %+v under one key", a, b)
	}
	q.awaitWaiting(t, "r", 0)
	if err := q.Release(t.Context(), a.lease.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Acquire(t.Context(), lockcore.Request{Resource: "r"}); err != nil {
		t.Fatal("a free resource without a queue:", err)
	}
}

// A message with a ticket was overtaken, so a node enqueues the ticket again after its waiter has left. The ticket
// does not block the queue for long.
func TestLateTicketIsDequeued(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, longTTL)
	q.awaitVoting(t, 3)
	first, err := q.Acquire(t.Context(), lockcore.Request{Resource: "r"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := q.waitFor(ctx, "r", "gone", 20*time.Second)
	q.awaitWaiting(t, "r", 1)
	queue := q.servers[0].Client().ZRangeWithScores(t.Context(), "ql:r", 0, -1).Val()
	cancel()
	if r := <-got; !errors.Is(r.err, context.Canceled) {
		t.Fatal(r.err)
	}
	q.awaitWaiting(t, "r", 0)
	for _, s := range q.servers {
		if err := s.Client().ZAdd(t.Context(), "ql:r", queue...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Release(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		_, err := q.Acquire(t.Context(), lockcore.Request{Resource: "r"})
		return err
	})
}
