package redlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// A node that lost its part of the line is given it back by a list that may be
// old by the time it is sent: who has left since is not put back.
func TestRestoredLineHasNobodyWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeNode{name: "node"}
		fake.answer(func(node.Op) (time.Duration, node.Reply) { return time.Second, node.Reply{Outcome: node.Granted} })
		nodes := []node.Node{fake}
		q := newQueue(Config{}.withDefaults(), nodes, newCleaner(nodes), func() node.Epoch { return 1 })
		var waiters []*waiter
		for _, resource := range []string{"a", "a", "b"} {
			w, err := q.enqueue(resource, "")
			if err != nil {
				t.Fatal(err)
			}
			waiters = append(waiters, w)
		}
		go q.restore(t.Context(), 0)
		synctest.Wait() // the first answer is on its way
		first := fake.ops(node.OpEnqueue)
		if len(first) != 1 {
			t.Fatalf("%d tickets at once", len(first))
		}
		for _, w := range waiters {
			if w.ticket.ID != first[0].Ticket.ID {
				q.remove(w, time.Now())
			}
		}
		settle(5 * time.Second)
		if n := len(fake.ops(node.OpEnqueue)); n != 1 {
			t.Errorf("%d tickets were put back, 1 still waited", n)
		}
	})
}

// A waiter whose turn is told again and again, and who gets nothing, goes when
// its time is over.
func TestWaitEndsThoughTurnsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(Config{}.withDefaults(), nil, newCleaner(nil), func() node.Epoch { return 1 })
		w, err := q.enqueue("r", "")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		deadline := time.NewTimer(time.Second)
		for _, end := range []struct {
			by   func()
			want error
		}{
			{func() {}, nil},
			{func() { settle(time.Second) }, errTimedOut},
			{cancel, context.Canceled},
			{q.stop, lockcore.ErrStopping},
		} {
			end.by()
			q.released("r")
			if err := q.await(ctx, w, deadline.C); !errors.Is(err, end.want) {
				t.Errorf("%v, want %v", err, end.want)
			}
		}
	})
}
