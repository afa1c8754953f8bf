package boltstore

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/storetest"
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

// openFile opens a store. Without a sync, since these tests do not pull the plug.
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

// shut closes store and file; twice does no harm.
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
