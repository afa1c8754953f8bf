package redisnode_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// patient gives a busy machine time, because these tests are not about time limits.
const patient = 5 * time.Second

// spoil puts a hash where the resource's lock belongs.
func spoil(t *testing.T, server *testenv.Redis) func(resource string) {
	t.Helper()
	return func(resource string) {
		client, key := server.Client(), "l:"+resource
		if n, err := client.Del(t.Context(), key).Result(); err != nil || n != 1 {
			t.Fatalf("%d locks were deleted: %v", n, err)
		}
		if err := errors.Join(client.HSet(t.Context(), key, "no", "lock").Err(), client.PExpire(t.Context(), key, time.Minute).Err()); err != nil {
			t.Fatal(err)
		}
	}
}

func openNode(tb testing.TB, addr string, opts redisnode.Options) *redisnode.Node {
	tb.Helper()
	if opts.Timeout == 0 {
		opts.Timeout = patient
	}
	node, err := redisnode.Open(addr, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = node.Close() })
	return node
}

// onlyRecordLasts checks that only the node's record has no expiry. WatchLeaks reports every other key without one.
func onlyRecordLasts(t *testing.T, server *testenv.Redis) {
	t.Helper()
	ctx, client := context.Background(), server.Client()
	keys := client.Scan(ctx, 0, "", 1000).Iterator()
	for keys.Next(ctx) {
		if left, err := client.PTTL(ctx, keys.Val()).Result(); err != nil || keys.Val() != redisnode.OwnKey && left == -1 {
			t.Errorf("%q has no expiry: %v", keys.Val(), err)
		}
	}
	if err := keys.Err(); err != nil {
		t.Error(err)
	}
}

// unsynced is a server that keeps its data over a restart, but not over a crash of the machine. With syncs, a slow
// disk would take most of the time of these tests.
func unsynced() []testenv.RedisOption {
	return []testenv.RedisOption{testenv.WithPersistence(testenv.PersistAOFEverysec), testenv.WithConfig("appendfsync no")}
}

// The server's user has exactly the rights that the package's comment documents. They must be enough for everything.
func TestConformance(t *testing.T) {
	conformance(t, nodetest.RunBatched)
}

func TestConformanceOfSingleOperations(t *testing.T) {
	testenv.Long(t, "a rule that the script breaks only for an operation that comes alone")
	conformance(t, nodetest.RunSingle)
}

func conformance(t *testing.T, run func(*testing.T, func(*testing.T, nodetest.Wanted) nodetest.Harness)) {
	t.Helper()
	t.Parallel()
	server := testenv.StartRedis(t, append(unsynced(), testenv.WithUser("locks", "s3cret", documentedACL(t)...))...)
	run(t, func(t *testing.T, wanted nodetest.Wanted) nodetest.Harness {
		t.Helper()
		server.FlushAll()
		t.Cleanup(func() { onlyRecordLasts(t, server) })
		node := openNode(t, server.URL(), redisnode.Options{CounterTTL: wanted.CounterTTL})
		return nodetest.Harness{Node: node, Restart: server.Restart, Wipe: server.FlushAll, Spoil: spoil(t, server)}
	})
}
