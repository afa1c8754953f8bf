package redlock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// A retry under a key finds the short lease of the first try on two nodes, and takes the
// third for longer; then it fails at another resource. Its own vote is retracted for as
// long as that lasts, not for as long as the lease that it found.
func TestRetractionsOutlastTheLeaseThatAKeyFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		both := lockcore.AcquireRequest{Resources: []string{"r", "s"}, TTL: 300 * time.Millisecond, IdempotencyKey: "k"}
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
