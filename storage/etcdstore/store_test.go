package etcdstore

import (
	"context"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/storetest"
)

// patient are options for tests whose operations must not time out on a busy machine.
func patient() Options { return Options{Timeout: 20 * time.Second, Patience: 30 * time.Second} }

func openStore(tb testing.TB, url string) *Store {
	tb.Helper()
	s, err := Open(tb.Context(), url, patient())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		t.Helper()
		url := testenv.EtcdURL(t)
		s := openStore(t, url)
		return storetest.Harness{
			Store: s,
			Slack: time.Second,
			Reopen: func() replica.Store {
				_ = s.Close()
				s = openStore(t, url)
				return s
			},
			Lose:   func() { forgetHead(t, s) },
			Beside: func() replica.Store { return openStore(t, url) },
		}
	})
}

// forgetHead makes the rows those of no life.
func forgetHead(tb testing.TB, s *Store) {
	tb.Helper()
	if _, err := s.conn.client.Delete(context.WithoutCancel(tb.Context()), s.target.prefix+headName); err != nil {
		tb.Fatal(err)
	}
}

func openNode(tb testing.TB, store *Store, opts replica.Options) *replica.Node {
	tb.Helper()
	opts.Timeout = time.Minute // a busy machine is late
	n, err := replica.New(tb.Context(), "etcd", store, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = n.Close() })
	return n
}

func TestConformance(t *testing.T) {
	t.Parallel()
	store := openStore(t, testenv.EtcdURL(t))
	nodetest.RunReplica(t, func(t *testing.T, wanted nodetest.Wanted) nodetest.Harness {
		t.Helper()
		wipe(t, store)
		n := openNode(t, store, replica.Options{Rules: replica.Rules{CounterTTL: wanted.CounterTTL}, Bootstrap: !wanted.Blank})
		return nodetest.Harness{Node: n, Wipe: func() { wipe(t, store) }, Spoil: nodetest.SpoilRow(t, store)}
	})
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

func TestDifferential(t *testing.T) {
	testenv.Long(t, "an etcd store that passes storetest and breaks a rule")
	t.Parallel()
	nodetest.DifferentialReplica(t, func() (nodetest.Harness, func()) {
		store := openStore(t, testenv.EtcdURL(t))
		n := openNode(t, store, replica.Options{})
		return nodetest.Harness{Node: n, Wipe: func() { wipe(t, store) }}, func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
