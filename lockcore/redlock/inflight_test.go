package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// When more acquires come than there are places, they wait for a place in the order of their arrival, before they ask
// any node. None fails because of that wait.
func TestAcquiresInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places, callers = 1, 10
		c := newCluster(t, 3, redlock.Config{MaxInFlight: places})
		const answer = 4 * time.Millisecond
		var mu sync.Mutex
		var order []string
		for i, node := range c.fakes {
			node.Answer(manyLocks(answer, i == 0, &mu, &order))
		}
		began := time.Now()
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				if _, err := c.Acquire(t.Context(), lockcore.Request{Resource: fmt.Sprint("r", i)}); err != nil {
					t.Errorf("caller %d: %v", i, err)
				}
			})
			synctest.Wait() // it has a place, or waits behind the others
		}
		all.Wait()
		if took, want := time.Since(began), callers/places*answer; took != want {
			t.Errorf("%d acquires with %d places took %s, want %s", callers, places, took, want)
		}
		for i, resource := range order {
			if want := fmt.Sprint("r", i); resource != want {
				t.Errorf("acquired %v, want them in the order in which they came", order)
				break
			}
		}
	})
}

// manyLocks grants every acquire.
func manyLocks(after time.Duration, note bool, mu *sync.Mutex, order *[]string) func(node.Op) (time.Duration, node.Reply) {
	return func(op node.Op) (time.Duration, node.Reply) {
		if note && op.Kind == node.OpAcquire {
			mu.Lock()
			*order = append(*order, op.Resource)
			mu.Unlock()
		}
		return after, node.Reply{Outcome: node.Granted, Grant: 1, Remaining: op.TTL, TTL: op.TTL}
	}
}

// A caller that gives up while it waits for a place has asked no node. An extend needs no place.
func TestWaitingForAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{MaxInFlight: 1})
		lease, err := c.Acquire(t.Context(), lockcore.Request{Resource: "r"})
		if err != nil {
			t.Fatal(err)
		}
		c.locker.TakePlace() // another round never ends
		asked := len(c.fakes[0].Ops(node.OpAcquire))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Acquire(ctx, lockcore.Request{Resource: "other"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the context's error", err)
		}
		if now := len(c.fakes[0].Ops(node.OpAcquire)); now != asked {
			t.Errorf("a node got %d acquires of a caller that never had a place", now-asked)
		}
		if _, err := c.Extend(t.Context(), lease.ID, time.Minute); err != nil {
			t.Errorf("extend: %v", err)
		}
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Errorf("release: %v", err)
		}
	})
}
