package zkstore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/storetest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patient are options for tests whose operations must not time out on a busy machine.
func patient() Options {
	return Options{Timeout: time.Minute, Patience: time.Minute}
}

// newURL is a path for one test on the server that all tests share.
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

// reincarnate begins another incarnation with the same rows: the data return to their state before a commit.
func reincarnate(tb testing.TB, s *Store) {
	tb.Helper()
	was := statusOf(tb, s)
	before := s.service.newest()
	putRow(tb, s, "committed in vain", "", time.Millisecond)
	after := s.service.newest()
	if after.First != before.First {
		reincarnate(tb, s) // the commit has cleaned the log
		return
	}
	_, err := s.service.session.present().conn.Multi(
		&zk.DeleteRequest{Path: s.service.path(headName, after.Commit), Version: -1},
		&zk.CreateRequest{Path: s.service.path(headName, before.Commit), Acl: s.service.acl},
		&zk.SetDataRequest{Path: s.service.path(headName), Data: []byte(before.raw), Version: -1},
		&zk.DeleteRequest{Path: s.service.entryPath(after.Last), Version: -1})
	if err != nil {
		tb.Fatal(err)
	}
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

// young reports whether the store assumes that its rows are all that there ever were.
func young(tb testing.TB, s *Store) bool {
	tb.Helper()
	young, err := s.Store.Young(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return young
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		t.Helper()
		url := newURL(t)
		s := openStore(t, url, patient())
		return storetest.Harness{
			Store:   s,
			Slack:   time.Second,
			Message: 2_000_000, // three parts
			Beside:  func() replica.Store { return openStore(t, url, patient()) },
			Reopen: func() replica.Store {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				s = openStore(t, url, patient())
				return s
			},
			Lose: func() { deletePath(t, s, s.service.target.path) },
		}
	})
}

// A running server and one that starts both notice that an operator deleted data: another incarnation begins, without
// rows, and is not young.
func TestDeletions(t *testing.T) {
	t.Parallel()
	for name, del := range map[string]func(s *Store) string{
		"the head":       func(s *Store) string { return s.service.path(headName) },
		"its mark":       func(s *Store) string { return s.service.path(headName, s.service.newest().Commit) },
		"the log":        func(s *Store) string { return s.service.path(logName) },
		"an entry":       func(s *Store) string { return s.service.entryPath(s.lastEntry() - 1) },
		"the last entry": func(s *Store) string { return s.service.entryPath(s.lastEntry()) },
		"everything":     func(s *Store) string { return s.service.target.path },
	} {
		for _, runs := range []bool{true, false} {
			if name == "everything" && !runs {
				continue // it is a new path then
			}
			t.Run(fmt.Sprintf("%s, a server runs: %t", name, runs), func(t *testing.T) {
				t.Parallel()
				url := newURL(t)
				s, operator := openStore(t, url, patient()), openStore(t, newURL(t), patient())
				putRow(t, s, "k", strings.Repeat("x", 500_000), 0)
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
					if now.Incarnation == before.Incarnation || k != "" || l != "" || young(t, server) {
						t.Errorf("incarnation %v, was %v; rows of %d and %d bytes are left; young: %t", now, before, len(k), len(l), young(t, server))
					}
				}
				putRow(t, s, "k", "2", 0)
				if k, _ := getRow(t, other, "k"); k != "2" || statusOf(t, other) != statusOf(t, s) {
					t.Errorf("row %q, want 2", k)
				}
				testenv.Eventually(t, 20*time.Second, func() error {
					names, err := other.service.children(t.Context(), other.service.path(logName))
					if h := other.service.newest(); err == nil && len(names) != int(h.Last-h.First+1) {
						err = fmt.Errorf("%d entries stay, %d are in use", len(names), h.Last-h.First+1)
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
	conn := s.service.session.present().conn
	testenv.Eventually(tb, 20*time.Second, func() error {
		names, _, err := conn.Children(path)
		for _, name := range names {
			deletePath(tb, s, path+"/"+name)
		}
		if err == nil {
			err = conn.Delete(path, -1)
		}
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		return err
	})
}

// If the znode by which servers take turns is deleted, it is made again, and nothing else changes.
func TestDeletedClaims(t *testing.T) {
	t.Parallel()
	s := openStore(t, newURL(t), patient())
	putRow(t, s, "k", "1", 0)
	before := statusOf(t, s)
	deletePath(t, s, s.service.path(claimsName))
	testenv.Eventually(t, 20*time.Second, func() error {
		return s.service.Claim(t.Context(), "server")
	})
	if k, _ := getRow(t, s, "k"); k != "1" || statusOf(t, s) != before {
		t.Errorf("row %q, %v, was %v", k, statusOf(t, s), before)
	}
}

// ZooKeeper limits the size of a request. A transaction up to that size is one request; a larger one is refused, and
// nothing is written.
func TestLimits(t *testing.T) {
	t.Parallel()
	s := openStore(t, newURL(t), patient())
	for _, c := range []struct {
		rows, size int
		tooLarge   bool
	}{{1, 10, false}, {30_000, 10, false}, {100, 9_500, false}, {100, 11_000, true}, {100_000, 10, true}} {
		before := s.lastEntry()
		err := s.Update(t.Context(), func(tx replica.Tx) error {
			for i := range c.rows {
				tx.Put(fmt.Sprintf("row%05d", i), make([]byte, c.size), time.Hour)
			}
			return nil
		})
		if c.tooLarge != errors.Is(err, replica.ErrTooLarge) || !c.tooLarge && err != nil {
			t.Errorf("%d rows of %d bytes: %v", c.rows, c.size, err)
		}
		if after := s.lastEntry(); (after == before) != c.tooLarge {
			t.Errorf("%d rows of %d bytes: something was written: %t", c.rows, c.size, after != before)
		}
	}
}
