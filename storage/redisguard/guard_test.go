package redisguard_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/fencing/guardtest"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/redisguard"
)

func client(t *testing.T, server *testenv.Redis) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	opts.MaxRetries = -1
	opts.ContextTimeoutEnabled = true
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestConformance(t *testing.T) {
	server := testenv.StartRedis(t, testenv.WithPersistence(testenv.PersistAOFAlways))
	var stores atomic.Int64
	prefixes := map[fencing.Guard]string{}
	guardtest.RunDurable(t,
		func(t *testing.T) fencing.Guard {
			t.Helper()
			prefix := fmt.Sprintf("store %d:", stores.Add(1))
			g := redisguard.New(client(t, server), redisguard.Options{Prefix: prefix})
			prefixes[g] = prefix
			return g
		},
		func(t *testing.T, g fencing.Guard) fencing.Guard {
			t.Helper()
			server.Kill()
			server.Restart()
			return redisguard.New(client(t, server), redisguard.Options{Prefix: prefixes[g]})
		})
}

// TestScriptOfOnesOwn guards a balance in a hash, as docs/how-to/guard.md shows it.
func TestScriptOfOnesOwn(t *testing.T) {
	c := client(t, testenv.StartRedis(t))
	deposit := redisguard.NewScript(`
		local live, mark = claim(KEYS[1], ARGV[1])
		if not live then return redis.error_reply('STALE ' .. string.format('%.0f', mark)) end
		return redis.call('HINCRBY', KEYS[2], 'balance', ARGV[2])`)
	run := func(token any) (int, error) {
		return deposit.Run(t.Context(), c, []string{"accounts/1:mark", "accounts/1"}, token, 10).Int()
	}
	for _, token := range []int{34, 34, 35} {
		if _, err := run(token); err != nil {
			t.Errorf("token %d: %v", token, err)
		}
	}
	if _, err := run(34); err == nil || !strings.HasPrefix(err.Error(), "STALE 35") {
		t.Errorf("a stale token gives %v", err)
	}
	for _, token := range []any{"0", "-1", "", "1.5", "1e3", " 1", "034", "9007199254740992", "x", "1 2"} {
		if _, err := run(token); err == nil || !strings.Contains(err.Error(), "FENCING malformed token") {
			t.Errorf("token %q gives %v", token, err)
		}
	}
	if _, err := run("9007199254740991"); err != nil {
		t.Errorf("the largest token: %v", err)
	}
	if _, err := run("9007199254740990"); err == nil || !strings.HasPrefix(err.Error(), "STALE 9007199254740991") {
		t.Errorf("the token before the largest gives %v", err)
	}
	if balance, err := c.HGet(t.Context(), "accounts/1", "balance").Int(); err != nil || balance != 40 {
		t.Errorf("balance is %d, %v; want 40", balance, err)
	}
}

func TestAwayIsUnavailable(t *testing.T) {
	server := testenv.StartRedis(t, testenv.WithPersistence(testenv.PersistAOFAlways))
	g := redisguard.New(client(t, server), redisguard.Options{})
	if _, err := g.Claim(t.Context(), "r", 1); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if _, err := g.Claim(t.Context(), "r", 2); !errors.Is(err, fencing.ErrGuardUnavailable) {
		t.Errorf("without Redis a claim gives %v", err)
	}
	if _, err := g.HighestMark(t.Context()); !errors.Is(err, fencing.ErrGuardUnavailable) {
		t.Errorf("without Redis the highest mark gives %v", err)
	}
	server.Restart()
	testenv.Eventually(t, 10*time.Second, func() error {
		_, err := g.Claim(t.Context(), "r", 2)
		return err
	})
	var stale *fencing.StaleTokenError
	if _, err := g.Claim(t.Context(), "r", 1); !errors.As(err, &stale) || stale.Highest != 2 {
		t.Errorf("after a crash a stale claim gives %v", err)
	}
}
