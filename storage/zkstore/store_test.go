package zkstore

import (
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/storetest"
	"github.com/fencelock/fencelock/storage/overlay"
	"github.com/fencelock/fencelock/storage/rowlog"
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

// What had ended for a transaction that wrote has ended for those after it, also where the
// leader's time is known less exactly. One that wrote nothing costs nothing.
func TestAnEndIsTheSameForAll(t *testing.T) {
	m := newMirror(header{})
	m.Put(rowlog.Row{Key: "lock", Row: overlay.Row{Value: []byte("1"), Ends: 1000}})
	for name, c := range map[string]struct {
		low    int64
		writes bool
		want   []string
	}{
		"ended":           {1000, true, []string{"lock"}},
		"perhaps ended":   {999, true, nil},
		"nothing written": {1000, false, nil},
	} {
		tx := newTx(m, c.low, 1001)
		if raw, _ := tx.Get("lock"); (raw == nil) != (c.low >= 1000) {
			t.Errorf("%s: the row is %q", name, raw)
		}
		if c.writes {
			tx.Put("counter", nil, time.Hour)
		}
		if e := tx.entry(); (e != nil) != c.writes || e != nil && !slices.Equal(e.deleted, c.want) {
			t.Errorf("%s: the entry is %+v, want that it deletes %q", name, e, c.want)
		}
	}
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
