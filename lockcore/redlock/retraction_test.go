package redlock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// A retry under a key finds the short lease of the first try on two nodes, and takes the third node for longer. Then
// it fails at another resource. Its own vote is retracted for as long as that vote lasts, not only for as long as the
// lease that it found.
func TestRetractionsOutlastTheLeaseThatAKeyFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		both := lockcore.Request{Resources: []string{"r", "s"}, TTL: 300 * time.Millisecond, IdempotencyKey: "k"}
		c.cut(2)
		mustAcquire(t, c, both)
		down := time.Now().Add(time.Second)
		for i := range c.fakes {
			f := c.fakes[i]
			f.Answer(func(op node.Op) (time.Duration, node.Reply) {
				switch {
				case op.Kind == node.OpAcquire && op.Resource == "s":
					return roundTrip, node.Reply{Outcome: node.NotAdmitted}
				case op.Kind == node.OpRetract && i == 2 && time.Now().Before(down):
					return roundTrip, node.Reply{Err: redlock.ErrNoAnswer, Sent: true}
				}
				return roundTrip, f.Apply(op)
			})
		}
		both.TTL = 10 * time.Second
		if _, err := c.Acquire(t.Context(), both); err == nil {
			t.Fatal("it was granted")
		}
		settle(3 * time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d nodes have the lock of a request that failed", n)
		}
	})
}

// The first waiter of the releasing server tries right behind the release, so the nodes wake nobody for it. Two nodes
// get the release after the try, which therefore meets the lease. The waiter tries again when the release has ended,
// and not only after a pause.
func TestAWaiterWhoseTryOvertakesTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		lease := mustAcquire(t, c, req)
		granted := make(chan time.Time, 1)
		go func() {
			waits := req
			waits.Wait = 30 * time.Second
			if _, err := c.Acquire(t.Context(), waits); err != nil {
				t.Error(err)
			}
			granted <- time.Now()
		}()
		settle(100 * time.Millisecond)
		const late = 20 * time.Millisecond
		for _, f := range c.fakes[:2] {
			f.Answer(func(op node.Op) (time.Duration, node.Reply) {
				if op.Kind != node.OpRelease {
					return roundTrip, f.Apply(op)
				}
				time.AfterFunc(late, func() { f.Apply(op) })
				return late + roundTrip, node.Reply{Outcome: node.Granted, Grant: lease.Token}
			})
		}
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
		ended := time.Now()
		if took := (<-granted).Sub(ended); took > 2*roundTrip {
			t.Errorf("granted %s after the release ended", took)
		}
	})
}
