package sets_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// Node 1 misses a bootstrap. A lease of the new epoch is on nodes 2 and 3. While node 1 rejoins, and has been given
// the locks that nodes 2 and 3 show, a release reaches nodes 1 and 2. The reply of node 1 must not count: nodes 1 and
// 3 would extend the lease.
func TestReleaseWhileANodeThatMissedABootstrapRejoins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer func() { stop(); time.Sleep(time.Minute) }()
		holder, other := a.servers[0], a.servers[1]
		a.cut(true, 1)
		a.models[1].Restart(false)
		a.models[2].Restart(false)
		time.Sleep(70 * time.Second)
		lease := a.must(holder, lockcore.Request{Resource: "r", TTL: time.Minute})

		var began atomic.Bool // and no sync.Once: who waits for that one holds up the time of the bubble
		rejoins, released := make(chan struct{}), error(nil)
		for _, ws := range a.wires {
			ws[0].set(func() {
				ws[0].staging = func() {
					if began.Swap(true) {
						<-rejoins
						return
					}
					a.wires[0][2].set(func() { a.wires[0][2].down = true })
					released = holder.Release(t.Context(), lease.ID)
					close(rejoins)
				}
			})
		}
		a.cut(false, 1)
		for waiting := true; waiting; {
			select {
			case <-rejoins:
				waiting = false
			case <-time.After(20 * time.Second):
				if _, err := holder.Extend(t.Context(), lease.ID, time.Minute); err != nil {
					t.Fatal(err)
				}
			}
		}
		for seen, _ := a.models[0].Observe(t.Context()); !seen.Admitted; seen, _ = a.models[0].Observe(t.Context()) {
			time.Sleep(time.Millisecond)
		}

		a.wires[1][1].set(func() { a.wires[1][1].down = true })
		extended, err := other.Extend(t.Context(), lease.ID, time.Minute)
		if released == nil && err == nil {
			t.Errorf("a released lease was extended: %+v", extended)
		}
		if released != nil && err != nil {
			t.Errorf("a lease whose release failed (%v) is not extended: %v", released, err)
		}
	})
}
