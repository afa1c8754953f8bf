package nodetest

import (
	"context"
	"math"
	"os"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
)

// OnStore is a store of an engine's server, on which each test of the suites makes its node. It begins with the store
// empty.
type OnStore struct {
	Store   replica.Store
	Restart func() // as in Harness
}

// Over makes a node over a store, which is closed when the test ends. Its operations do not time out on a busy
// machine.
func Over(tb testing.TB, store replica.Store, opts replica.Options) *replica.Node {
	tb.Helper()
	opts.Timeout = time.Minute
	n, err := replica.New(tb.Context(), "node", store, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = n.Close() })
	return n
}

func (o OnStore) wipe(tb testing.TB) {
	tb.Helper()
	err := o.Store.Update(context.Background(), func(tx replica.Tx) error {
		tx.Purge()
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// Run is RunReplica.
func (o OnStore) Run(t *testing.T) {
	t.Helper()
	RunReplica(t, func(t *testing.T, wanted Wanted) Harness {
		t.Helper()
		o.wipe(t)
		n := Over(t, o.Store, replica.Options{Rules: replica.Rules{CounterTTL: wanted.CounterTTL}, Bootstrap: !wanted.Blank})
		return Harness{Node: n, Restart: o.Restart, Wipe: func() { o.wipe(t) }, Spoil: SpoilRow(t, o.Store)}
	})
}

// Differential is Differential with the first 30 sequences, unless RAPID_CHECKS sets another number. Package replica
// decides the replies, and the tests on the embedded file, which is fast, run all sequences.
func (o OnStore) Differential(t *testing.T) {
	t.Helper()
	sequences := 30
	if os.Getenv("RAPID_CHECKS") != "" {
		sequences = math.MaxInt
	}
	differential(t, sequences, func() (Harness, func()) {
		n := Over(t, o.Store, replica.Options{})
		o.wipe(t)
		return Harness{Node: n, Restart: o.Restart, Wipe: func() { o.wipe(t) }}, func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
