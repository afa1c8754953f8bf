package main

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// Two of three nodes lose their data and are bootstrapped again. Two servers grant leases around that time. These can
// be extended and released, at once and through the other server.
func TestLeasesAroundABootstrap(t *testing.T) {
	testenv.Long(t, "a lease that a bootstrap ends too late or too early")
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	env := []string{redisAddrs(nodes), "FENCELOCK_MAX_TTL=6s", "FENCELOCK_DEFAULT_TTL=6s", "FENCELOCK_NODE_TIMEOUT=600ms"}
	servers := []*process{start(t, append(env, "FENCELOCK_BOOTSTRAP=new")...), start(t, env...)}
	for _, n := range nodes[:2] {
		n.Kill()
	}
	for _, n := range nodes[:2] {
		n.Restart()
	}
	const threads, enough = 12, 1000
	var granted, number atomic.Int64
	var callers sync.WaitGroup
	deadline := time.Now().Add(patience)
	for k := range threads {
		p, other := servers[k%2], servers[k/2%2]
		callers.Go(func() {
			call := func(p *process, v any, method, path, body string, header ...string) int {
				resp, err := p.try(t.Context(), v, method, path, body, header...)
				if err != nil {
					t.Error(err)
					return 0
				}
				return resp.StatusCode
			}
			for granted.Load() < enough && time.Now().Before(deadline) {
				var lease wire.Lease
				if call(p, &lease, "POST", "/locks", fmt.Sprintf(`{"resource":"r%d"}`, number.Add(1))) != http.StatusCreated {
					continue
				}
				granted.Add(1)
				if status := call(other, nil, "POST", "/leases/current/extend", "{}", wire.HeaderLease+": "+lease.LeaseID); status == http.StatusNotFound {
					t.Errorf("extend of a lease that was granted just now: %d", status)
				}
				if status := call(p, nil, "DELETE", "/leases/current", "", wire.HeaderLease+": "+lease.LeaseID); status == http.StatusNotFound {
					t.Errorf("release of a lease that was granted just now: %d", status)
				}
			}
		})
	}
	callers.Wait()
	if granted.Load() < enough {
		t.Errorf("only %d leases within %s", granted.Load(), patience)
	}
}

// The first request to a server that starts while others run gets the same response as later ones.
func TestFirstRequestOfAServer(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	env := []string{redisAddrs(nodes), "FENCELOCK_NODE_DOWN_AFTER=1s"}
	first := start(t, append(env, "FENCELOCK_BOOTSTRAP=new")...)
	for i := range 5 {
		lease := first.acquire(fmt.Sprintf(`{"resource":"a%d"}`, i))
		p := startUnready(t, "http", http.DefaultClient, env...)
		p.acquire(fmt.Sprintf(`{"resource":"b%d"}`, i))
		p.Kill()
		p = startUnready(t, "http", http.DefaultClient, env...)
		p.release(lease)
		p.Kill()
		p = startUnready(t, "http", http.DefaultClient, env...)
		p.wants(p.ask(nil, "GET", "/locks?prefix=a", ""), http.StatusOK)
		p.Kill()
	}
}

// A server whose nodes are down starts, and says so.
func TestFirstRequestWithoutNodes(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	for i, n := range nodes {
		if i == 0 {
			n.Freeze()
			t.Cleanup(n.Thaw)
		} else {
			n.Kill()
		}
	}
	p := startUnready(t, "http", http.DefaultClient, redisAddrs(nodes))
	began := time.Now()
	p.wants(p.ask(nil, "GET", "/healthz", ""), http.StatusOK)
	var problem wire.Problem
	p.wants(p.ask(&problem, "POST", "/locks", `{"resource":"r"}`), http.StatusServiceUnavailable)
	if took := time.Since(began); problem.Type != "/problems/no-quorum" || took > 5*time.Second {
		t.Errorf("%+v after %s", problem, took)
	}
}
