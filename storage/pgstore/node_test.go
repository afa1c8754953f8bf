package pgstore

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
	url   string
}

func openNode(tb testing.TB, store *Store, url string, opts replica.Options) *testNode {
	tb.Helper()
	opts.Timeout = time.Minute // a busy machine is late
	r, err := replica.New(tb.Context(), "postgres", store, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close() })
	return &testNode{Node: r, store: store, url: url}
}

// restart makes the table another one with the same rows, which a restart of the server
// does not.
func (n *testNode) restart(tb testing.TB) func() {
	tb.Helper()
	return func() {
		tb.Helper()
		execSQL(tb, n.url,
			`ALTER TABLE fencelock.rows RENAME TO former`,
			`CREATE TABLE fencelock.rows (LIKE fencelock.former INCLUDING ALL)`,
			`INSERT INTO fencelock.rows SELECT * FROM fencelock.former`,
			`DROP TABLE fencelock.former`)
	}
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

// patient are options for tests that do more than sweep, which a busy machine has less time for.
func patient() Options {
	opts := fast()
	opts.sweep.rest = 50 * time.Millisecond
	return opts
}

func TestConformance(t *testing.T) {
	testenv.Long(t, "a Postgres store that passes storetest and breaks a rule of nodes")
	t.Parallel()
	url := testenv.Postgres(t).OwnerURL()
	store := openStore(t, url, patient())
	nodetest.RunReplica(t, func(t *testing.T, wanted nodetest.Wanted) nodetest.Harness {
		t.Helper()
		wipe(t, store)
		n := openNode(t, store, url, replica.Options{Rules: replica.Rules{CounterTTL: wanted.CounterTTL}, Bootstrap: !wanted.Blank})
		return nodetest.Harness{Node: n, Restart: n.restart(t), Wipe: n.wipe(t), Spoil: nodetest.SpoilRow(t, store)}
	})
}

func TestDifferential(t *testing.T) {
	testenv.Long(t, "such a store that breaks one in a sequence that nobody wrote down")
	t.Parallel()
	url := testenv.Postgres(t).OwnerURL()
	store := openStore(t, url, patient())
	nodetest.DifferentialReplica(t, func() (nodetest.Harness, func()) {
		n := openNode(t, store, url, replica.Options{})
		n.wipe(t)()
		return nodetest.Harness{Node: n, Restart: n.restart(t), Wipe: n.wipe(t)}, func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
