package redlock_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// broken are the invariants that a Locker reports as broken.
type broken struct {
	mu   sync.Mutex
	seen []string
}

func (b *broken) add(one lockcore.Invariant, what ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = append(b.seen, fmt.Sprint(one, what))
}

func (b *broken) wants(t *testing.T, want ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.seen, want) {
		t.Errorf("broken: %q, want %q", b.seen, want)
	}
	b.seen = nil
}

// Whatever the nodes say, two things are reported: a lease whose token is not above the earlier ones, and an extend
// that succeeds after a larger token was granted.
func TestInvariantsOfTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := &broken{}
		c := newCluster(t, 3, redlock.Config{Violated: said.add})
		first := mustAcquire(t, c, req)
		if _, err := c.Extend(t.Context(), first.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		if err := c.Release(t.Context(), first.ID); err != nil {
			t.Fatal(err)
		}
		second := mustAcquire(t, c, req)
		said.wants(t)
		for i := range c.fakes {
			c.spoil(i, func(op node.Op, r node.Reply) (time.Duration, node.Reply) {
				switch op.Kind {
				case node.OpAcquire:
					r = node.Reply{Outcome: node.Granted, Grant: first.Token, Remaining: op.TTL}
				case node.OpExtend:
					r = node.Reply{Outcome: node.Granted, Grant: op.Token, Remaining: op.TTL}
				}
				return roundTrip, r
			})
		}
		mustAcquire(t, c, req)
		said.wants(t, fmt.Sprintf("token_order[resource r token %d granted_before %d]", first.Token, second.Token))
		if _, err := c.Extend(t.Context(), first.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		said.wants(t, fmt.Sprintf("extend_order[resource r token %d granted_before %d]", first.Token, second.Token))
		if _, err := c.Extend(t.Context(), second.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		said.wants(t)
	})
}

// Two leases with the same token are reported. A key that finds its own lease again is not.
func TestInvariantOfOneToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := &broken{}
		c := newCluster(t, 3, redlock.Config{Violated: said.add})
		keyed := req
		keyed.IdempotencyKey = "a key"
		lease := mustAcquire(t, c, keyed)
		if again := mustAcquire(t, c, keyed); !again.Existing || again.Token != lease.Token {
			t.Fatalf("%+v", again)
		}
		said.wants(t)
		for i := range c.fakes {
			c.spoil(i, func(op node.Op, _ node.Reply) (time.Duration, node.Reply) {
				return roundTrip, node.Reply{Outcome: node.Granted, Grant: lease.Token, Remaining: op.TTL}
			})
		}
		mustAcquire(t, c, req)
		said.wants(t, fmt.Sprintf("token_order[resource r token %d granted_before %d]", lease.Token, lease.Token))
	})
}

// A node whose queue is not in the order of arrival is reported.
func TestInvariantOfQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := &broken{}
		c := newCluster(t, 3, redlock.Config{Violated: said.add})
		listed := []node.Ticket{{ID: "a", Arrival: 1}, {ID: "b", Arrival: 2}, {ID: "c", Arrival: 2}}
		c.spoil(1, func(_ node.Op, r node.Reply) (time.Duration, node.Reply) {
			r.Queue = listed
			return 0, r // before the others: two decide
		})
		look := func() {
			t.Helper()
			if _, err := c.locker.Now().Inspect(t.Context(), "r"); err != nil {
				t.Fatal(err)
			}
		}
		look()
		said.wants(t)
		listed = []node.Ticket{{ID: "a", Arrival: 2}, {ID: "b", Arrival: 1}}
		look()
		said.wants(t, "queue_order[resource r node node2]")
	})
}
