package redlock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// A request with an earlier map reaches the queue after the change has interrupted the waits. It does not wait,
// because its resource may be free under the present map.
func TestWaitByAnEarlierMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		earlier := c.locker.Now()
		c.locker.TakeMap(node.Map{Name: "later"})
		waits := req
		waits.Wait = 30 * time.Second
		began := time.Now()
		waits.Scope = waits.Resource
		_, err := earlier.Acquire(t.Context(), &waits)
		if !errors.Is(err, lockcore.ErrNoQuorum) {
			t.Errorf("it ended with %v", err)
		}
		if waited := time.Since(began); waited > c.cfg.NodeTimeout {
			t.Errorf("it waited for %s", waited)
		}
	})
}

// The wait that a request reports counts from its beginning, even if it waits a second time because its resource has
// moved.
func TestTimeoutCountsFromTheBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		mustAcquire(t, c, req)
		again := req
		again.Scope, again.Began = req.Resource, time.Now().Add(-2*time.Second)
		again.Wait = time.Second
		_, err := c.locker.Now().Acquire(t.Context(), &again)
		if timeout, ok := errors.AsType[*lockcore.WaitTimeoutError](err); !ok || timeout.Waited < 3*time.Second || timeout.Waited > 3*time.Second+10*roundTrip {
			t.Errorf("it ended with %v", err)
		}
	})
}
