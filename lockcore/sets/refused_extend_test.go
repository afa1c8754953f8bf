package sets_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Node 2 has missed some grants. A lease has only its lock on node 3 left, and two failing attempts have their votes
// on nodes 1 and 2. Both refuse the lease's extend, and the holder is told that the lease has ended, even if no node
// replies to the release by which that extend cleans up. When the votes are retracted, node 2 would make the lock
// again: a later extend would succeed on nodes 2 and 3, and the release would then free node 3. So a later extend
// must fail, too.
func TestALeaseThatWasRefusedHasEnded(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string][]int{"the release to node 3 is late": {3}, "the release is late everywhere": {1, 2, 3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { refusedHasEnded(t, slow) })
		})
	}
}

func refusedHasEnded(t *testing.T, slow []int) {
	t.Helper()
	a, stop := newArena(t, 3, 4)
	defer func() { stop(); time.Sleep(time.Minute) }()
	holder, one, two, other := a.servers[0], a.servers[1], a.servers[2], a.servers[3]
	down := func(server, n int, is bool) {
		w := a.wires[server][n-1]
		w.set(func() { w.down = is })
	}
	a.cut(true, 2)
	for range 3 {
		a.must(holder, lockcore.Request{Resource: "r", TTL: time.Second})
		time.Sleep(2 * time.Second)
	}
	lease := a.must(holder, lockcore.Request{Resource: "r", TTL: 2 * time.Second})
	a.cut(false, 2)
	down(0, 1, true)
	down(0, 2, true)
	if _, err := holder.Extend(t.Context(), lease.ID, 30*time.Second); !errors.Is(err, lockcore.ErrNoQuorum) {
		t.Fatalf("on one node: %v", err)
	}
	time.Sleep(3 * time.Second)
	down(0, 1, false)
	down(0, 2, false)

	for server, alone := range map[int]int{1: 1, 2: 2} { // each has a vote on the node of its number
		for n := 1; n <= 3; n++ {
			down(server, n, n != alone)
		}
		a.wires[server][alone-1].delay(node.OpRetract)
	}
	for _, server := range []*locker{one, two} {
		if l, err := server.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 30 * time.Second}); err == nil {
			t.Fatalf("an attempt has a lease: %+v", l)
		}
	}
	for _, n := range slow {
		w := a.wires[0][n-1]
		w.set(func() {
			w.hook = func(op node.Op) time.Duration {
				if op.Kind == node.OpRelease {
					return 5 * time.Second
				}
				return 0
			}
		})
	}
	if _, err := holder.Extend(t.Context(), lease.ID, 30*time.Second); !errors.Is(err, lockcore.ErrNotHeld) {
		t.Errorf("two nodes refuse: %v", err)
	}

	time.Sleep(time.Second) // the votes are retracted
	if extended, err := other.Extend(t.Context(), lease.ID, 30*time.Second); err == nil {
		t.Errorf("a lease that had ended is extended: %+v", extended)
	}
	time.Sleep(4100 * time.Millisecond) // the release has reached node 3
	down(3, 2, true)
	if _, err := other.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 30 * time.Second}); err != nil {
		t.Errorf("another has it: %v", err)
	}
}
