package testenv

import (
	"bytes"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A cut of one client of a router leaves the other alone, and connections that name no client are not served.
func TestRouterCutsOneClient(t *testing.T) {
	r := StartRedis(t)
	router := StartRouter(t, "127.0.0.1:0", r.Addr(), 2, func(first []byte) (client int, known bool) {
		_, number, found := bytes.Cut(first, []byte("client-"))
		if !found || len(number) == 0 {
			return 0, false
		}
		client, err := strconv.Atoi(string(number[:1]))
		return client, err == nil
	})
	named := func(name string) *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: router.Addr(), ClientName: name, MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 1, DisableIdentity: true})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	first, second := named("client-0"), named("client-1")
	for _, c := range []*redis.Client{first, second} {
		if err := incr(t, c, later); err != nil {
			t.Fatal(err)
		}
	}
	router.Proxy(0).Cut(CutBlackhole)
	if err := incr(t, first, soon); !isTimeout(err) {
		t.Errorf("the client that is cut off: %v", err)
	}
	if err := incr(t, second, later); err != nil {
		t.Errorf("the other client: %v", err)
	}
	router.Proxy(0).heal()
	Eventually(t, later, func() error { return incr(t, first, later) })
	if got := get(t, r, "n"); got != "4" {
		t.Errorf("n = %s, want 4: of the one that was cut off nothing arrives", got)
	}
	if err := incr(t, named("client-7"), later); err == nil {
		t.Error("a client without a proxy is served")
	}
}
