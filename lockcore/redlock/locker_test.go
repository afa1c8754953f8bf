package redlock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

func TestExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		settle(5 * time.Second)
		longer, err := c.Extend(t.Context(), lease.ID, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if longer.ID != lease.ID || longer.Token != lease.Token || longer.TTL != 20*time.Second || longer.Holder != "h" {
			t.Errorf("%+v", longer)
		}
		if want := 20*time.Second - roundTrip - quorum.Drift(20*time.Second); longer.Validity != want {
			t.Errorf("validity %s, want %s", longer.Validity, want)
		}
	})
}

// An extend without a TTL restarts the lease's last TTL, not the default TTL.
func TestExtendWithoutATTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		for _, ttl := range []time.Duration{20 * time.Second, 50 * time.Second} {
			if _, err := c.Extend(t.Context(), lease.ID, ttl); err != nil {
				t.Fatal(err)
			}
			again, err := c.Extend(t.Context(), lease.ID, 0)
			if err != nil || again.TTL != ttl {
				t.Errorf("TTL %s, want %s; %v", again.TTL, ttl, err)
			}
		}
	})
}

// Rule 5: an extend restores a lease whose locks have expired, as long as no other lease has had the lock, and not
// afterwards.
func TestExtendOfAnExpiredLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		settle(time.Minute)
		if _, err := c.Extend(t.Context(), lease.ID, 30*time.Second); err != nil {
			t.Errorf("no other lease had it: %v", err)
		}
		settle(time.Minute)
		next := mustAcquire(t, c, req)
		if err := c.Release(t.Context(), next.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Extend(t.Context(), lease.ID, 30*time.Second); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Errorf("a successor had it: %v", err)
		}
		if n := c.locked(); n != 0 {
			t.Errorf("the refused extend left %d locks", n)
		}
	})
}

// An extend without a TTL cannot restore an expired lease, because no node knows its last TTL any more. The lease has
// then ended for good.
func TestExtendOfAnExpiredLeaseWithoutATTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, lockcore.Request{Resource: "r", TTL: 300 * time.Millisecond})
		settle(time.Second)
		for _, ttl := range []time.Duration{0, time.Second} {
			if again, err := c.Extend(t.Context(), lease.ID, ttl); !errors.Is(err, lockcore.ErrNotHeld) {
				t.Errorf("extended by %s: %+v, %v", ttl, again, err)
			}
		}
		if n := c.locked(); n != 0 {
			t.Errorf("the refused extends left %d locks", n)
		}
	})
}

// A quorum decides whether a lease is held. A single lock that is left, on a node that voted later than the others,
// does not make it held.
func TestEndOfALeaseThatLastsLongerOnOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		settle(time.Second)
		for i, want := range []lockcore.End{lockcore.EndNone, lockcore.EndExpired, lockcore.EndExpired} {
			c.fakes[i].ExpireNow("r")
			if end, err := c.EndOf(t.Context(), lease.ID); err != nil || end != want {
				t.Errorf("expired on %d of 3: end %d, %v, want %d", i+1, end, err, want)
			}
		}
	})
}

// One of three nodes has the lock, and one does not reply: it is unknown whether the lease is held.
func TestEndOfALeaseThatMayBeHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		settle(time.Second)
		c.fakes[0].ExpireNow("r")
		c.spoil(1, func(node.Op, node.Reply) (time.Duration, node.Reply) {
			return roundTrip, node.Reply{Err: node.ErrNodeDown}
		})
		if end, err := c.EndOf(t.Context(), lease.ID); err != nil || end != lockcore.EndUnknown {
			t.Errorf("end %d, %v, want unknown", end, err)
		}
		c.heal(1)
		if end, err := c.EndOf(t.Context(), lease.ID); err != nil || end != lockcore.EndNone {
			t.Errorf("two of three have it: end %d, %v", end, err)
		}
	})
}

// If a majority refuses an extend, it leaves nothing on the minority that accepted it.
func TestLostExtendIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		settle(time.Second)
		for i := range 2 {
			c.fakes[i].ExpireNow("r")
			c.fakes[i].Count(9)
		}
		if _, err := c.Extend(t.Context(), lease.ID, 0); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Fatal(err)
		}
		settle(time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d locks stayed behind", n)
		}
	})
}

