package redlock_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/fakenode"
)

func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := c.locked(); n != 0 {
			t.Errorf("%d locks stayed", n)
		}
		if err := c.Release(t.Context(), lease.ID); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Errorf("a second release: %v", err)
		}
		// The release took the counter past the token.
		if next := mustAcquire(t, c, req); next.Token != lease.Token+2 {
			t.Errorf("the next token is %d after %d", next.Token, lease.Token)
		}
	})
}

// A release that a minority has missed succeeds, and continues on that minority in the background.
func TestReleaseGoesOnInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		synctest.Wait()
		tries := 0
		c.fakes[2].Answer(func(op node.Op) (time.Duration, node.Reply) {
			if tries++; tries < 4 {
				return roundTrip / 2, node.Reply{Outcome: node.Failed, Err: node.ErrNodeDown}
			}
			return roundTrip, c.fakes[2].Apply(op)
		})
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
		settle(time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d locks stayed", n)
		}
	})
}

// If a quorum has replied to a release, no node is asked twice.
func TestReleaseAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		c.spoil(2, func(_ node.Op, r node.Reply) (time.Duration, node.Reply) { return 5 * roundTrip, r })
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
		settle(time.Second)
		for i, f := range c.fakes {
			if n := len(f.Ops(node.OpRelease)); n != 1 {
				t.Errorf("node %d was asked %d times", i+1, n)
			}
		}
	})
}

// A release says whether a waiter of this server asks for the lock right behind it. The repetition of a release does
// not say so, because nobody asks behind that.
func TestReleaseNamesTheServerThatAsksBehindIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		held := mustAcquire(t, c, req)
		granted := make(chan lockcore.Lease, 1)
		go func() {
			waits := req
			waits.Wait = time.Minute
			lease, err := c.Acquire(t.Context(), waits)
			if err != nil {
				t.Error(err)
			}
			granted <- lease
		}()
		settle(time.Second)
		failed := false
		c.spoil(2, func(op node.Op, r node.Reply) (time.Duration, node.Reply) {
			if op.Kind == node.OpRelease && !failed {
				failed = true
				r = node.Reply{Err: redlock.ErrNoAnswer, Sent: true}
			}
			return roundTrip, r
		})
		for _, id := range []func() string{func() string { return held.ID }, func() string { return (<-granted).ID }} {
			if err := c.Release(t.Context(), id()); err != nil {
				t.Fatal(err)
			}
			settle(time.Second)
		}
		var named []bool
		for _, op := range c.fakes[2].Ops(node.OpRelease) {
			named = append(named, op.Ticket.Server != "")
		}
		if len(named) < 3 || !named[0] || slices.Contains(named[1:], true) {
			t.Errorf("of the releases to node 3, these name the server: %v, want the first alone", named)
		}
	})
}

// If a release gets no reply from a node, it is sent to the node again after the first one has failed.
func TestReleaseGoesOnAfterALateFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		synctest.Wait()
		first := true
		c.fakes[2].Answer(func(op node.Op) (time.Duration, node.Reply) {
			if first {
				first = false
				return time.Second, node.Reply{Outcome: node.Failed, Err: redlock.ErrNoAnswer, Sent: true}
			}
			return roundTrip, c.fakes[2].Apply(op)
		})
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
		settle(2 * time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d locks stayed", n)
		}
	})
}

// A node that is being admitted gets the locks that the others had a moment ago. If one of these was released
// meanwhile, the release must reach that node, too.
func TestReleaseDuringARejoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		synctest.Wait()
		c.fakes[2].Answer(fakenode.Always(node.Reply{Outcome: node.NotAdmitted}))
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
		settle(50 * time.Millisecond)
		c.heal(2) // and it has the lock
		settle(2 * time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d locks stayed", n)
		}
		// A node that does not answer is not asked for long.
		asked := len(c.fakes[2].Ops(node.OpRelease))
		c.fakes[2].Answer(fakenode.Always(node.Reply{Outcome: node.NotAdmitted}))
		lease = mustAcquire(t, c, req)
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
		settle(time.Minute)
		if n := len(c.fakes[2].Ops(node.OpRelease)) - asked; n > 6 {
			t.Errorf("a node that does not answer was asked %d times", n)
		}
	})
}

// A vote may reach a node after the release of its own lease, which another server has sent.
func TestReleaseTakesBackALateVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, answers := range []time.Duration{roundTrip / 2, 5 * roundTrip} { // before the release is answered, and after
			c := newCluster(t, 3, redlock.Config{})
			c.fakes[2].Answer(func(op node.Op) (time.Duration, node.Reply) {
				if op.Kind == node.OpAcquire {
					time.AfterFunc(100*time.Millisecond, func() {
						c.fakes[2].Apply(op)
					})
					return -1, node.Reply{}
				}
				return answers, c.fakes[2].Apply(op)
			})
			lease := mustAcquire(t, c, req)
			if err := c.Release(t.Context(), lease.ID); err != nil {
				t.Fatal(err)
			}
			settle(150 * time.Millisecond)
			if n := c.locked(); n != 1 {
				t.Fatalf("%d locks, want the late vote", n)
			}
			settle(time.Second)
			if n := c.locked(); n != 0 {
				t.Errorf("the late vote stayed")
			}
			if n := len(c.fakes[2].Ops(node.OpRelease)); n != 2 {
				t.Errorf("the node was asked %d times", n)
			}
		}
	})
}

func TestReleaseWithoutQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		synctest.Wait()
		for _, i := range []int{0, 1} {
			c.fakes[i].Answer(fakenode.Always(node.Reply{Outcome: node.Failed, Err: node.ErrNodeDown}))
		}
		if err := c.Release(t.Context(), lease.ID); !errors.Is(err, lockcore.ErrNoQuorum) {
			t.Fatal(err)
		}
		for _, i := range []int{0, 1} {
			c.heal(i)
		}
		settle(3 * time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d locks stayed after the nodes were back", n)
		}
	})
}

// If one node had lost the lock, the release of the others still succeeds.
func TestReleaseOfAPartlyLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		synctest.Wait()
		c.fakes[1].ExpireNow("r")
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Error(err)
		}
	})
}

// The end of a lease is reported once, by the release that ended the lease.
func TestAReleaseSaysWhatItEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		opened, err := c.Open(t.Context(), lease.ID)
		if err != nil {
			t.Fatal(err)
		}
		if ended, err := opened.Release(t.Context()); err != nil || !slices.Equal(ended, opened.Terms().Parts) {
			t.Errorf("the release: %v, %v", ended, err)
		}
		if ended, err := opened.Release(t.Context()); !errors.Is(err, lockcore.ErrNotHeld) || len(ended) > 0 {
			t.Errorf("again: %v, %v", ended, err)
		}
	})
}
