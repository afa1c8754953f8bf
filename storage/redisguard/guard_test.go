package redisguard_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/redisguard"
)

// TestScriptOfOnesOwn guards a balance in a hash by an application's own script, as
// docs/how-to/guard-other-storage.md shows.
func TestScriptOfOnesOwn(t *testing.T) {
	c := testenv.StartRedis(t).Client()
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

// A high-water mark survives a crash of its Redis.
func TestMarkIsKept(t *testing.T) {
	server := testenv.StartRedis(t, testenv.WithPersistence(testenv.PersistAOFAlways))
	c := server.Client()
	claim := redisguard.NewScript(`local live = claim(KEYS[1], ARGV[1]) return live`)
	if live, err := claim.Run(t.Context(), c, []string{"mark"}, "2").Bool(); !live || err != nil {
		t.Fatal(live, err)
	}
	server.Kill()
	server.Restart()
	if live, err := claim.Run(t.Context(), c, []string{"mark"}, "1").Bool(); live || !errors.Is(err, redis.Nil) { // Lua's false
		t.Errorf("after a crash a stale claim gives %t, %v", live, err)
	}
}
