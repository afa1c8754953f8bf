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
	"github.com/fencelock/fencelock/lockcore/redlock/internal/fakenode"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// req is the request of most tests.
var req = lockcore.Request{Resource: "r", TTL: 10 * time.Second, Holder: "h"}

func mustAcquire(t *testing.T, c *cluster, req lockcore.Request) lockcore.Lease {
	t.Helper()
	lease, err := c.Acquire(t.Context(), req)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	return lease
}

func TestAcquireInOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		began := time.Now()
		lease := mustAcquire(t, c, req)
		if took := time.Since(began); took != roundTrip {
			t.Errorf("took %s", took)
		}
		if want := req.TTL - roundTrip - quorum.Drift(req.TTL); lease.Validity != want || lease.Token != 1 {
			t.Errorf("token %d, validity %s, want 1 and %s", lease.Token, lease.Validity, want)
		}
		if lease.TTL != req.TTL || lease.Holder != "h" || lease.Existing || lease.MaxHoldRemaining >= 0 {
			t.Errorf("%+v", lease)
		}
		synctest.Wait()
		for _, f := range c.fakes {
			if len(f.Ops(node.OpConfirm)) != 0 {
				t.Error("equal grants were confirmed")
			}
		}
	})
}

// The response is sent when a quorum has granted; a frozen minority does not delay it (rule 18).
func TestFrozenMinorityCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, redlock.Config{})
		c.cut(1, 3)
		began := time.Now()
		lease := mustAcquire(t, c, req)
		if _, err := c.Extend(t.Context(), lease.ID, time.Second); err != nil {
			t.Error(err)
		}
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 3*roundTrip {
			t.Errorf("acquire, extend and release took %s", took)
		}
	})
}

// When the vote of a slow node comes, it is counted or retracted.
func TestLateGrantsAreConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		c.fakes[0].Count(6)
		c.fakes[1].Count(6)
		c.spoil(2, func(_ node.Op, r node.Reply) (time.Duration, node.Reply) { return 20 * time.Millisecond, r })
		lease := mustAcquire(t, c, req)
		if lease.Token != 7 {
			t.Fatalf("token %d", lease.Token)
		}
		settle(time.Second)
		if got := c.fakes[2].Counter(t); got != 7 {
			t.Errorf("the slow node's counter is %d: it was not confirmed", got)
		}
	})
}

// Rule 1: unequal grants are confirmed before the answer.
func TestUnequalGrantsAreConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		c.cut(2)
		c.fakes[0].Count(4)
		began := time.Now()
		lease := mustAcquire(t, c, req)
		if took := time.Since(began); lease.Token != 5 || took != 2*roundTrip {
			t.Errorf("token %d after %s", lease.Token, took)
		}
		if c.fakes[1].Counter(t) != 5 || c.fakes[1].Lock().Grant != 5 {
			t.Errorf("node 2 holds %s", c.fakes[1])
		}
	})
}

// If a confirm gets no reply, the attempt ends within two time limits, and every vote is retracted (rule 16).
func TestUnansweredConfirmIsNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		c.cut(2)
		c.fakes[0].Count(4)
		c.fakes[1].Answer(func(op node.Op) (time.Duration, node.Reply) {
			if op.Kind == node.OpConfirm {
				return -1, node.Reply{}
			}
			return roundTrip, c.fakes[1].Apply(op)
		})
		limit := 2 * c.cfg.NodeTimeout
		began := time.Now()
		one := req
		one.Scope = req.Resource
		lease, err := c.locker.TryOnce(t.Context(), &one)
		if took := time.Since(began); err == nil || took > limit {
			t.Errorf("%+v, %v after %s", lease, err, took)
		}
		began = time.Now()
		_, err = c.Acquire(t.Context(), req)
		if took := time.Since(began); err == nil || took > redlock.MaxTries*(limit+2*redlock.SplitMaxPause) {
			t.Errorf("%v after %s", err, took)
		}
		settle(time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d votes are left", n)
		}
	})
}

