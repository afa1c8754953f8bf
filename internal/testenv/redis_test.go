package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func set(t *testing.T, r *Redis, key, value string) {
	t.Helper()
	if err := r.Client().Set(t.Context(), key, value, 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, r *Redis, key string) string {
	t.Helper()
	v, err := r.Client().Get(t.Context(), key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return v
}

func runID(t *testing.T, r *Redis) string {
	t.Helper()
	info, err := r.Client().Info(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(info, "run_id:")
	id, _, _ := strings.Cut(rest, "\r\n")
	return id
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

func TestRedisNodesAreIndependent(t *testing.T) {
	nodes := StartRedisN(t, 3)
	for i, r := range nodes {
		set(t, r, "k", fmt.Sprint(i))
	}
	for i, r := range nodes {
		if got := get(t, r, "k"); got != fmt.Sprint(i) {
			t.Errorf("node %d has %q", i, got)
		}
	}
}

func TestRedisDefaults(t *testing.T) {
	r := StartRedis(t)
	for name, want := range map[string]string{
		"maxmemory-policy": "noeviction", "appendonly": "no", "save": "", "databases": "16",
	} {
		got, err := r.Client().ConfigGet(t.Context(), name).Result()
		if err != nil || got[name] != want {
			t.Errorf("%s = %q, %v; want %q", name, got[name], err, want)
		}
	}
}

func TestRedisOptions(t *testing.T) {
	r := StartRedis(t, WithConfig("maxmemory-policy allkeys-lru", "databases 3", "maxclients 77"),
		WithEnv("TZ=UTC"))
	for name, want := range map[string]string{
		"maxmemory-policy": "allkeys-lru", "maxclients": "77", "databases": "3",
	} {
		got, err := r.Client().ConfigGet(t.Context(), name).Result()
		if err != nil || got[name] != want {
			t.Errorf("%s = %q, %v; want %q", name, got[name], err, want)
		}
	}
}

// What survives a kill -9 and an orderly restart is each mode's whole point.
func TestRedisRestart(t *testing.T) {
	for _, c := range []struct {
		name               string
		mode               Persistence
		afterKill, inOrder string
	}{
		{"none", PersistNone, "", ""},
		{"rdb", PersistRDB, "", "2"},
		{"aof everysec", PersistAOFEverysec, "1", "2"},
		{"aof always", PersistAOFAlways, "1", "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := StartRedis(t, WithPersistence(c.mode))
			addr, first := r.Addr(), runID(t, r)
			set(t, r, "k", "1")
			r.Kill()
			if conn, err := net.Dial("tcp", addr); err == nil {
				_ = conn.Close()
				t.Fatal("a killed node takes connections")
			}
			r.Restart()
			if got := get(t, r, "k"); got != c.afterKill {
				t.Errorf("after kill -9: %q, want %q", got, c.afterKill)
			}
			set(t, r, "k", "2")
			r.Restart()
			if got := get(t, r, "k"); got != c.inOrder {
				t.Errorf("after an orderly restart: %q, want %q", got, c.inOrder)
			}
			if r.Addr() != addr || runID(t, r) == first {
				t.Errorf("address %s, run %s: want the old address and a new run", r.Addr(), runID(t, r))
			}
		})
	}
}

func TestRedisWipe(t *testing.T) {
	for _, mode := range []Persistence{PersistRDB, PersistAOFAlways} {
		r := StartRedis(t, WithPersistence(mode))
		set(t, r, "k", "1")
		r.Shutdown()
		r.Wipe()
		r.Restart()
		if got := get(t, r, "k"); got != "" {
			t.Errorf("mode %d: a wiped node has %q", mode, got)
		}
	}
}

func TestRedisFlushAll(t *testing.T) {
	r := StartRedis(t)
	set(t, r, "k", "1")
	r.FlushAll()
	if got := get(t, r, "k"); got != "" {
		t.Errorf("a flushed node has %q", got)
	}
}

func TestRedisTruncateAOFLosesTheTailOnly(t *testing.T) {
	r := StartRedis(t, WithPersistence(PersistAOFAlways))
	set(t, r, "first", "1")
	set(t, r, "last", "1")
	r.Kill()
	r.TruncateAOF(3)
	r.Restart()
	if first, last := get(t, r, "first"), get(t, r, "last"); first != "1" || last != "" {
		t.Errorf("first = %q, last = %q; want only the last write lost", first, last)
	}
	r.Kill()
	r.TruncateAOF(1 << 30)
	r.Restart()
	if first := get(t, r, "first"); first != "" {
		t.Errorf("first = %q after the whole file was cut", first)
	}
}

func TestRedisFreezeAndThaw(t *testing.T) {
	r := StartRedis(t)
	c := r.Client()
	set(t, r, "k", "1")
	r.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.Get(ctx, "k").Err(); !isTimeout(err) {
		t.Errorf("a frozen node answers: %v", err)
	}
	r.Thaw()
	if got := get(t, r, "k"); got != "1" {
		t.Errorf("a thawed node has %q", got)
	}
	r.Freeze()
	r.Kill()
	r.Restart()
	if got := get(t, r, "k"); got != "" {
		t.Errorf("killed while frozen, restarted: %q", got)
	}
	r.Freeze() // and the clean-up has to cope with that
}

func TestRedisReplicas(t *testing.T) {
	master := StartRedis(t, WithPersistence(PersistAOFAlways))
	set(t, master, "k", "1")
	replica := StartRedis(t, WithReplicaOf(master))
	if got := get(t, replica, "k"); got != "1" {
		t.Fatalf("the replica has %q", got)
	}
	master.Kill()
	replica.Promote()
	set(t, replica, "k", "2")
	master.Restart()
	master.ReplicaOf(replica)
	if got := get(t, master, "k"); got != "2" {
		t.Errorf("after fail-over the old master has %q", got)
	}
	master.Restart()
	if err := master.Client().Set(t.Context(), "k", "3", 0).Err(); err == nil || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("a replica restarted as a master: %v", err)
	}
}

func TestRedisCredentials(t *testing.T) {
	for name, opts := range map[string][]RedisOption{
		"password": {WithPassword("s3cret")},
		"user":     {WithUser("locks", "s3cret", "~*", "+@all")},
		"tls":      {WithTLS(), WithPassword("s3cret")},
	} {
		t.Run(name, func(t *testing.T) {
			r := StartRedis(t, opts...)
			set(t, r, "k", "1")
			parsed, err := redis.ParseURL(r.URL())
			if err != nil {
				t.Fatal(err)
			}
			if parsed.TLSConfig != nil {
				parsed.TLSConfig.RootCAs = r.TLSConfig().RootCAs
			}
			c := redis.NewClient(parsed)
			defer func() { _ = c.Close() }()
			if got, err := c.Get(t.Context(), "k").Result(); err != nil || got != "1" {
				t.Errorf("by URL %s: %q, %v", r.URL(), got, err)
			}
			bare := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1, TLSConfig: r.TLSConfig()})
			defer func() { _ = bare.Close() }()
			if err := bare.Get(t.Context(), "k").Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
				t.Errorf("without a password: %v", err)
			}
		})
	}
}

func TestRedisTLSOnly(t *testing.T) {
	r := StartRedis(t, WithTLS())
	c := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1})
	defer func() { _ = c.Close() }()
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Error("a TLS node answers in clear text")
	}
	replica := StartRedis(t, WithTLS(), WithConfig("tls-ca-cert-file "+r.CAFile()), WithReplicaOf(r))
	if err := replica.Client().Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

func TestRedisLogsReachOverRestarts(t *testing.T) {
	r := StartRedis(t)
	r.Restart()
	if n := strings.Count(r.Logs(), "Ready to accept connections"); n != 2 {
		t.Errorf("%d starts in the logs, want 2:\n%s", n, r.Logs())
	}
}
