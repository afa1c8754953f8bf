package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// quorum is a Locker over real Redis servers.
type quorum struct {
	*lockcore.Locker
	servers []*testenv.Redis
	nodes   []lockcore.Node
}

const testMaxTTL = 600 * time.Millisecond

func startQuorum(t *testing.T, n int, change func(*lockcore.Config), opts ...testenv.RedisOption) *quorum {
	t.Helper()
	return joinQuorum(t, testenv.StartRedisN(t, n, opts...), change)
}

// joinQuorum starts one more server's Locker over the same Redis.
func joinQuorum(t *testing.T, servers []*testenv.Redis, change func(*lockcore.Config)) *quorum {
	t.Helper()
	q := &quorum{servers: servers}
	for _, s := range servers {
		node, err := redisnode.Open(s.Addr(), redisnode.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = node.Close() })
		q.nodes = append(q.nodes, node)
	}
	cfg := lockcore.Config{MaxTTL: testMaxTTL, WatchInterval: 20 * time.Millisecond, New: true}
	if change != nil {
		change(&cfg)
	}
	locker, err := lockcore.New(q.nodes, cfg)
	if err != nil {
		t.Fatal(err)
	}
	q.Locker = locker
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = locker.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-stopped })
	return q
}

func (q *quorum) awaitVoting(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() error {
		if s := q.Status(); s.Voting < n {
			return fmt.Errorf("%d of %d nodes vote: %+v", s.Voting, n, s)
		}
		return nil
	})
}

func (q *quorum) take(t *testing.T, resource string) lockcore.Lease {
	t.Helper()
	lease, err := q.Acquire(t.Context(), lockcore.AcquireRequest{Resource: resource, Holder: "test"})
	if err != nil {
		t.Fatalf("acquire %s: %v", resource, err)
	}
	return lease
}

func (q *quorum) takeNext(t *testing.T, resource string, after fencing.Token) lockcore.Lease {
	t.Helper()
	lease := q.take(t, resource)
	if lease.Token <= after {
		t.Fatalf("token %d after %d", lease.Token, after)
	}
	return lease
}

func TestQuorumLife(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			q := startQuorum(t, n, nil)
			q.awaitVoting(t, n)
			lease := q.take(t, "orders/42")
			_, err := q.Acquire(t.Context(), lockcore.AcquireRequest{Resource: "orders/42"})
			var held *lockcore.HeldError
			if !errors.As(err, &held) || held.Holder != "test" || held.Token != lease.Token {
				t.Fatalf("second acquire: %v", err)
			}
			more, err := q.Extend(t.Context(), lease.ID, 0)
			if err != nil || more.Token != lease.Token || more.ID != lease.ID {
				t.Fatalf("extend: %+v, %v", more, err)
			}
			if err := q.Release(t.Context(), lease.ID); err != nil {
				t.Fatalf("release: %v", err)
			}
			if err := q.Release(t.Context(), lease.ID); !errors.Is(err, lockcore.ErrNotHeld) {
				t.Fatalf("second release: %v", err)
			}
			q.takeNext(t, "orders/42", lease.Token)
		})
	}
}

func TestRollingRestartKeepsTokensRising(t *testing.T) {
	for _, persistence := range []testenv.Persistence{testenv.PersistNone, testenv.PersistAOFAlways} {
		t.Run(fmt.Sprint(persistence), func(t *testing.T) {
			q := startQuorum(t, 5, nil, testenv.WithPersistence(persistence))
			q.awaitVoting(t, 5)
			var last fencing.Token
			for round := range 5 {
				lease := q.takeNext(t, "r", last)
				last = lease.Token
				_ = q.Release(t.Context(), lease.ID)
				q.servers[round].Kill()
				q.servers[round].Restart()
				q.awaitVoting(t, 4)
				lease = q.takeNext(t, "r", last)
				last = lease.Token
				_ = q.Release(t.Context(), lease.ID)
				q.awaitVoting(t, 5)
			}
		})
	}
}