// The retractions of a lost attempt are sent before its caller gets the response. Otherwise the next attempt would
// find these votes, and a waiter could block itself for ever.
func TestVotesAreRetractedBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		c.spoil(0, func(node.Op, node.Reply) (time.Duration, node.Reply) {
			return roundTrip, node.Reply{Outcome: node.NotAdmitted}
		})
		c.spoil(1, func(node.Op, node.Reply) (time.Duration, node.Reply) {
			return roundTrip, node.Reply{Outcome: node.Held, Owner: "another"}
		})
		op := node.Op{Kind: node.OpAcquire, Epoch: 1, Resource: "r", Owner: "mine", TTL: req.TTL}
		answered, run := c.locker.NewAttempt(t.Context(), op, time.Second)
		var retracted, late bool
		c.spoil(2, func(op node.Op, r node.Reply) (time.Duration, node.Reply) {
			if op.Kind == node.OpRetract {
				retracted = true
				select {
				case <-answered:
					late = true
				default:
				}
			}
			return roundTrip, r
		})
		if verdict := run(); verdict != quorum.Lost || !retracted || late {
			t.Errorf("%s, the vote retracted: %v, after the answer: %v", verdict, retracted, late)
		}
	})
}

func TestNodeTimeoutBoundsAnAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, redlock.Config{NodeTimeout: 30 * time.Millisecond})
		c.cut(0, 1, 2)
		began := time.Now()
		_, err := c.Acquire(t.Context(), req)
		var e *lockcore.QuorumError
		if !errors.As(err, &e) || time.Since(began) != 30*time.Millisecond {
			t.Fatalf("%v after %s", err, time.Since(began))
		}
		if e.Quorum != 3 || e.Answered != 2 || e.Granted != 2 || len(e.Nodes) != 5 || e.Nodes[0].Reason != redlock.ErrNoAnswer.Error() || e.Nodes[3].Reason != "granted" {
			t.Errorf("%+v", e)
		}
		settle(time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d votes are left", n)
		}
	})
}

// An attempt is lost as soon as a quorum is impossible, and not only at the time limit. Its error does not blame a
// node whose reply it did not wait for.
func TestLostQuorumIsAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		for _, i := range []int{0, 1} {
			c.fakes[i].Answer(fakenode.Always(node.Reply{Outcome: node.Failed, Err: node.ErrNodeDown}))
		}
		c.spoil(2, func(_ node.Op, r node.Reply) (time.Duration, node.Reply) { return 2 * roundTrip, r })
		calls := map[string]func() error{
			"acquire": func() error { _, err := c.Acquire(t.Context(), req); return err },
			"extend":  func() error { _, err := c.Extend(t.Context(), lease.ID, time.Second); return err },
		}
		for name, call := range calls {
			began := time.Now()
			var e *lockcore.QuorumError
			if err := call(); !errors.As(err, &e) || time.Since(began) != roundTrip {
				t.Fatalf("%s: %v after %s", name, err, time.Since(began))
			}
			if e.Nodes[0].Reason != node.ErrNodeDown.Error() || e.Nodes[2].Reason != redlock.NotAwaited {
				t.Errorf("%s: %+v", name, e.Nodes)
			}
		}
	})
}

// A caller that gives up at any moment leaves no vote, not even on the node whose reply does not arrive.
func TestAbandonedAcquireLeavesNoVote(t *testing.T) {
	for _, after := range []time.Duration{0, 500 * time.Microsecond, 2 * time.Millisecond, 12 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3, redlock.Config{})
			c.fakes[0].Count(4)
			for i := range 3 {
				slow := time.Duration(i+1) * 5 * time.Millisecond
				c.spoil(i, func(op node.Op, r node.Reply) (time.Duration, node.Reply) {
					if i == 2 && op.Kind == node.OpAcquire {
						return slow, node.Reply{Outcome: node.Failed, Err: redlock.ErrNoAnswer, Sent: true}
					}
					return slow, r
				})
			}
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			_, err := c.Acquire(ctx, req)
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, lockcore.ErrNoQuorum) {
				t.Errorf("after %s: %v", after, err)
			}
			settle(time.Second)
			if n := c.locked(); n != 0 {
				t.Errorf("after %s: %d votes are left", after, n)
			}
		})
	}
}

