//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// idleCost is the cost of one second without requests.
type idleCost struct {
	server   float64 // of one core, each server
	node     float64 // of one core, each node
	requests float64 // to each node
}

// TestSoakIdle measures, for the page on scale, the cost of idle servers on five Redis nodes: with leases that nobody
// extends, and with requests that wait for them (make scale). A server's processor time does not depend on other
// programs, except that on a busy machine it sends more operations together.
func TestSoakIdle(t *testing.T) {
	testenv.Soak(t, "what idle servers cost five Redis")
	const waiters = 1000
	alone := make(map[string]idleCost)
	report := "\n| servers | leases | waiters | of a core, each server | each node | requests to each node a second |\n| --- | --- | --- | --- | --- | --- |\n"
	for _, servers := range []int{0, 1, 3, 10} {
		t.Run(fmt.Sprint(servers, " servers"), func(t *testing.T) {
			nodes := testenv.StartRedisN(t, 5)
			crowd := startIdle(t, servers, nodes)
			look := func(leases, waiting int) {
				cost := crowd.cost(t)
				report += fmt.Sprintf("| %d | %d | %d | %.1f %% | %.1f %% | %.0f |\n", servers, leases, waiting, 100*cost.server, 100*cost.node, cost.requests)
				what := fmt.Sprint(leases, " leases, ", waiting, " waiters")
				switch one, known := alone[what]; {
				case servers == 0:
				case servers == 1:
					alone[what] = cost
				case known && cost.requests > 1.3*float64(servers)*one.requests:
					t.Errorf("%s: %.0f requests a second to each node from %d servers, %.0f from one", what, cost.requests, servers, one.requests)
				}
				if empty, known := alone["0 leases, 0 waiters"]; known && waiting == 0 && cost.requests > 1.3*float64(servers)*empty.requests {
					t.Errorf("%s: %.0f requests a second to each node, %.0f without leases", what, cost.requests, empty.requests)
				}
			}
			look(0, 0)
			if servers == 0 {
				return
			}
			held := 0
			for _, leases := range []int{100, 10_000} {
				crowd.hold(t, held, leases)
				held = leases
				look(held, 0)
			}
			for i := range waiters {
				crowd.servers[i%servers].waitRaw(idleResource(i%100), fmt.Sprint("waiter-", i))
			}
			for i := range 100 {
				crowd.servers[0].awaitWaiting(idleResource(i), waiters/100)
			}
			look(held, waiters)
		})
	}
	t.Log(report)
}

func idleResource(i int) string { return "idle-" + strconv.Itoa(i) }

// idleServers are servers on the same nodes.
type idleServers struct {
	servers []*process
	nodes   []*testenv.Redis
}

func startIdle(t *testing.T, servers int, nodes []*testenv.Redis) idleServers {
	t.Helper()
	crowd := idleServers{nodes: nodes}
	for range servers {
		crowd.servers = append(crowd.servers, start(t, redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=3s", "FENCELOCK_MAX_TTL=1h"))
	}
	return crowd
}

// hold acquires leases up to a number, an equal share at each server.
func (c idleServers) hold(t *testing.T, from, to int) {
	t.Helper()
	const most = 128 // operations of a batch
	var holding sync.WaitGroup
	for at := from; at < to; at += most {
		p := c.servers[at/most%len(c.servers)]
		holding.Go(func() {
			var batch wire.Batch
			for i := at; i < min(at+most, to); i++ {
				body := fmt.Sprintf(`{"resource":%q,"ttl_ms":3600000}`, idleResource(i))
				batch.Operations = append(batch.Operations, wire.BatchOperation{Operation: wire.OperationAcquire, Body: json.RawMessage(body)})
			}
			p.batch(batch, http.StatusCreated)
		})
		if at/most%4 == 3 { // so many batches are in flight
			holding.Wait()
		}
	}
	holding.Wait()
}

// batch sends the operations, which must all get this status, and returns their results.
func (p *process) batch(batch wire.Batch, status int) []wire.BatchResult {
	p.t.Helper()
	body, err := json.Marshal(batch)
	if err != nil {
		p.t.Error(err)
	}
	var results wire.BatchResults
	if _, err := p.try(p.t.Context(), &results, "POST", "/locks/batch", string(body)); err != nil {
		p.t.Error(err)
	}
	for _, r := range results.Results {
		if r.Status != status {
			p.t.Errorf("%d %s", r.Status, r.Body)
		}
	}
	return results.Results
}

// cost returns the least of a few measurements, because the servers may still have work to do for requests that have
// just come.
func (c idleServers) cost(t *testing.T) idleCost {
	t.Helper()
	const looks, window = 3, 5 * time.Second
	least := idleCost{math.Inf(1), math.Inf(1), math.Inf(1)}
	for range looks {
		server, node, requests, begun := c.spentByServers(), 0.0, 0.0, time.Now()
		for _, n := range c.nodes {
			spent, asked := spentByNode(t, n)
			node, requests = node-spent, requests-asked
		}
		<-time.After(window) // what is measured is that nothing happens
		for _, n := range c.nodes {
			spent, asked := spentByNode(t, n)
			node, requests = node+spent, requests+asked
		}
		seconds, nodes := time.Since(begun).Seconds(), float64(len(c.nodes))
		least.server = min(least.server, (c.spentByServers()-server)/seconds/float64(max(1, len(c.servers))))
		least.node, least.requests = min(least.node, node/seconds/nodes), min(least.requests, requests/seconds/nodes)
	}
	return least
}

func (c idleServers) spentByServers() (seconds float64) {
	for _, p := range c.servers {
		seconds += p.cpu().Seconds()
	}
	return seconds
}

// spentByNode returns the processor time of a node in seconds, and the number of requests that it has read.
func spentByNode(t *testing.T, n *testenv.Redis) (seconds, requests float64) {
	t.Helper()
	text, err := n.Client().Info(t.Context(), "cpu", "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	info := redisnode.ParseInfo(text)
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		part, err := strconv.ParseFloat(info[name], 64)
		if err != nil {
			t.Fatal(err)
		}
		seconds += part
	}
	if requests, err = strconv.ParseFloat(info["total_reads_processed"], 64); err != nil {
		t.Fatal(err)
	}
	return seconds, requests
}
