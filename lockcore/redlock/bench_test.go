package redlock_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/compose"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/fakenode"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/servicetest"
)

// BenchmarkTally counts the votes of one acquire: with equal grants, as nearly always, and with different grants that
// need to be confirmed.
func BenchmarkTally(b *testing.B) {
	for name, grants := range map[string][]fencing.Token{
		"equal":  {41, 41, 41, 41, 41},
		"uneven": {39, 41, 40, 38, 37},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				tally := quorum.NewTally(len(grants))
				for i, grant := range grants {
					tally.Granted(i, grant, false)
				}
				for i := range grants {
					if tally.MustConfirm(i) {
						tally.Confirmed(i)
					}
				}
				if tally.Verdict() != quorum.Won || tally.Token() != 41 {
					b.Fatal(tally.Verdict(), tally.Token())
				}
			}
		})
	}
}

// BenchmarkValidity computes what is left of a lease from the replies of a quorum.
func BenchmarkValidity(b *testing.B) {
	remaining := make([]time.Duration, 5)
	b.ReportAllocs()
	for b.Loop() {
		for i := range remaining {
			remaining[i] = 10*time.Second - time.Duration(i)*time.Millisecond
		}
		if got := quorum.Validity(quorum.KthLargest(remaining, 3), 10*time.Second, 5*time.Millisecond); got <= 0 {
			b.Fatal(got)
		}
	}
}

// instantNode grants and releases everything at once, in the goroutine that submits the operation.
type instantNode struct{ *fakenode.Node }

func (*instantNode) Submit(op *node.Op, index int, sink node.Sink) {
	sink.Deliver(index, node.Reply{Outcome: node.Granted, Grant: 41, Remaining: op.TTL, TTL: op.TTL})
}

// BenchmarkLocker measures an acquire and a release over nodes that reply at once: the cost of the Locker itself,
// without any server.
func BenchmarkLocker(b *testing.B) {
	nodes := make([]node.Node, 5)
	for i := range nodes {
		nodes[i] = &instantNode{fakenode.New("node" + strconv.Itoa(i))}
	}
	keys := testKeys(b, "a secret")
	l, err := redlock.New(redlock.Config{Keys: func() *keyring.Ring { return keys }}, nodes, redlock.Set{})
	if err != nil {
		b.Fatal(err)
	}
	l.Members().Learn(1)
	locker := servicetest.ByID{Calls: compose.New(lockcore.Limits{}.WithDefaults(), alone{l}, time.Second)}
	b.ReportAllocs()
	for b.Loop() {
		lease, err := locker.Acquire(b.Context(), lockcore.Request{Resource: "orders/42"})
		if err == nil {
			err = locker.Release(b.Context(), lease.ID)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