// A grant that comes after the attempt was lost is retracted.
func TestLateGrantIsRetracted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		c.cut(1, 2)
		c.spoil(0, func(op node.Op, r node.Reply) (time.Duration, node.Reply) {
			if op.Kind == node.OpAcquire {
				return time.Second, r
			}
			return roundTrip, r
		})
		if _, err := c.Acquire(t.Context(), req); !errors.Is(err, lockcore.ErrNoQuorum) {
			t.Fatal(err)
		}
		if c.locked() != 1 {
			t.Fatal("the test is wrong: no late vote")
		}
		settle(2 * time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d votes are left", n)
		}
	})
}

func TestHeldSaysByWhom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		first := mustAcquire(t, c, req)
		settle(time.Second)
		_, err := c.Acquire(t.Context(), lockcore.Request{Resource: "r", Holder: "other"})
		var held *lockcore.HeldError
		if !errors.As(err, &held) {
			t.Fatal(err)
		}
		if held.Holder != "h" || held.Token != first.Token || held.Remaining != 9*time.Second-roundTrip && held.Remaining != 9*time.Second {
			t.Errorf("%+v", held)
		}
	})
}

// If the votes are split between two callers, they try again.
func TestSplitVotesAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		// Another caller's votes on one node, a third's on another; both go
		// back a little later.
		for i := range 2 {
			c.fakes[i].Take([]string{"one", "two"}[i], 3*time.Millisecond)
		}
		c.spoil(2, func(_ node.Op, r node.Reply) (time.Duration, node.Reply) { return roundTrip / 2, r })
		lease := mustAcquire(t, c, req)
		if lease.Token < 2 {
			t.Errorf("token %d", lease.Token)
		}
		synctest.Wait()
		owners := make(map[string]bool)
		for _, op := range c.fakes[0].Ops(node.OpAcquire) {
			owners[op.Owner] = true
		}
		if len(owners) < 2 || len(owners) != len(c.fakes[0].Ops(node.OpAcquire)) {
			t.Errorf("%d attempts used %d owners: a fresh one each attempt (rule 3)", len(c.fakes[0].Ops(node.OpAcquire)), len(owners))
		}
	})
}

// A split that does not resolve ends the acquire.
func TestSplitVotesAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		for i, lease := range []string{"one", "two", "three"} {
			c.fakes[i].Take(lease, time.Minute)
		}
		began := time.Now()
		_, err := c.Acquire(t.Context(), req)
		var held *lockcore.HeldError
		if !errors.As(err, &held) || held.Token != 0 || time.Since(began) > time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// If a node refuses a vote because the epoch has changed, the vote is requested again in the epoch that the node
// returned (rule 8).
func TestStaleEpochIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		for _, f := range c.fakes {
			f.Install(t, 7)
		}
		lease := mustAcquire(t, c, req)
		if c.locker.Members().Epoch() != 7 {
			t.Errorf("the epoch is %d", c.locker.Members().Epoch())
		}
		for _, f := range c.fakes {
			f.Install(t, 9)
		}
		if _, err := c.Extend(t.Context(), lease.ID, 0); err != nil {
			t.Errorf("extend: %v", err)
		}
	})
}

// If a broken node grants an implausible number, that does not become a token.
func TestImplausibleGrantDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		broken := func(_ node.Op, r node.Reply) (time.Duration, node.Reply) {
			if r.Outcome == node.Granted {
				r.Grant = 1 << 52
			}
			return roundTrip, r
		}
		c.spoil(1, broken)
		lease := mustAcquire(t, c, req)
		if lease.Token != 1 {
			t.Errorf("token %d", lease.Token)
		}
		c.spoil(2, broken)
		if _, err := c.Acquire(t.Context(), lockcore.Request{Resource: "other"}); !errors.Is(err, lockcore.ErrNoQuorum) {
			t.Errorf("one sound node of three: %v", err)
		}
	})
}

