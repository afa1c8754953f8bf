package sets_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Node 1 counts ahead. The first request of a key has the votes of nodes 1 and 2, so it asks node 2 (and node 3
// later) to confirm the larger of the two grants. Before that arrives, the key's next request, at another server,
// finds the lock on nodes 2 and 3, which share the smaller grant, and is granted that. The confirm must not give this
// lock a larger grant: the lease could then not be extended or released, and would stay for its TTL.
func TestConfirmLeavesWhatTheNextRequestFound(t *testing.T) {
	t.Parallel()
	for _, after := range []string{"extend", "release"} {
		synctest.Test(t, func(t *testing.T) {
			a, stop := newArena(t, 3, 2)
			defer func() { stop(); time.Sleep(time.Minute) }()
			first, next := a.servers[0], a.servers[1]
			ahead := a.must(first, lockcore.Request{Resource: "r", TTL: time.Second}).Token + 10
			time.Sleep(2 * time.Second)
			a.models[0].Apply(node.Op{Kind: node.OpRelease, Epoch: node.Epoch(first.Status().Nodes[0].Epoch), Resource: "r", Owner: "stray", Token: ahead})

			for i, w := range a.wires[0] {
				w.set(func() {
					w.hook = func(op node.Op) time.Duration {
						switch {
						case op.Kind == node.OpConfirm:
							return 20 * time.Millisecond
						case op.Kind == node.OpAcquire && i == 2: // its vote comes last
							return 2 * time.Millisecond
						}
						return 0
					}
				})
			}
			req := lockcore.Request{Resource: "r", TTL: 30 * time.Second, IdempotencyKey: "k"}
			go func() { _, _ = first.Acquire(t.Context(), req) }()
			time.Sleep(10 * time.Millisecond)
			lease := a.must(next, req)
			if lease.Token > ahead {
				t.Fatalf("it has token %d", lease.Token)
			}
			time.Sleep(time.Second) // the confirm has arrived
			var err error
			if after == "extend" {
				_, err = next.Extend(t.Context(), lease.ID, 0)
			} else {
				err = next.Release(t.Context(), lease.ID)
			}
			if err != nil {
				t.Errorf("%s: %v; there is a lock on %v", after, err, a.on("r"))
			}
		})
	}
}
