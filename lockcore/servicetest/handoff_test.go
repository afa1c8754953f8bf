package servicetest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/memstore"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// slowStore takes as long for a commit as a disk does.
type slowStore struct {
	*memstore.Store
	mu      sync.Mutex
	commits int
}

func (s *slowStore) Update(ctx context.Context, fn func(replica.Tx) error) error {
	time.Sleep(2 * time.Millisecond)
	s.mu.Lock()
	s.commits++
	s.mu.Unlock()
	return s.Store.Update(ctx, fn)
}

func (s *slowStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

// A hand-off of a contended resource is one commit: the transaction of the release also has the acquire of the next
// waiter, and the requests that have queued behind others meanwhile. The order of arrival is kept.
func TestAHandOffIsOneCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{Store: memstore.New(memstore.Options{})}
		n, err := replica.New(t.Context(), "node", store, replica.Options{Bootstrap: true})
		if err != nil {
			t.Fatal(err)
		}
		l, err := sets.New(sets.Config{WatchInterval: time.Hour}, []node.Node{n})
		if err != nil {
			t.Fatal(err)
		}
		locker := byID{l, servicetest.ByID{Calls: l}}
		ctx, stop := context.WithCancel(t.Context())
		var running, clients sync.WaitGroup
		running.Go(func() { _ = locker.Run(ctx) })
		synctest.Wait()
		time.Sleep(time.Second)

		first, err := locker.Acquire(ctx, lockcore.Request{Resource: "hot", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		const waiters, rounds = 16, 20
		var mu sync.Mutex
		var served []int
		for i := range waiters {
			clients.Go(func() {
				for round := range rounds {
					lease, err := locker.Acquire(ctx, lockcore.Request{
						Resource: "hot", Wait: time.Minute, TTL: 10 * time.Second, IdempotencyKey: fmt.Sprint(i, "/", round),
					})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					served = append(served, i)
					mu.Unlock()
					time.Sleep(time.Millisecond) // of a client's work
					if err := locker.Release(ctx, lease.ID); err != nil {
						t.Error(err)
					}
				}
			})
			time.Sleep(10 * time.Millisecond) // so that they come in order
		}
		began := store.count()
		if err := locker.Release(ctx, first.ID); err != nil {
			t.Error(err)
		}
		clients.Wait()
		handOffs := len(served)
		// Once a second a heartbeat has a commit of its own.
		if commits := store.count() - began; commits > handOffs*21/20 {
			t.Errorf("%d hand-offs took %d commits", handOffs, commits)
		}
		for i := range served {
			if served[i] != i%waiters {
				t.Errorf("lease %d went to %d, and it was the turn of %d", i, served[i], i%waiters)
				break
			}
		}
		stop()
		running.Wait()
		_ = n.Close()
	})
}

// byID is a Locker and its leases by their ids.
type byID struct {
	*sets.Locker
	servicetest.ByID
}
