package boltguard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/fencing/guardtest"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/boltfile"
	"github.com/fencelock/fencelock/storage/boltguard"
)

func openFile(t *testing.T, path string) *bbolt.DB {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func openGuard(t *testing.T, db *bbolt.DB) *boltguard.Guard {
	t.Helper()
	g, err := boltguard.New(db)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestConformance(t *testing.T) {
	files := map[fencing.Guard]*bbolt.DB{}
	guardtest.RunDurable(t,
		func(t *testing.T) fencing.Guard {
			t.Helper()
			db := openFile(t, filepath.Join(t.TempDir(), "test.db"))
			g := openGuard(t, db)
			files[g] = db
			return g
		},
		func(t *testing.T, g fencing.Guard) fencing.Guard {
			t.Helper()
			path := files[g].Path()
			if err := files[g].Close(); err != nil {
				t.Fatal(err)
			}
			return openGuard(t, openFile(t, path))
		})
}

// TestSharesTheFile checks that the guard lives beside other buckets, and that
// opening it twice loses nothing.
func TestSharesTheFile(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "test.db"))
	err := db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("locks"))
		if err != nil {
			return err
		}
		return b.Put([]byte("r"), []byte("held"))
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openGuard(t, db).Claim(t.Context(), "r", 3); err != nil {
		t.Fatal(err)
	}
	if record, err := openGuard(t, db).Read(t.Context(), "r"); err != nil || record.Mark != 3 {
		t.Errorf("a second guard on the file reads %+v, %v", record, err)
	}
	err = db.View(func(tx *bbolt.Tx) error {
		if got := string(tx.Bucket([]byte("locks")).Get([]byte("r"))); got != "held" {
			return fmt.Errorf("the other bucket's entry is %q", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestChangedEntries: every change of an entry is noticed at the next start, and an open guard never returns the
// changed entry.
func TestChangedEntries(t *testing.T) {
	for _, bucket := range []string{"guard_states", "guard_values", "guard_history", "guard_meta"} {
		t.Run(bucket, func(t *testing.T) {
			db := openFile(t, filepath.Join(t.TempDir(), "test.db"))
			g := openGuard(t, db)
			if _, err := g.Write(t.Context(), "r", 7, json.RawMessage(`{"n":1}`)); err != nil {
				t.Fatal(err)
			}
			err := db.Update(func(tx *bbolt.Tx) error {
				b := tx.Bucket([]byte(bucket))
				key, value := b.Cursor().First()
				value = bytes.Clone(value)
				value[7] ^= 1
				return b.Put(key, value)
			})
			if err != nil {
				t.Fatal(err)
			}
			_, readErr := g.Read(t.Context(), "r")
			_, historyErr := g.History(t.Context(), "r", 10)
			_, highestErr := g.HighestMark(t.Context())
			if err := errors.Join(readErr, historyErr, highestErr); !errors.Is(err, boltfile.ErrSeal) || !errors.Is(err, fencing.ErrGuardUnavailable) {
				t.Errorf("an open guard answers %v, want ErrSeal and ErrGuardUnavailable", err)
			}
			if _, err := boltguard.New(db); !errors.Is(err, boltfile.ErrSeal) {
				t.Errorf("New gives %v, want ErrSeal", err)
			}
		})
	}
}

func TestClosedFileIsUnavailable(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "test.db"))
	g := openGuard(t, db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, claimErr := g.Claim(t.Context(), "r", 1)
	_, readErr := g.Read(t.Context(), "r")
	_, highestErr := g.HighestMark(t.Context())
	for _, err := range []error{claimErr, readErr, highestErr} {
		if !errors.Is(err, fencing.ErrGuardUnavailable) {
			t.Errorf("got %v, want ErrGuardUnavailable", err)
		}
	}
}

func TestCloseWaitsAndRefuses(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "test.db"))
	g := openGuard(t, db)
	var answered atomic.Int64
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			_, err := g.Write(context.Background(), fmt.Sprintf("r%d", i), 1, json.RawMessage(`1`))
			switch {
			case err == nil:
				answered.Add(1)
			case !errors.Is(err, fencing.ErrGuardUnavailable):
				t.Errorf("write while closing: %v", err)
			}
		})
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	kept := int64(0)
	for i := range 50 {
		if _, err := g.Read(t.Context(), fmt.Sprintf("r%d", i)); err == nil {
			kept++
		}
	}
	if kept != answered.Load() {
		t.Errorf("%d writes were answered, %d are in the file", answered.Load(), kept)
	}
	if _, err := g.Claim(t.Context(), "r", 1); !errors.Is(err, fencing.ErrGuardUnavailable) {
		t.Errorf("a claim after Close gives %v, want ErrGuardUnavailable", err)
	}
}

// TestNobodyWaitsForAFrozenFile holds the only writing transaction of the file. A caller with a time limit gets its
// context's error, and the operation of a caller that has gone does not take effect later.
func TestNobodyWaitsForAFrozenFile(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "test.db"))
	g := openGuard(t, db)
	tx, err := db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := g.Claim(ctx, "r", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a claim past its time limit gives %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Claim(t.Context(), "other", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Read(t.Context(), "r"); !errors.Is(err, fencing.ErrNotFound) {
		t.Errorf("the abandoned claim took effect: %v", err)
	}
}

// TestCommitsTogether checks that callers who wait at the same time share a
// synced transaction instead of each paying for one.
func TestCommitsTogether(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "test.db"))
	g := openGuard(t, db)
	tx, err := db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	const callers = 64
	var wg sync.WaitGroup
	call := func(n int) {
		for range n {
			wg.Go(func() {
				if _, err := g.Claim(t.Context(), "r", 1); err != nil {
					t.Error(err)
				}
			})
		}
	}
	waiting := func(want int) func() error {
		return func() error {
			if n, committing := g.Waiting(); n != want || !committing {
				return fmt.Errorf("%d callers wait (committing: %t), want %d", n, committing, want)
			}
			return nil
		}
	}
	call(1)
	testenv.Eventually(t, 10*time.Second, waiting(0)) // it is taken, and waits for our transaction
	call(callers)
	testenv.Eventually(t, 10*time.Second, waiting(callers))
	before := tx.ID()
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	after, err := db.Begin(false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = after.Rollback() }()
	if commits := after.ID() - before; commits > 2 {
		t.Errorf("%d commits for %d claims that waited together", commits, callers)
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			db, err := bbolt.Open(filepath.Join(b.TempDir(), "test.db"), 0o600, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			g, err := boltguard.New(db)
			if err != nil {
				b.Fatal(err)
			}
			var next atomic.Int64
			b.SetParallelism(callers)
			b.RunParallel(func(pb *testing.PB) {
				resource := fmt.Sprintf("r%d", next.Add(1))
				for pb.Next() {
					if _, err := g.Write(context.Background(), resource, 1, json.RawMessage(`{"n":1}`)); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
