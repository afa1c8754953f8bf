package testenv

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// through makes a client that speaks to the node through the proxy and gives up
// after a short while.
func through(t *testing.T, p *Proxy) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: p.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 1, DisableIdentity: true,
	})
	t.Cleanup(func() { _ = c.Close() })
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	return c
}

func incr(t *testing.T, c *redis.Client, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return c.Incr(ctx, "n").Err()
}

const (
	soon  = 100 * time.Millisecond // long enough for a reply that comes, short for one that doesn't
	later = 10 * time.Second
)

func TestProxyLosesReplies(t *testing.T) {
	r := StartRedis(t)
	p := StartProxy(t, r.Addr())
	c := through(t, p)
	p.DropReplies(true)
	if err := incr(t, c, soon); !isTimeout(err) {
		t.Errorf("with replies lost: %v", err)
	}
	if got := get(t, r, "n"); got != "1" {
		t.Errorf("n = %q: the request was to take effect", got)
	}
	p.DropReplies(false)
	if err := incr(t, c, later); err != nil {
		t.Error("afterwards:", err)
	}
}

func TestProxyBlackhole(t *testing.T) {
	r := StartRedis(t)
	p := StartProxy(t, r.Addr())
	c := through(t, p)
	p.Cut(CutBlackhole)
	if err := incr(t, c, soon); !isTimeout(err) {
		t.Errorf("cut off: %v", err)
	}
	p.Cut(CutNone)
	if err := incr(t, c, later); err != nil {
		t.Error("afterwards:", err)
	}
	if got := get(t, r, "n"); got != "1" {
		t.Errorf("n = %q: the first request was to be lost", got)
	}
}

func TestProxyRefuses(t *testing.T) {
	r := StartRedis(t)
	p := StartProxy(t, r.Addr())
	c := through(t, p)
	p.Cut(CutRefuse)
	for range 2 {
		if err := incr(t, c, later); err == nil || isTimeout(err) {
			t.Errorf("refused: %v, want an error at once", err)
		}
	}
	p.Cut(CutNone)
	if err := incr(t, c, later); err != nil {
		t.Error("afterwards:", err)
	}
}

func TestProxyResets(t *testing.T) {
	p := StartProxy(t, StartRedis(t).Addr())
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(later)); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, len("+PONG\r\n"))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, reply); err != nil {
		t.Fatal(err) // from here on the proxy has both connections
	}
	p.Reset()
	if _, err := conn.Read(reply); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset: %v", err)
	}
	if err := incr(t, through(t, p), later); err != nil {
		t.Error("afterwards:", err)
	}
}

func TestProxyDelays(t *testing.T) {
	r := StartRedis(t)
	p := StartProxy(t, r.Addr())
	c := through(t, p)
	p.Delay(50 * time.Millisecond)
	start := time.Now()
	if err := incr(t, c, later); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("took %v, want 50 ms each way", took)
	}
	p.Delay(time.Hour)
	if err := incr(t, c, soon); !isTimeout(err) {
		t.Errorf("with an hour's delay: %v", err)
	}
	p.Delay(0) // lets go of what is held back
	if err := incr(t, c, later); err != nil {
		t.Error("afterwards:", err)
	}
}

func TestProxyToADeadServer(t *testing.T) {
	r := StartRedis(t)
	p := StartProxy(t, r.Addr())
	c := through(t, p)
	r.Kill()
	if err := incr(t, c, later); err == nil || isTimeout(err) {
		t.Errorf("server dead: %v, want an error at once", err)
	}
	r.Restart()
	if err := incr(t, c, later); err != nil {
		t.Error("afterwards:", err)
	}
}

func TestProxyRetargets(t *testing.T) {
	a, b := StartRedis(t), StartRedis(t)
	p := StartProxy(t, a.Addr())
	c := through(t, p)
	if err := incr(t, c, later); err != nil {
		t.Fatal(err)
	}
	p.Retarget(b.Addr())
	for range 3 { // the first may meet its connection reset
		_ = incr(t, c, later)
	}
	if got := get(t, a, "n"); got != "1" {
		t.Errorf("the old target has n = %q: it was to be asked no more", got)
	}
	if got := get(t, b, "n"); got != "2" && got != "3" {
		t.Errorf("the new target has n = %q", got)
	}
}
