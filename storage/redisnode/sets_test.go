package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// Two independent sets have one node each. Resources are spread over them, a bundle may have parts on both, and a set
// that is down stops only its share.
func TestSetsShareTheResources(t *testing.T) {
	t.Parallel()
	servers := testenv.StartRedisN(t, 2)
	var nodes [][]node.Node
	for _, s := range servers {
		nodes = append(nodes, []node.Node{openNode(t, s.Addr(), redisnode.Options{Timeout: time.Second, CounterTTL: time.Hour})})
	}
	locker, err := sets.New(sets.Config{MaxTTL: 10 * time.Second, NodeTimeout: time.Second, WatchInterval: 20 * time.Millisecond, New: true}, nodes...)
	if err != nil {
		t.Fatal(err)
	}
	all := quorum{Locker: locker, ByID: servicetest.ByID{Calls: locker}}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = all.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-stopped })
	testenv.Eventually(t, 10*time.Second, func() error {
		if s := all.Status(); !s.Ready || len(s.Nodes) != 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	const n = 60
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("r", i))
		if _, err := all.Acquire(t.Context(), lockcore.Request{Resource: names[i]}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range servers {
		locks, err := s.Client().Keys(t.Context(), "l:*").Result()
		if err != nil || len(locks) < n/4 {
			t.Fatalf("%d of %d locks on one of two sets: %v", len(locks), n, err)
		}
	}
	seen := make(map[string]bool)
	for cursor := ""; ; {
		page, err := all.List(t.Context(), lockcore.ListRequest{Caller: lockcore.Everyone, Prefix: "r", Limit: 7, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, lock := range page.Locks {
			seen[lock.Resource] = true
		}
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	if len(seen) != n {
		t.Fatalf("%d of %d locks listed", len(seen), n)
	}
	bundle, err := all.Acquire(t.Context(), lockcore.Request{Resources: []string{"a", "b", "c", "d", "e", "f"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Release(t.Context(), bundle.ID); err != nil {
		t.Fatal(err)
	}
	servers[0].Kill()
	served := 0
	for i := range n {
		_, err := all.Acquire(t.Context(), lockcore.Request{Resource: fmt.Sprint("new", i)})
		switch {
		case err == nil:
			served++
		case !errors.Is(err, lockcore.ErrNoQuorum):
			t.Fatal(err)
		}
	}
	if served == 0 || served == n {
		t.Fatalf("%d of %d resources served by one of two sets", served, n)
	}
}
