package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

// A caller that may have one waiting request at each server sends many requests under idempotency keys and ends them
// at once, to bank places in the queue. Then it uses the keys one after the other while somebody else waits. Only one
// request a server may go first, as if it had waited there all the time.
func TestPlacesAreNotBanked(t *testing.T) {
	testenv.Long(t, "a place in the queue that is kept for nobody")
	t.Parallel()
	for name, c := range map[string]struct {
		servers int
		bank    func(p *process, key, body string, header ...string)
	}{
		"hung up":            {1, hangsUp},
		"hung up, 3 servers": {3, hangsUp},
		"polls":              {1, pollsOnce},
		"waits that end":     {1, waitsBriefly},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "access.txt")
			greedy := bearer(tokenFor(t, file, "greedy", "--acquire", "*", "--waiters", "1"))
			modest := bearer(tokenFor(t, file, "modest", "--acquire", "*"))
			servers := startWithAccess(t, c.servers, file)
			p := servers[0]
			var held wire.Lease
			p.wants(p.ask(&held, "POST", "/locks", `{"resource":"hot","ttl_ms":60000}`, greedy), http.StatusCreated)
			const banked = 12
			body := `{"resource":"hot","ttl_ms":60000,"wait_ms":60000,"holder":"greedy"}`
			var begun time.Time // the last of them
			for i := range banked {
				begun = time.Now()
				c.bank(servers[i%len(servers)], fmt.Sprint("key", i), body, greedy)
			}
			p.until("nobody waits", func() bool { return len(p.queueAs("hot", modest)) == 0 })
			go func() {
				_, _ = p.try(t.Context(), nil, "POST", "/locks", `{"resource":"hot","ttl_ms":60000,"wait_ms":60000,"holder":"victim"}`, modest)
			}()
			p.until("the victim waits", func() bool { return len(p.queueAs("hot", modest)) == 1 })
			passed, asked := 0, time.Duration(0)
			for i := banked - 1; i >= 0; i-- {
				taken := p.repeats(fmt.Sprint("key", i), body, held, greedy)
				if i == banked-1 {
					asked = time.Since(begun)
				}
				if taken == nil {
					break
				}
				held = *taken
				passed++
			}
			if passed > c.servers {
				t.Errorf("%d requests went before one that had waited, through %d servers at which one may wait", passed, c.servers)
			}
			if passed == 0 && asked < waitqueue.LingerTime { // a machine that is later has asked for a place that is given up
				t.Error("the last place was not kept")
			}
		})
	}
}

// repeats queues a request under a key, waits until both it and the victim wait, and releases the lease. It returns
// the new lease if the request got it, and nil if the victim did.
func (p *process) repeats(key, body string, held wire.Lease, header ...string) *wire.Lease {
	p.t.Helper()
	ctx, stop := context.WithCancel(p.t.Context())
	defer stop()
	got := make(chan *wire.Lease, 1)
	go func() {
		var lease wire.Lease
		resp, err := p.try(ctx, &lease, "POST", "/locks", body, append(header, wire.HeaderIdempotencyKey+": "+key)...)
		if err != nil || resp.StatusCode != http.StatusCreated {
			got <- nil
			return
		}
		got <- &lease
	}()
	p.until("both wait", func() bool { return len(p.queueAs("hot", header...)) == 2 })
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", append(header, wire.HeaderLease+": "+held.LeaseID)...), http.StatusNoContent)
	var state wire.Lock
	p.until("one of them has it", func() bool {
		p.wants(p.ask(&state, "GET", "/locks/hot", "", header...), http.StatusOK)
		return state.Held
	})
	if *state.Holder == "victim" {
		return nil
	}
	return <-got
}

func hangsUp(p *process, key, body string, header ...string) {
	p.t.Helper()
	ctx, hangUp := context.WithCancel(p.t.Context())
	defer hangUp()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = p.try(ctx, nil, "POST", "/locks", body, append(header, wire.HeaderIdempotencyKey+": "+key)...)
	}()
	p.until("it waits", func() bool { return len(p.queueAs("hot", header...)) == 1 })
	hangUp()
	<-ended
	p.until("it has left", func() bool { return len(p.queueAs("hot", header...)) == 0 })
}

func pollsOnce(p *process, key, body string, header ...string) {
	p.t.Helper()
	p.wants(p.ask(nil, "POST", "/locks", body, append(header, wire.HeaderIdempotencyKey+": "+key, wire.HeaderPrefer+": wait=1")...), http.StatusConflict)
}

func waitsBriefly(p *process, key, _ string, header ...string) {
	p.t.Helper()
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"hot","ttl_ms":60000,"wait_ms":300,"holder":"greedy"}`, append(header, wire.HeaderIdempotencyKey+": "+key)...), http.StatusConflict)
}

func (p *process) queueAs(resource string, header ...string) []wire.Waiter {
	p.t.Helper()
	var lock wire.Lock
	p.wants(p.ask(&lock, "GET", "/locks/"+resource, "", header...), http.StatusOK)
	return lock.Queue
}

// startWithAccess runs one server on its file, or several on one Redis.
func startWithAccess(t *testing.T, n int, file string) (servers []*process) {
	t.Helper()
	if n == 1 {
		return []*process{start(t, "FENCELOCK_ACCESS_FILE="+file, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "fencelock.db"))}
	}
	nodes := []*testenv.Redis{testenv.StartRedis(t)}
	for i := range n {
		env := []string{redisAddrs(nodes), "FENCELOCK_NODE_DOWN_AFTER=3s", "FENCELOCK_ACCESS_FILE=" + file}
		if i == 0 {
			env = append(env, "FENCELOCK_BOOTSTRAP=new")
		}
		servers = append(servers, start(t, env...))
	}
	return servers
}
