package zkstore

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
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

// A commit that is answered while the log is read again is no loss: the incarnation stays.
func TestACommitWhileTheLogIsRead(t *testing.T) {
	t.Parallel()
	opts := patient()
	var during func()
	opts.read = func() {
		if f := during; f != nil {
			during = nil
			f()
		}
	}
	s := openStore(t, newURL(t), opts)
	putRow(t, s, "k", "1", 0)
	before := statusOf(t, s)
	s.reading <- struct{}{}
	during = func() { putRow(t, s, "k", "2", 0) }
	err := s.reload(t.Context())
	<-s.reading
	if err != nil {
		t.Fatal(err)
	}
	if k, _ := getRow(t, s, "k"); k != "2" || statusOf(t, s) != before {
		t.Errorf("row %q, want 2; %v, was %v", k, statusOf(t, s), before)
	}
}

// What an operator deletes is missed, by a server that runs and by one that starts: another
// incarnation begins, without rows, and is not young.
func TestDeletions(t *testing.T) {
	t.Parallel()
	for name, del := range map[string]func(s *Store) string{
		"the clock":      func(s *Store) string { return s.path("clock") },
		"the head":       func(s *Store) string { return s.path("head") },
		"the log":        func(s *Store) string { return s.path("log") },
		"an entry":       func(s *Store) string { return s.entryPath(s.lastEntry()) },
		"the last entry": func(s *Store) string { return s.entryPath(s.lastEntry() - 1) },
		"pieces":         func(s *Store) string { return s.path("pieces") },
		"everything":     func(s *Store) string { return s.target.path },
	} {
		for _, runs := range []bool{true, false} {
			if name == "everything" && !runs {
				continue // it is a new path then
			}
			t.Run(fmt.Sprintf("%s, a server runs: %t", name, runs), func(t *testing.T) {
				t.Parallel()
				url := newURL(t)
				s, operator := openStore(t, url, patient()), openStore(t, newURL(t), patient())
				putRow(t, s, "k", strings.Repeat("x", 2*maxInline), 0)
				putRow(t, s, "l", "1", 0)
				before, path := statusOf(t, s), del(s)
				if !runs {
					_ = s.Close()
				}
				deletePath(t, operator, path)
				if !runs {
					s = openStore(t, url, patient())
				}
				other := openStore(t, url, patient())
				statusOf(t, other)
				statusOf(t, s) // if the other one took the path for new, this one knows better
				for _, server := range []*Store{other, s} {
					now := statusOf(t, server)
					k, _ := getRow(t, server, "k")
					l, _ := getRow(t, server, "l")
					if now.Incarnation == before.Incarnation || k != "" || l != "" || server.Young() {
						t.Errorf("incarnation %v, was %v; rows of %d and %d bytes are left; young: %t", now, before, len(k), len(l), server.Young())
					}
				}
				putRow(t, s, "k", "2", 0)
				if k, _ := getRow(t, other, "k"); k != "2" || statusOf(t, other) != statusOf(t, s) {
					t.Errorf("row %q, want 2", k)
				}
				testenv.Eventually(t, 20*time.Second, func() error {
					names, err := other.children(t.Context(), other.path("log"))
					if entries, _, _ := other.shape(); err == nil && len(names) != entries {
						err = fmt.Errorf("%d entries stay, %d are in use", len(names), entries)
					}
					return err
				})
			})
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
