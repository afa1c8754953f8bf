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

// forgetHead makes the rows belong to no incarnation.
func forgetHead(tb testing.TB, s *Store) {
	tb.Helper()
	if _, err := s.conn.client.Delete(context.WithoutCancel(tb.Context()), s.target.prefix+headName); err != nil {
		tb.Fatal(err)
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	nodetest.OnStore{Store: openStore(t, testenv.EtcdURL(t))}.Run(t)
}

func TestDifferential(t *testing.T) {
	testenv.Long(t, "an etcd store that passes storetest and breaks a rule")
	t.Parallel()
	nodetest.OnStore{Store: openStore(t, testenv.EtcdURL(t))}.Differential(t)
}
