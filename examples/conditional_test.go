package examples_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// Storage that compares the token in the statement that writes refuses stale ones, and loses no deposit of workers that all
// believe to have the lock.
func TestConditionalWrites(t *testing.T) {
	testenv.Long(t, "an example of conditional writes that lets a stale one through")
	testenv.NeedsServer(t)
	python := testenv.PythonWith(t, map[string]string{"redis": "python3-redis"})
	for name, start := range map[string]func(*testing.T) string{
		"SQLite": func(t *testing.T) string {
			t.Helper()
			path := filepath.Join(t.TempDir(), "shop.db")
			const schema = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); " +
				"db.executescript('CREATE TABLE accounts (id INTEGER PRIMARY KEY, fence INTEGER NOT NULL, balance INTEGER NOT NULL); INSERT INTO accounts VALUES (1, 0, 0)')"
			if out, err := exec.CommandContext(t.Context(), python, "-c", schema, path).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return path
		},
		"Redis": func(t *testing.T) string {
			t.Helper()
			return testenv.StartRedisN(t, 1)[0].URL()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			where := start(t)
			deposit := func(token, amount int) (said string) {
				out, _ := exec.CommandContext(t.Context(), python, "-B", "conditional-python/deposit.py", where, fmt.Sprint(token), fmt.Sprint(amount)).CombinedOutput()
				return strings.TrimSpace(string(out))
			}
			for _, step := range []struct {
				token int
				says  string
			}{{34, "balance is 10"}, {33, "token 33 is stale: another worker has the account now"}, {35, "balance is 20"}} {
				if said := deposit(step.token, 10); said != step.says {
					t.Errorf("token %d: it said %q, want %q", step.token, said, step.says)
				}
			}
			const workers = 12
			var made atomic.Int64
			var all sync.WaitGroup
			for n := range workers {
				all.Go(func() {
					switch said := deposit(100+n, 1); {
					case strings.HasPrefix(said, "balance is "):
						made.Add(1)
					case !strings.Contains(said, "is stale"):
						t.Error(said)
					}
				})
			}
			all.Wait()
			if said, want := deposit(1000, 0), fmt.Sprintf("balance is %d", 20+made.Load()); said != want || made.Load() == 0 {
				t.Errorf("%s after %d deposits of %d workers, want %s", said, made.Load(), workers, want)
			}
			t.Logf("%d of %d workers made their deposits", made.Load(), workers)
		})
	}
}