// If nothing of the TTL is left when the quorum has agreed, there is no lease.
func TestLeaseWithoutValidityIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{MaxTTL: time.Second, NodeTimeout: 100 * time.Millisecond})
		for i := range 3 {
			c.spoil(i, func(op node.Op, r node.Reply) (time.Duration, node.Reply) {
				if op.Kind == node.OpAcquire {
					r.Remaining = 4 * time.Millisecond
					return 5 * time.Millisecond, r
				}
				return roundTrip, r
			})
		}
		_, err := c.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: lockcore.MinTTL})
		if !errors.Is(err, lockcore.ErrNoQuorum) {
			t.Fatal(err)
		}
		settle(time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d votes are left", n)
		}
	})
}

func TestExhaustedAndMismatched(t *testing.T) {
	for want, outcome := range map[error]node.Outcome{lockcore.ErrTokensExhausted: node.Exhausted, lockcore.ErrIdempotencyMismatch: node.OtherResource} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3, redlock.Config{})
			for i := range 3 {
				c.fakes[i].Answer(fakenode.Always(node.Reply{Outcome: outcome}))
			}
			if _, err := c.Acquire(t.Context(), req); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		})
	}
}

// The response to a request under an idempotency key is lost. A retry finds the lease: the same id, the same token,
// and what is left of the TTL.
func TestIdempotentRetryFindsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		c.fakes[2].Count(8)
		keyed := req
		keyed.IdempotencyKey = "key"
		first := mustAcquire(t, c, keyed)
		settle(time.Second)
		keyed.Wait = time.Second
		again := mustAcquire(t, c, keyed)
		if again.ID != first.ID || again.Token != first.Token || !again.Existing || again.Holder != first.Holder {
			t.Errorf("first %+v\nagain %+v", first, again)
		}
		if again.Validity >= first.Validity-time.Second+2*roundTrip {
			t.Errorf("validity %s, and %s a second later", first.Validity, again.Validity)
		}
	})
}

// A failed attempt under a key retracts only those votes that no other attempt may have counted.
func TestFailedIdempotentRetryKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		keyed := req
		keyed.IdempotencyKey = "key"
		first := mustAcquire(t, c, keyed)
		for i := range 3 {
			c.spoil(i, func(op node.Op, r node.Reply) (time.Duration, node.Reply) {
				if op.Kind == node.OpAcquire {
					return 20 * time.Millisecond, r
				}
				return roundTrip, r
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if _, err := c.Acquire(ctx, keyed); err == nil {
			t.Fatal("the retry was in time")
		}
		settle(2 * time.Second)
		if n := c.locked(); n != 3 {
			t.Errorf("the failed retry left %d of 3 votes of the lease", n)
		}
		if _, err := c.Lease(t.Context(), first.ID); err != nil {
			t.Errorf("the lease: %v", err)
		}
	})
}

// One node is down, and two report that the resource is held, so no quorum can grant. Only these two tell whether the
// resource is held or the nodes are unreachable.
func TestHeldWithANodeDownIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, redlock.Config{})
		first := mustAcquire(t, c, req)
		settle(time.Second)
		c.fakes[0].Answer(func(node.Op) (time.Duration, node.Reply) { return 0, node.Reply{Err: redlock.ErrNoAnswer} })
		for _, slow := range []int{3, 4} {
			c.spoil(slow, func(_ node.Op, r node.Reply) (time.Duration, node.Reply) { return 10 * roundTrip, r })
		}
		began := time.Now()
		_, err := c.Acquire(t.Context(), req)
		var held *lockcore.HeldError
		if !errors.As(err, &held) || held.Token != first.Token {
			t.Errorf("%v, want held with token %d", err, first.Token)
		}
		if took := time.Since(began); took != 10*roundTrip {
			t.Errorf("took %s, want until a quorum had answered", took)
		}
		c.cut(3, 4)
		began = time.Now()
		if _, err = c.Acquire(t.Context(), req); !errors.Is(err, lockcore.ErrNoQuorum) {
			t.Errorf("with two more that do not answer: %v", err)
		}
		if took := time.Since(began); took > c.cfg.NodeTimeout {
			t.Errorf("took %s, longer than a node's time limit", took)
		}
	})
}