// Without a quorum the lease is neither ended nor extended, and its locks stay.
func TestExtendWithoutQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		synctest.Wait()
		c.cut(0, 1)
		began := time.Now()
		if _, err := c.Extend(t.Context(), lease.ID, 0); !errors.Is(err, lockcore.ErrNoQuorum) || errors.Is(err, lockcore.ErrNotHeld) {
			t.Error(err)
		}
		if took := time.Since(began); took != c.cfg.NodeTimeout {
			t.Errorf("took %s", took)
		}
		settle(time.Second)
		if n := c.locked(); n != 3 {
			t.Errorf("%d locks are left", n)
		}
	})
}

// Rule 19: extends end at the maximum hold time.
func TestMaxHoldEndsExtensions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{MaxTTL: 10 * time.Second, MaxHold: 25 * time.Second})
		lease := mustAcquire(t, c, req)
		for range 2 {
			settle(9 * time.Second)
			if _, err := c.Extend(t.Context(), lease.ID, 10*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		last, err := c.Extend(t.Context(), lease.ID, 10*time.Second)
		if err != nil || last.TTL > 7*time.Second || last.MaxHoldRemaining > 7*time.Second {
			t.Errorf("the last part of the hold: %+v, %v", last, err)
		}
		settle(7 * time.Second)
		if _, err := c.Extend(t.Context(), lease.ID, 10*time.Second); !errors.Is(err, lockcore.ErrMaxHold) {
			t.Errorf("after the hold: %v", err)
		}
		unbounded := newCluster(t, 3, redlock.Config{MaxHold: 0})
		lease = mustAcquire(t, unbounded, req)
		if lease.MaxHoldRemaining >= 0 {
			t.Errorf("an unbounded hold ends in %s", lease.MaxHoldRemaining)
		}
	})
}

// Rule 27: a release before the minimum hold time ends the lease, but the resource stays taken.
func TestMinHoldOutlivesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{MaxTTL: 10 * time.Second})
		hold := lockcore.Request{Resource: "r", TTL: 10 * time.Second, MinHold: 5 * time.Second}
		lease := mustAcquire(t, c, hold)
		settle(2 * time.Second)
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
		for _, i := range []int{0, 1, 2} {
			if op := c.fakes[i].Ops(node.OpReleaseAfter); len(op) != 1 || op[0].TTL > 3*time.Second+2*time.Millisecond || op[0].TTL < 2900*time.Millisecond {
				t.Errorf("node %d was sent %+v", i+1, op)
			}
		}
	})
}

// A text that is not a lease id counts as the id of no lease. The error does not say what is wrong with it.
func TestMalformedLeaseIDs(t *testing.T) {
	c := newCluster(t, 3, redlock.Config{})
	ctx := t.Context()
	_, extend := c.Extend(ctx, "?", 0)
	_, look := c.Lease(ctx, "?")
	for _, err := range []error{c.Release(ctx, "?"), extend, look} {
		if !errors.Is(err, lockcore.ErrNotHeld) {
			t.Error(err)
		}
	}
}

func TestLeaseAsItStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		settle(4 * time.Second)
		now, err := c.Lease(t.Context(), lease.ID)
		if err != nil || now.Token != lease.Token || now.Holder != "h" || now.Validity >= lease.Validity-4*time.Second+2*roundTrip {
			t.Errorf("%+v, %v", now, err)
		}
		settle(6 * time.Second)
		if _, err := c.Lease(t.Context(), lease.ID); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Errorf("after its end: %v", err)
		}
	})
}

func TestInspectAndBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		if s, err := c.Inspect(t.Context(), "r"); err != nil || s.Held {
			t.Errorf("free: %+v, %v", s, err)
		}
		if err := c.Break(t.Context(), "r", 0); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Errorf("breaking what is free: %v", err)
		}
		lease := mustAcquire(t, c, req)
		settle(time.Second)
		s, err := c.Inspect(t.Context(), "r")
		if err != nil || !s.Held || s.Token != lease.Token || s.Holder != "h" || s.HeldFor < time.Second {
			t.Errorf("held: %+v, %v", s, err)
		}
		if err := c.Break(t.Context(), "r", 0); err != nil {
			t.Error(err)
		}
		settle(time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d locks stayed", n)
		}
	})
}

