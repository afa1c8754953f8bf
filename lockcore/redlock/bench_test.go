package redlock

import (
	"crypto/rand"
	"strconv"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
)

// BenchmarkTally counts the votes of one acquire: grants that are equal, as
// nearly always, and grants that differ and need to be confirmed.
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

// BenchmarkValidity is what is left of a lease by the quorum's answers.
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

// BenchmarkLeaseID seals and opens what a client holds.
func BenchmarkLeaseID(b *testing.B) {
	id := leaseID{owner: random.Source{Reader: rand.Reader}.Word(), token: 1_790_000_000_000_000, acquired: time.UnixMilli(1_790_000_000_000), resource: "orders/42"}
	keys := testKeys(b, "a secret")
	parts := []leaseID{id}
	text := keys.sealLease("orders-service", parts)
	b.Run("seal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if keys.sealLease("orders-service", parts) != text {
				b.Fatal("the lease id changed")
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := opened(keys, "orders-service", text); !ok {
				b.Fatal("it does not open")
			}
		}
	})
}

// instantNode grants and releases everything at once, as the caller submits it.
type instantNode struct{ *fakeNode }

func (*instantNode) Submit(op *node.Op, index int, sink node.Sink) {
	sink.Deliver(index, node.Reply{Outcome: node.Granted, Grant: 41, Remaining: op.TTL, TTL: op.TTL})
}

// BenchmarkLocker is an acquire and a release over nodes that answer at once: what
// the Locker itself costs, without any server.
func BenchmarkLocker(b *testing.B) {
	nodes := make([]node.Node, 5)
	for i := range nodes {
		nodes[i] = &instantNode{newFake("node" + strconv.Itoa(i))}
	}
	keys := testKeys(b, "a secret")
	locker, err := New(Config{Keys: func() *Keys { return keys }}, nodes)
	if err != nil {
		b.Fatal(err)
	}
	locker.sets[0].members.Learn(1)
	b.ReportAllocs()
	for b.Loop() {
		lease, err := locker.Acquire(b.Context(), lockcore.AcquireRequest{Resource: "orders/42"})
		if err == nil {
			err = locker.Release(b.Context(), lease.ID)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
