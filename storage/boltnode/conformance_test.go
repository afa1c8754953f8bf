package boltnode

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/lockcore/nodetest"
)

func TestConformance(t *testing.T) {
	for name, blank := range map[string]bool{"blank": true, "founded": false} {
		t.Run(name, func(t *testing.T) {
			nodetest.Run(t, func(t *testing.T) nodetest.Harness { return harness(t, blank) })
		})
	}
}

const testCounterTTL = time.Hour

func harness(t *testing.T, blank bool) nodetest.Harness {
	clock := &testClock{wall: time.UnixMilli(1_800_000_000_000)}
	n := open(t, filepath.Join(t.TempDir(), "node.db"), Options{
		CounterTTL: testCounterTTL, clock: clock.clock(), blank: blank,
		sweep: sweeping{page: 3, pause: time.Millisecond, rest: time.Millisecond},
	})
	h := nodetest.Harness{
		Node: n, Advance: clock.advance, CounterTTL: testCounterTTL,
		Restart: func() { n.set(t, func(st *state) { st.Incarnation += "'" }) },
	}
	if blank {
		h.Wipe = func() {
			n.set(t, func(st *state) { *st = state{Format: format, Epoch: st.Epoch, Incarnation: st.Incarnation} })
		}
	}
	return h
}

// open makes a node in a file of its own. Without a sync, since these tests do
// not pull the plug.
func open(t testing.TB, path string, opts Options) *Node {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(db, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.shut(t) })
	return n
}

// shut closes node and file; twice does no harm.
func (n *Node) shut(t testing.TB) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if err := n.db.Close(); err != nil {
		t.Error(err)
	}
}

// set changes the node's record of itself.
func (n *Node) set(t testing.TB, change func(*state)) {
	t.Helper()
	err := n.change(context.Background(), func(tx *txn) error {
		change(&tx.st)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testClock is two clocks that go on by hand.
type testClock struct {
	mono atomic.Int64
	wall time.Time
	off  atomic.Int64 // the wall clock was set by
}

func (c *testClock) advance(d time.Duration) { c.mono.Add(int64(d)) }

func (c *testClock) clock() clock {
	return clock{
		mono: func() time.Duration { return time.Duration(c.mono.Load()) },
		wall: func() time.Time { return c.wall.Add(time.Duration(c.mono.Load() + c.off.Load())) },
	}
}
