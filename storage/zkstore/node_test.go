package zkstore

import (
	"context"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
)

type testNode struct {
	*replica.Node
	store *Store
}

func openNode(tb testing.TB, store *Store, opts replica.Options) *testNode {
	tb.Helper()
	opts.Timeout = time.Minute // a busy machine is late
	r, err := replica.New(tb.Context(), "zookeeper", store, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close() })
	return &testNode{Node: r, store: store}
}

func (n *testNode) restart(tb testing.TB) func() {
	tb.Helper()
	return func() { reincarnate(tb, n.store) }
}

func (n *testNode) wipe(tb testing.TB) func() {
	tb.Helper()
	return func() { wipe(tb, n.store) }
}

func wipe(tb testing.TB, store *Store) {
	tb.Helper()
	err := store.Update(context.Background(), func(tx replica.Tx) error {
		tx.Purge()
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

func TestConformance(t *testing.T) {
	testenv.Long(t, "a ZooKeeper store that passes storetest and breaks a rule of nodes")
	t.Parallel()
	store := openStore(t, newURL(t), patient())
	nodetest.RunReplica(t, func(t *testing.T, wanted nodetest.Wanted) nodetest.Harness {
		t.Helper()
		wipe(t, store)
		n := openNode(t, store, replica.Options{Rules: replica.Rules{CounterTTL: wanted.CounterTTL}, Bootstrap: !wanted.Blank})
		return nodetest.Harness{Node: n, Restart: n.restart(t), Wipe: n.wipe(t), Spoil: nodetest.SpoilRow(t, store)}
	})
}

func TestDifferential(t *testing.T) {
	testenv.Long(t, "such a store that breaks one in a sequence that nobody wrote down")
	t.Parallel()
	store := openStore(t, newURL(t), patient())
	nodetest.DifferentialReplica(t, func() (nodetest.Harness, func()) {
		n := openNode(t, store, replica.Options{})
		n.wipe(t)()
		return nodetest.Harness{Node: n, Restart: n.restart(t), Wipe: n.wipe(t)}, func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
