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
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// quorum is a Locker over real Redis servers.
type quorum struct {
	*sets.Locker
	servicetest.ByID
	servers []*testenv.Redis
	nodes   []node.Node
}

// testMaxTTL keeps quarantines short. The time limits are generous, so that a busy machine does not fail a test of
// something else.
const (
	testMaxTTL      = time.Second
	testNodeTimeout = testMaxTTL / 10
)

func startQuorum(t *testing.T, n int, change func(*sets.Config), opts ...testenv.RedisOption) *quorum {
	t.Helper()
	return joinQuorum(t, testenv.StartRedisN(t, n, opts...), change)
}

// joinQuorum starts one more server's Locker over the same Redis.
func joinQuorum(t *testing.T, servers []*testenv.Redis, change func(*sets.Config)) *quorum {
	t.Helper()
	return joinQuorumWith(t, servers, redisnode.Options{}, change)
}

func joinQuorumWith(t *testing.T, servers []*testenv.Redis, opts redisnode.Options, change func(*sets.Config)) *quorum {
	t.Helper()
	cfg := sets.Config{MaxTTL: testMaxTTL, NodeTimeout: testNodeTimeout, WatchInterval: 20 * time.Millisecond, New: true}
	if change != nil {
		change(&cfg)
	}
	opts.Timeout = cfg.NodeTimeout
	q := &quorum{servers: servers}
	for _, s := range servers {
		node, err := redisnode.Open(s.Addr(), opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = node.Close() })
		q.nodes = append(q.nodes, node)
	}
	locker, err := sets.New(cfg, q.nodes)
	if err != nil {
		t.Fatal(err)
	}
	q.Locker, q.ByID = locker, servicetest.ByID{Calls: locker}
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

// take acquires the resource. It asks again when a quorum is late on a busy
// machine, and while what an earlier call left behind is being retracted (a
// frozen node, once thawed, still carries out what lay in its socket).
func (q *quorum) take(t *testing.T, resource string) (lease lockcore.Lease) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() (err error) {
		lease, err = q.Acquire(t.Context(), lockcore.Request{Resource: resource, Holder: "test"})
		if err != nil && !errors.Is(err, lockcore.ErrNoQuorum) && !errors.Is(err, lockcore.ErrHeld) {
			t.Fatalf("acquire %s: %v", resource, err)
		}
		return err
	})
	return lease
}

// give releases the lease. If too few nodes reply, the release continues in the background.
func (q *quorum) give(t *testing.T, lease lockcore.Lease) {
	t.Helper()
	if err := q.Release(t.Context(), lease.ID); err != nil && !errors.Is(err, lockcore.ErrNoQuorum) {
		t.Fatalf("release %s: %v", lease.Resource, err)
	}
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
	t.Parallel()
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			q := startQuorum(t, n, func(c *sets.Config) { c.MaxTTL, c.NodeTimeout = time.Minute, 6*time.Second }) // nothing here takes long
			q.awaitVoting(t, n)
			lease := q.take(t, "orders/42")
			_, err := q.Acquire(t.Context(), lockcore.Request{Resource: "orders/42"})
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
	t.Parallel()
	for _, persistence := range []testenv.Persistence{testenv.PersistNone, testenv.PersistAOFAlways} {
		t.Run(fmt.Sprint(persistence), func(t *testing.T) {
			t.Parallel()
			q := startQuorum(t, 5, nil, testenv.WithPersistence(persistence))
			q.awaitVoting(t, 5)
			var last fencing.Token
			for round := range 5 {
				lease := q.takeNext(t, "r", last)
				last = lease.Token
				q.give(t, lease)
				q.servers[round].Kill()
				q.servers[round].Restart()
				q.awaitVoting(t, 4)
				lease = q.takeNext(t, "r", last)
				last = lease.Token
				q.give(t, lease)
				q.awaitVoting(t, 5)
			}
		})
	}
}