// A vote that has no quorum and cannot get one is not shown as a holder.
func TestInspectOfAStrayVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		c.fakes[0].Take("other", time.Minute)
		if s, err := c.Inspect(t.Context(), "r"); err != nil || s.Held {
			t.Errorf("%+v, %v", s, err)
		}
		c.cut(1)
		if s, err := c.Inspect(t.Context(), "r"); err != nil || !s.Held {
			t.Errorf("with a node that does not answer it may be a quorum: %+v, %v", s, err)
		}
	})
}

// Every call ends within its time limits although the nodes never reply.
func TestCallsEndOverSilentNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		c.cut(0, 1, 2)
		ctx := t.Context()
		calls := map[string]func() error{
			"acquire": func() error { _, err := c.Acquire(ctx, req); return err },
			"extend":  func() error { _, err := c.Extend(ctx, lease.ID, 0); return err },
			"release": func() error { return c.Release(ctx, lease.ID) },
			"lease":   func() error { _, err := c.Lease(ctx, lease.ID); return err },
			"inspect": func() error { _, err := c.Inspect(ctx, "r"); return err },
			"break":   func() error { return c.Break(ctx, "r", 0) },
			"list":    func() error { _, err := c.locker.Readers(ctx); return err },
		}
		for name, call := range calls {
			began := time.Now()
			if err := call(); !errors.Is(err, lockcore.ErrNoQuorum) {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(began); took > 2*c.cfg.NodeTimeout {
				t.Errorf("%s took %s", name, took)
			}
		}
	})
}

// The error of a cancelled context is never swallowed.
func TestCancelledCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		c.cut(0, 1, 2)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, acquire := c.Acquire(ctx, lockcore.Request{Resource: "other"})
		_, extend := c.Extend(ctx, lease.ID, 0)
		_, inspect := c.Inspect(ctx, "r")
		for _, err := range []error{acquire, extend, inspect, c.Release(ctx, lease.ID)} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v does not wrap the context's error", err)
			}
		}
	})
}

// A thousand extends of a lease that has ended leave few clean-ups behind, although some nodes are slower than the
// others.
func TestLostExtendsDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, redlock.Config{})
		for _, i := range []int{3, 4} {
			c.spoil(i, func(_ node.Op, r node.Reply) (time.Duration, node.Reply) { return 3 * roundTrip, r })
		}
		lease := mustAcquire(t, c, req)
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
		settle(10 * time.Second)
		mustAcquire(t, c, req) // another caller's
		releases := func() (n int) {
			for _, f := range c.fakes {
				n += len(f.Ops(node.OpRelease))
			}
			return n
		}
		before := releases()
		const calls = 1000
		for range calls {
			if _, err := c.Extend(t.Context(), lease.ID, 0); err == nil {
				t.Fatal("extended")
			}
		}
		pending := c.locker.PendingCleanups()
		settle(2 * time.Minute)
		if each := (releases() - before) / calls; each > 5 || pending > calls/10 {
			t.Errorf("%d extends of a lease that had ended: %d clean-ups pending, %d releases sent for each", calls, pending, each)
		}
	})
}

// Waited ends before the round that granted. So a client that counts the validity from Waited after its request never
// counts beyond the end of the lease.
func TestWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		first := mustAcquire(t, c, req)
		const held = 7 * time.Second
		time.AfterFunc(held, func() { _ = c.Release(t.Context(), first.ID) })
		began := time.Now()
		waits := req
		waits.Wait = time.Minute
		lease := mustAcquire(t, c, waits)
		ends := time.Now().Add(lease.Validity)
		if count := began.Add(lease.Waited + lease.Validity); first.Waited != 0 || lease.Waited < held || count.After(ends) {
			t.Errorf("waited %s and %s; counted to %s after the end", first.Waited, lease.Waited, count.Sub(ends))
		}
	})
}
