package boltnode

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
)

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// entries counts what the buckets hold.
func (n *Node) entries(tb testing.TB) map[string]int {
	tb.Helper()
	counts := make(map[string]int)
	err := n.db.View(func(tx *bbolt.Tx) error {
		for _, bucket := range []string{locksBucket, countersBucket, keysBucket, linesBucket, sessionsBucket} {
			c := tx.Bucket([]byte(bucket)).Cursor()
			for key, _ := c.First(); key != nil; key, _ = c.Next() {
				counts[bucket]++
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return counts
}

func quick(page int) sweeping {
	return sweeping{page: page, pause: time.Microsecond, rest: time.Millisecond}
}

func awaitEntries(t *testing.T, n *Node, want map[string]int) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, func() error {
		if got := n.entries(t); fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("the file holds %v, want %v", got, want)
		}
		return nil
	})
}

// fill takes n locks under keys, with a line each.
func fill(t *testing.T, n *Node, prefix string, locks int) {
	t.Helper()
	view := n.seen(t).View
	ops := []lockcore.Op{{Kind: lockcore.OpHeartbeat, Ticket: lockcore.Ticket{Server: "s1"}, TTL: testTTL}}
	for i := range locks {
		op := acquire(fmt.Sprintf("%s%d", prefix, i), fmt.Sprintf("%sL%d", prefix, i))
		op.Attempt, op.Scope = "attempt1", op.Resource
		stand := lockcore.Op{Kind: lockcore.OpEnqueue, Resource: op.Resource, Ticket: lockcore.Ticket{ID: "t1", Server: "s1", Arrival: 1}}
		ops = append(ops, op, stand)
	}
	for i := range ops {
		ops[i].View = view
	}
	replies := n.submit(ops)
	for range ops {
		wantGranted(t, <-replies)
	}
}

func TestSweepRemovesWhatHasEnded(t *testing.T) {
	clock := newTestClock()
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{clock: clock.clock(), CounterTTL: time.Hour, sweep: quick(7)})
	const locks = 100
	fill(t, n, "r", locks)
	all := map[string]int{locksBucket: locks, countersBucket: locks, keysBucket: locks, linesBucket: locks, sessionsBucket: 1}
	awaitEntries(t, n, all)
	clock.advance(testTTL - time.Second)
	fill(t, n, "s", 10) // stays, and so does the server
	clock.advance(time.Second)
	awaitEntries(t, n, map[string]int{
		locksBucket: 10, countersBucket: locks + 10, keysBucket: 10, linesBucket: locks + 10, sessionsBucket: 1,
	})
	clock.advance(testTTL)
	awaitEntries(t, n, map[string]int{countersBucket: locks + 10})
	high := n.seen(t).Marks.High
	clock.advance(time.Hour)
	awaitEntries(t, n, map[string]int{})
	if grant := n.acquired(t, "r1", "L1"); grant != high+1 {
		t.Errorf("grant %d, want one above high, %d", grant, high)
	}
}

func TestACounterNeverGoesBeforeItsLock(t *testing.T) {
	clock := newTestClock()
	n := joined(t, filepath.Join(t.TempDir(), "node.db"), Options{clock: clock.clock(), CounterTTL: time.Hour, sweep: quick(7)})
	grant := n.acquired(t, "a", "L1")
	n.acquired(t, "b", "L2")
	gone := lockcore.Op{Kind: lockcore.OpRelease, Resource: "b", Owner: "L2"}
	n.ask(t, gone)
	clock.off.Add(int64(48 * time.Hour)) // the wall clock is set
	awaitEntries(t, n, map[string]int{locksBucket: 1, countersBucket: 1})
	counters, err := n.Counters(t.Context(), n.seen(t).View, []string{"a"})
	if err != nil || counters[0] != grant {
		t.Errorf("%v, %v, want %d", counters, err, grant)
	}
}

// The file does not grow with resources that are used once and never again.
func TestFileFollowsTheResourcesInUse(t *testing.T) {
	clock := newTestClock()
	path := filepath.Join(t.TempDir(), "node.db")
	n := joined(t, path, Options{clock: clock.clock(), CounterTTL: time.Hour, sweep: quick(500)})
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	var first int64
	for round := range 12 {
		fill(t, n, fmt.Sprintf("round%d-", round), 500)
		clock.advance(2 * time.Hour)
		awaitEntries(t, n, map[string]int{})
		if round == 2 {
			first = size()
		}
	}
	if last := size(); last > first {
		t.Errorf("the file grew from %d to %d bytes", first, last)
	}
}

func FuzzDecodeLock(f *testing.F) {
	f.Add(lock{grant: 7, owner: "L1", note: "attempt1", meta: "meta"}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, ok := decodeLock(raw)
		if !ok {
			return
		}
		again, ok := decodeLock(l.encode())
		if !ok || again.grant != l.grant || again.owner != l.owner || again.note != l.note || again.meta != l.meta {
			t.Errorf("%+v became %+v", l, again)
		}
	})
}
