package boltstore

import (
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/storetest"
	"github.com/fencelock/fencelock/storage/boltfile"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		t.Helper()
		clock := newTestClock()
		f := openFile(t, filepath.Join(t.TempDir(), "store.db"), Options{clock: clock.clock(), sweep: quick(3)})
		return storetest.Harness{Store: f.Store, Advance: clock.advance, Reopen: func() replica.Store {
			f.reopen(t)
			return f.Store
		}}
	})
}

// file is a store with its file.
type file struct {
	db *bbolt.DB // Store's, as it is
	*Store
	path string
	opts Options
}

// openFile opens a store that does not sync, because these tests do not cut the power.
func openFile(tb testing.TB, path string, opts Options) *file {
	tb.Helper()
	f := &file{path: path, opts: opts}
	f.open(tb)
	tb.Cleanup(func() { f.shut(tb) })
	return f
}

func (f *file) open(tb testing.TB) {
	tb.Helper()
	var err error
	if f.db, err = bbolt.Open(f.path, 0o600, &bbolt.Options{Timeout: time.Second, NoSync: true}); err != nil {
		tb.Fatal(err)
	}
	if f.Store, err = New(f.db, f.opts); err != nil {
		tb.Fatal(err)
	}
}

// shut closes the store and the file. It may be called twice.
func (f *file) shut(tb testing.TB) {
	tb.Helper()
	if err := f.Close(); err != nil {
		tb.Error(err)
	}
	if err := f.db.Close(); err != nil {
		tb.Error(err)
	}
}

func (f *file) reopen(tb testing.TB) {
	tb.Helper()
	f.shut(tb)
	f.open(tb)
}

// testClock is two clocks that are moved by hand.
type testClock struct {
	mono atomic.Int64
	wall time.Time
	off  atomic.Int64 // the wall clock was set by
}

func newTestClock() *testClock { return &testClock{wall: time.UnixMilli(1_800_000_000_000)} }

func (c *testClock) advance(d time.Duration) { c.mono.Add(int64(d)) }

func (c *testClock) clock() clock {
	return clock{
		mono: func() time.Duration { return time.Duration(c.mono.Load()) },
		wall: func() time.Time { return c.wall.Add(time.Duration(c.mono.Load() + c.off.Load())) },
	}
}

func quick(page int) sweeping {
	return sweeping{page: page, pause: time.Millisecond, rest: time.Millisecond}
}

// TestChangedFile: a changed row or a bucket's lost name shows at the next start.
func TestChangedFile(t *testing.T) {
	for name, change := range map[string]func(tx *bbolt.Tx) error{
		"row": func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(rowsBucket))
			key, value := b.Cursor().First()
			changed := append([]byte(nil), value...)
			changed[len(changed)-5] ^= 1
			return b.Put(key, changed)
		},
		"bucket": func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(rowsBucket)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := openFile(t, filepath.Join(t.TempDir(), "store.db"), Options{})
			err := f.Update(t.Context(), func(tx replica.Tx) error { tx.Put("a", []byte("value"), 0); return nil })
			if err := errors.Join(err, f.db.Update(change)); err != nil {
				t.Fatal(err)
			}
			if _, err := New(f.db, Options{}); !errors.Is(err, boltfile.ErrSeal) {
				t.Errorf("New gives %v, want ErrSeal", err)
			}
		})
	}
}

// meeting is a file that runs a function just before the next transaction that writes.
type meeting struct {
	File
	before func()
}

func (m *meeting) Update(write func(*bbolt.Tx) error) error {
	if before := m.before; before != nil {
		m.before = nil
		before()
	}
	return m.File.Update(write)
}

// The sweeper finds that the time of a row has passed, and then the row is written again. It stays.
func TestTheSweeperLeavesWhatWasWrittenAgain(t *testing.T) {
	clock := newTestClock()
	f := openFile(t, filepath.Join(t.TempDir(), "store.db"), Options{clock: clock.clock(), sweep: sweeping{page: 10, pause: time.Hour, rest: time.Hour}})
	put := func(keys ...string) {
		t.Helper()
		err := f.Update(t.Context(), func(tx replica.Tx) error {
			for _, key := range keys {
				tx.Put(key, []byte("a value"), time.Minute)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put("again", "ended")
	clock.advance(2 * time.Minute)
	plain := f.Store.db
	f.Store.db = &meeting{plain, func() { f.Store.db = plain; put("again") }}
	if next := f.sweepPage(nil); next != nil {
		t.Fatalf("there is another page: %q", next)
	}
	err := f.View(t.Context(), func(tx replica.Tx) error {
		if value, left := tx.Get("again"); value == nil || left != time.Minute {
			t.Errorf("the row that was written again: %q, %s left", value, left)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = f.db.View(func(tx *bbolt.Tx) error {
		if tx.Bucket([]byte(rowsBucket)).Get([]byte("ended")) != nil {
			t.Error("the row whose time has passed is still there")
		}
		return nil
	})
}
