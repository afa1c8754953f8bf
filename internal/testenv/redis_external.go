package testenv

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// EnvRedisAddrs names the environment variable with Redis servers that tests may use and empty: host:port,
// separated by commas.
const EnvRedisAddrs = "FENCELOCK_TEST_REDIS_ADDRS"

// externalWithin bounds how long a test waits until other tests release such servers.
const externalWithin = 5 * time.Minute

// externalRedis takes n of the servers for this test alone and empties them.
func externalRedis(t testing.TB, n int, config redisConfig, addrs []string) []*Redis {
	t.Helper()
	if config.custom {
		t.Fatalf("testenv: this test starts Redis with options of its own; unset %s", EnvRedisAddrs)
	}
	if n > len(addrs) {
		t.Fatalf("testenv: this test needs %d Redis servers and %s has %d", n, EnvRedisAddrs, len(addrs))
	}
	var free []string
	Eventually(t, externalWithin, func() (err error) {
		free, err = lockAddrs(t, n, addrs)
		return err
	})
	nodes := make([]*Redis, n)
	for i, addr := range free {
		nodes[i] = newRedis(t, config, strings.TrimSpace(addr))
		nodes[i].admin = nodes[i].Client()
		nodes[i].FlushAll()
	}
	return nodes
}

// lockAddrs takes n addresses that no other test uses, or none. If tests kept some
// addresses while they waited for more, they could wait for each other forever.
func lockAddrs(t testing.TB, n int, addrs []string) ([]string, error) {
	var taken []string
	var unlocks []func()
	unlockAll := func() {
		for _, unlock := range unlocks {
			unlock()
		}
	}
	for _, addr := range addrs {
		if unlock, err := tryLock(addrLock(addr)); err == nil {
			taken, unlocks = append(taken, addr), append(unlocks, unlock)
		}
		if len(taken) == n {
			t.Cleanup(unlockAll)
			return taken, nil
		}
	}
	unlockAll()
	return nil, fmt.Errorf("other tests use the servers in %s", EnvRedisAddrs)
}

// addrLock returns the path of the lock of an address.
func addrLock(addr string) string {
	sum := sha256.Sum256([]byte(strings.TrimSpace(addr)))
	return filepath.Join(os.TempDir(), fmt.Sprintf("fencelock-testenv-addr-%d-%x", os.Getuid(), sum[:8]))
}
