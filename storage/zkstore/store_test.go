package zkstore

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/storetest"
)

// patient are options for tests whose operations must not time out on a busy machine.
func patient() Options {
	return Options{Timeout: time.Minute, Patience: time.Minute, sweep: sweeping{rest: 50 * time.Millisecond}}
}

// newURL is a path of a test's own on the server that all share.
func newURL(tb testing.TB) string {
	tb.Helper()
	return Scheme + testenv.SharedZooKeeper(tb) + "/tests/" + rand.Text()
}

func openStore(tb testing.TB, url string, opts Options) *Store {
	tb.Helper()
	s, err := Open(tb.Context(), url, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// reincarnate makes the log another one with the same rows.
func reincarnate(tb testing.TB, s *Store) {
	tb.Helper()
	was := statusOf(tb, s)
	s.mu.Lock()
	s.lost = true
	s.mu.Unlock()
	if statusOf(tb, s) == was {
		tb.Fatal("the incarnation is the same")
	}
}

func statusOf(tb testing.TB, s *Store) (status replica.Status) {
	tb.Helper()
	err := s.View(tb.Context(), func(tx replica.Tx) error {
		status = tx.Status()
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return status
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		t.Helper()
		url := newURL(t)
		s := openStore(t, url, patient())
		return storetest.Harness{
			Store: s,
			Reopen: func() replica.Store {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				s = openStore(t, url, patient())
				return s
			},
			Lose: func() { deletePath(t, s, s.target.path) },
		}
	})
}

// deletePath deletes a path as an operator does.
func deletePath(tb testing.TB, s *Store, path string) {
	tb.Helper()
	conn := s.session.present()
	names, _, err := conn.Children(path)
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		deletePath(tb, s, path+"/"+name)
	}
	if err := conn.Delete(path, -1); err != nil {
		tb.Fatal(err)
	}
}
