package replica_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/memstore"
)

// stillStore stops inside a write, as if the process around it were stopped, until the time of the write is long
// over.
type stillStore struct {
	*memstore.Store
	still atomic.Bool
}

func (s *stillStore) Update(ctx context.Context, fn func(replica.Tx) error) error {
	if !s.still.CompareAndSwap(true, false) {
		return s.Store.Update(ctx, fn)
	}
	time.Sleep(3 * time.Second)
	return ctx.Err()
}

// A server that was stopped inside a write must not conclude that its node cannot be written. The next write shows
// that it can.
func TestAWriteOfAStoppedServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &stillStore{Store: memstore.New(memstore.Options{})}
		n, err := replica.New(t.Context(), "node", store, replica.Options{Bootstrap: true, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}()
		n.Join(node.Cluster{Nodes: 1, Hash: "c0ffee"})
		store.still.Store(true)
		if err := n.RaiseMaxTTL(t.Context(), time.Minute); err == nil {
			t.Error("a write without an effect succeeded")
		}
		if err := n.Prove(t.Context(), time.Hour); err != nil {
			t.Errorf("after the stop: %v", err)
		}
	})
}
