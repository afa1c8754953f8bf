//go:build linux

package main

import (
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/fencelock/fencelock/internal/testenv"
)

// consoleMostCPU is the largest part of a core that an open console may cost the server, with a thousand locks.
const consoleMostCPU = 0.02

// TestSoakConsoleCost measures a server with a thousand locks over five real Redis nodes and light traffic, without a
// console and with one, and compares. The cost of opening the console counts, too: one listing by the page and one by
// the server. FENCELOCK_TEST_COST_WINDOW=1m measures for longer.
func TestSoakConsoleCost(t *testing.T) {
	testenv.Soak(t, "what an open console costs a server")
	window := 5 * time.Second
	if text := os.Getenv("FENCELOCK_TEST_COST_WINDOW"); text != "" {
		var err error
		if window, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	nodes := testenv.StartRedisN(t, 5)
	p := start(t, redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=3s", "FENCELOCK_MAX_TTL=1h")
	var filling sync.WaitGroup
	for worker := range 8 {
		filling.Go(func() {
			for i := range 125 {
				p.acquire(fmt.Sprintf(`{"resource":"orders/%d","holder":"worker-%d","ttl_ms":3600000,"metadata":{"job":%d}}`, 1000*worker+i, worker, i))
			}
		})
	}
	filling.Wait()
	c := newPage(t, p)

	const looks = 4
	for look := 1; ; look++ {
		c.run("leave the console", chromedp.Navigate("about:blank"))
		without := p.spends(t, window)
		c.open("/console")
		with := p.spends(t, 2*window)
		c.wait("the locks are shown", `document.querySelector('#counts').innerText.includes('1000 held')`)
		t.Logf("a thousand locks: %.2f %% of a core without a console, %.2f %% with one: it costs %.2f %%", 100*without, 100*with, 100*(with-without))
		if with-without < consoleMostCPU {
			return
		}
		if look == looks {
			t.Fatalf("an open console costs more than %.0f %% of a core", 100*consoleMostCPU)
		}
	}
}

// spends returns the part of a core that the server uses while a client takes and releases a lock ten times a second.
func (p *process) spends(t *testing.T, window time.Duration) float64 {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	spent, begun := p.cpu(), time.Now()
	for time.Since(begun) < window {
		<-tick.C
		lease := p.acquire(`{"resource":"jobs/nightly","holder":"scheduler"}`)
		p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID), http.StatusNoContent)
	}
	return (p.cpu() - spent).Seconds() / time.Since(begun).Seconds()
}
