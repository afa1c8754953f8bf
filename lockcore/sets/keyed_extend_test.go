package sets_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// A lease under a key is on nodes 1 and 2. A retry reaches only node 3, and fails. Before its vote is retracted, an
// extend of the lease counts that vote, and misses node 2. The retraction must not free node 3, on which the lease
// counts: nodes 2 and 3 would grant what the holder still has.
func TestRetractionLeavesWhatAnExtendCountsOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 3)
		defer func() { stop(); time.Sleep(time.Minute) }()
		holder, retry, other := a.servers[0], a.servers[1], a.servers[2]
		a.cut(true, 3)
		lease := a.must(holder, lockcore.Request{Resource: "r", TTL: 2 * time.Second, IdempotencyKey: "k"})
		a.cut(false, 3)
		time.Sleep(500 * time.Millisecond)
		for _, w := range a.wires[1][:2] {
			w.set(func() { w.down = true })
		}
		a.wires[1][2].delay(node.OpRetract)
		if l, err := retry.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 30 * time.Second, IdempotencyKey: "k"}); err == nil {
			t.Fatalf("the retry has a lease: %+v", l)
		}

		a.wires[0][1].set(func() { a.wires[0][1].down = true })
		extended, err := holder.Extend(t.Context(), lease.ID, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}

		time.Sleep(3 * time.Second)

		a.wires[2][0].set(func() { a.wires[2][0].down = true })
		if l, err := other.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 30 * time.Second}); err == nil {
			t.Errorf("two leases: %+v and %+v", extended, l)
		}
	})
}

// A lease under a key is released, and the release reaches node 1 late. The next lease under the key is on nodes 2
// and 3. Its extend counts the old lock on node 1, and misses node 3. The release must not free node 1: nodes 1 and 3
// would grant what the holder of the next lease still has.
func TestReleaseLeavesWhatTheNextLeaseExtended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 3)
		defer func() { stop(); time.Sleep(time.Minute) }()
		first, next, other := a.servers[0], a.servers[1], a.servers[2]
		lease := a.must(first, lockcore.Request{Resource: "r", TTL: 30 * time.Second, IdempotencyKey: "k"})
		time.Sleep(time.Second)
		a.wires[0][0].set(func() {
			a.wires[0][0].hook = func(op node.Op) time.Duration {
				if op.Kind == node.OpRelease {
					return 5 * time.Second
				}
				return 0
			}
		})
		if err := first.Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}

		a.wires[1][0].set(func() { a.wires[1][0].down = true })
		lease = a.must(next, lockcore.Request{Resource: "r", TTL: 2 * time.Second, IdempotencyKey: "k"})
		a.wires[1][0].set(func() { a.wires[1][0].down = false })
		a.wires[1][2].set(func() { a.wires[1][2].down = true })
		extended, err := next.Extend(t.Context(), lease.ID, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(8 * time.Second)

		a.wires[2][1].set(func() { a.wires[2][1].down = true })
		if l, err := other.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 30 * time.Second}); err == nil {
			t.Errorf("two leases: %+v and %+v", extended, l)
		}
	})
}
