package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// TestNodesThatAreLate: the vote of a slow node counts, and the servers do not wait for a node that has just been
// silent.
func TestNodesThatAreLate(t *testing.T) {
	t.Parallel()
	var lines []*testenv.Proxy
	var addrs []string
	for _, node := range testenv.StartRedisN(t, 3) {
		line := testenv.StartProxy(t, node.Addr())
		lines, addrs = append(lines, line), append(addrs, line.Addr())
	}
	const nodeTimeout = 6 * time.Second
	p := start(t, "FENCELOCK_REDIS_ADDRS="+strings.Join(addrs, ","), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=600ms", fmt.Sprint("FENCELOCK_NODE_TIMEOUT=", nodeTimeout))
	took := func(resource string, status int) time.Duration {
		t.Helper()
		began := time.Now()
		p.wants(p.ask(nil, "POST", "/locks", `{"resource":"`+resource+`","ttl_ms":60000}`), status)
		return time.Since(began)
	}

	// 200 ms there and back, of the 600 that a node has.
	for _, line := range lines {
		line.Delay(100 * time.Millisecond)
	}
	took("late", http.StatusCreated)
	for _, line := range lines {
		line.Delay(0)
	}

	// The first request after two of three nodes fall silent waits for them, for 600 ms; no
	// request waits for the limit.
	for _, line := range lines[:2] {
		line.Cut(testenv.CutBlackhole)
	}
	for i := range 5 {
		if d := took(fmt.Sprint("silent-", i), http.StatusServiceUnavailable); d > nodeTimeout/2 {
			t.Errorf("request %d was refused after %s of at most %s", i+1, d, nodeTimeout)
		}
	}
	for _, line := range lines[:2] {
		line.Cut(testenv.CutNone)
		line.Reset()
	}
	p.untilAnswer(http.StatusCreated, "POST", "/locks", `{"resource":"again"}`)
}
