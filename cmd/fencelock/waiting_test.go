package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// turn is the result of a wait in the queue.
type turn struct {
	lease      wire.Lease
	refusal    wire.Problem
	status     int
	retryAfter string
	err        error
	sent, at   time.Time
}

// waits queues in the background for a lease of the usual TTL.
func (p *process) waits(ctx context.Context, resource, holder string, wait time.Duration) <-chan turn {
	return p.waitsFor(ctx, resource, holder, wait, 30*time.Second)
}

func (p *process) waitsFor(ctx context.Context, resource, holder string, wait, ttl time.Duration) <-chan turn {
	ended := make(chan turn, 1)
	body := fmt.Sprintf(`{"resource":%q,"holder":%q,"wait_ms":%d,"ttl_ms":%d}`, resource, holder, wait.Milliseconds(), ttl.Milliseconds())
	go func() {
		o := turn{sent: time.Now()}
		var text struct {
			wire.Lease
			Type     string `json:"type"`
			Position int    `json:"position"`
		}
		resp, err := p.try(ctx, &text, "POST", "/locks", body)
		o.at, o.err, o.lease = time.Now(), err, text.Lease
		if err == nil {
			o.status, o.retryAfter = resp.StatusCode, resp.Header.Get("Retry-After")
			o.refusal.Type = text.Type
		}
		ended <- o
	}()
	return ended
}

// lineUp lets callers enter the queue one by one: each is in the queue before the next one comes.
func lineUp(t *testing.T, servers []*process, resource string, n int) (turns []<-chan turn) {
	t.Helper()
	for i := range n {
		turns = append(turns, servers[i%len(servers)].waits(t.Context(), resource, fmt.Sprint("w", i), time.Minute))
		servers[0].awaitWaiting(resource, i+1)
	}
	return turns
}

// granted waits for a turn, and checks that it got a lease with a token above the last.
func (p *process) granted(turns <-chan turn, last wire.Lease) wire.Lease {
	p.t.Helper()
	select {
	case o := <-turns:
		if o.err != nil || o.status != http.StatusCreated {
			p.t.Fatalf("status %d %s, %v", o.status, o.refusal.Type, o.err)
		}
		if o.lease.FencingToken <= last.FencingToken {
			p.t.Fatalf("token %d after %d", o.lease.FencingToken, last.FencingToken)
		}
		return o.lease
	case <-time.After(soon):
		var lock wire.Lock
		p.ask(&lock, "GET", "/locks/"+last.Resource, "")
		p.t.Fatalf("no turn within %s: %+v", soon, lock)
		return wire.Lease{}
	}
}

func (p *process) queue(resource string) (holders []string) {
	p.t.Helper()
	var lock wire.Lock
	p.wants(p.ask(&lock, "GET", "/locks/"+resource, ""), http.StatusOK)
	for _, w := range lock.Queue {
		holders = append(holders, w.Holder)
	}
	return holders
}

// awaitQueue waits until the queue is as wanted. A node that was not needed for a grant may list the granted request
// until the dequeue arrives there.
func (p *process) awaitQueue(resource string, want []string) {
	p.t.Helper()
	testenv.Eventually(p.t, patience, func() error {
		if queue := p.queue(resource); !slices.Equal(queue, want) {
			return fmt.Errorf("the queue is %v, want %v", queue, want)
		}
		return nil
	})
}

// speakTo makes the servers report to one test. It returns a function that makes them report to another one.
func speakTo(t, later *testing.T, servers []*process) func() {
	t.Helper()
	tell := func(t *testing.T) {
		t.Helper()
		for _, p := range servers {
			p.t = t
		}
	}
	tell(t)
	return func() { tell(later) }
}

// TestWaiting checks the queue as callers see it, on three servers and five Redis nodes. Towards the end it loses
// nodes and servers.
func TestWaiting(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 5)
	servers := startServers(t, 3, nodes)
	run := func(name string, test func(*testing.T)) {
		t.Run(name, func(part *testing.T) {
			defer speakTo(part, t, servers)()
			test(part)
		})
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, []*process)
	}{
		{"order of arrival through one server", orderOfArrival},
		{"hang-ups leave the line", hangUps},
		{"a grant that meets a closed connection goes to the next", grantToNobody},
		{"a break wakes the next", breakWakes},
		{"nobody hangs longer than asked", waitsEnd},
	} {
		run(c.name, func(t *testing.T) {
			t.Helper()
			c.test(t, servers)
		})
	}
	run("a minority of nodes is frozen and killed", func(t *testing.T) {
		t.Helper()
		nodes[0].Freeze()
		defer nodes[0].Thaw()
		handOffs(t, servers, "one is frozen")
		nodes[1].Kill()
		handOffs(t, servers, "one is frozen, one dead")
		waitsEnd(t, servers)
	})
	run("a server is stopped", func(t *testing.T) {
		t.Helper()
		stopped(t, servers[:2], servers[2])
	})
	run("a server is killed", func(t *testing.T) {
		t.Helper()
		killed(t, servers[0], servers[1])
	})
}

func orderOfArrival(t *testing.T, servers []*process) {
	t.Helper()
	p := servers[0]
	last := p.acquire(`{"resource":"order"}`)
	turns := lineUp(t, servers[:1], "order", 25)
	waiting := p.queue("order")
	for i := range turns {
		if waiting[i] != fmt.Sprint("w", i) {
			t.Fatalf("the queue is %v", waiting)
		}
	}
	for i, next := range turns {
		p.awaitQueue("order", waiting[i:])
		p.release(last)
		last = p.granted(next, last)
	}
	p.release(last)
}

func hangUps(t *testing.T, servers []*process) {
	t.Helper()
	last := servers[0].acquire(`{"resource":"gone"}`)
	for _, long := range []bool{false, true} {
		ctx, hangUp := context.WithCancel(t.Context())
		leaver := servers[1].waits(ctx, "gone", "leaver", 10*time.Minute)
		servers[0].awaitWaiting("gone", 1)
		stayer := servers[2].waits(t.Context(), "gone", "stayer", time.Minute)
		servers[0].awaitWaiting("gone", 2)
		if long {
			servers[0].untilWaited("gone", 500*time.Millisecond)
		}
		begun := time.Now()
		hangUp()
		servers[0].awaitWaiting("gone", 1)
		t.Logf("the line is shorter %s after the hang-up (waited for long: %t)", time.Since(begun).Round(time.Millisecond), long)
		if o := <-leaver; !errors.Is(o.err, context.Canceled) {
			t.Errorf("who hung up got %+v", o)
		}
		servers[0].awaitQueue("gone", []string{"stayer"})
		servers[0].release(last)
		last = servers[0].granted(stayer, last)
	}
	servers[0].release(last)
}

// untilWaited waits until the first request in the queue has waited for so long.
func (p *process) untilWaited(resource string, d time.Duration) {
	p.t.Helper()
	p.until("the first has waited for "+d.String(), func() bool {
		var lock wire.Lock
		p.ask(&lock, "GET", "/locks/"+resource, "")
		return len(lock.Queue) > 0 && lock.Queue[0].WaitingMS > d.Milliseconds()
	})
}

// grantToNobody lets a waiter hang up right before the lock is released. Whether that waiter leaves the queue before
// or is granted first, the next one gets the lease at once.
func grantToNobody(t *testing.T, servers []*process) {
	t.Helper()
	last := servers[0].acquire(`{"resource":"race"}`)
	var slowest time.Duration
	for round := range 20 {
		conn := servers[round%2].waitRaw("race", "leaver")
		servers[0].awaitWaiting("race", 1)
		next := servers[2].waits(t.Context(), "race", "next", time.Minute)
		servers[0].awaitWaiting("race", 2)
		hangUp(t, conn)
		begun := time.Now()
		servers[round%2].release(last)
		last = servers[0].granted(next, last)
		slowest = max(slowest, time.Since(begun))
	}
	servers[0].release(last)
	t.Logf("the slowest of them took %s", slowest.Round(time.Millisecond))
}

func breakWakes(t *testing.T, servers []*process) {
	t.Helper()
	last := servers[0].acquire(`{"resource":"stuck","ttl_ms":60000}`)
	next := lineUp(t, servers[1:2], "stuck", 1)[0]
	begun := time.Now()
	servers[2].breaks("stuck")
	lease := servers[0].granted(next, last)
	t.Logf("the next one had the lease %s after the break", time.Since(begun).Round(time.Millisecond))
	servers[0].release(lease)
}

// waitsEnd lets many requests wait until their time is over.
func waitsEnd(t *testing.T, servers []*process) {
	t.Helper()
	holder := servers[0].acquire(`{"resource":"taken","ttl_ms":60000}`)
	defer servers[0].release(holder)
	machine := testenv.MeasureLateness(t)
	const waiters, slack = 40, 5 * time.Second
	var late time.Duration
	var turns []<-chan turn
	wait := func(i int) time.Duration { return time.Duration(20+30*i) * time.Millisecond }
	for i := range waiters {
		turns = append(turns, servers[i%len(servers)].waits(t.Context(), "taken", "w", wait(i)))
	}
	for i, c := range turns {
		o := <-c
		if o.err != nil || o.status != http.StatusConflict || o.refusal.Type != "/problems/wait-timeout" || o.retryAfter == "" {
			t.Fatalf("status %d %s, %v", o.status, o.refusal.Type, o.err)
		}
		took := o.at.Sub(o.sent)
		if took < wait(i) {
			t.Errorf("answered after %s, asked to wait for %s", took, wait(i))
		}
		late = max(late, took-wait(i))
	}
	const delays = 4 // of the machine, in one request: the caller, the server, a node, and back
	if most := slack + delays*machine.Longest(); late > most {
		t.Errorf("the latest answer came %s after the wait was over, want %s at most on a machine that is late by %s", late, most, machine.Longest())
	}
	servers[0].awaitWaiting("taken", 0)
}

// handOffs passes a lease along a queue of requests at all servers.
func handOffs(t *testing.T, servers []*process, when string) {
	t.Helper()
	const resource = "passed" // again and again: nothing is left on a node that was away
	// It waits: the vote of a slow node may arrive after the release before, which is then sent again (rule 16).
	last := servers[0].acquire(fmt.Sprintf(`{"resource":%q,"wait_ms":5000}`, resource))
	turns := lineUp(t, servers, resource, 9)
	var slowest time.Duration
	for i, next := range turns {
		begun := time.Now()
		servers[(i+1)%len(servers)].release(last)
		last = servers[0].granted(next, last)
		slowest = max(slowest, time.Since(begun))
	}
	servers[0].release(last)
	t.Logf("%s: the slowest of %d hand-offs took %s, the release included", when, len(turns), slowest.Round(time.Millisecond))
}

// stopped stops a server in order: it responds to its waiting requests, and removes them from the queue that the
// other servers see.
func stopped(t *testing.T, servers []*process, leaving *process) {
	t.Helper()
	last := servers[0].acquire(`{"resource":"stop"}`)
	turns := lineUp(t, []*process{servers[0], leaving, servers[1], leaving}, "stop", 8)
	fresh := leaving.waits(t.Context(), "stop", "fresh", time.Minute)
	servers[0].awaitWaiting("stop", 9)
	machine, begun := testenv.MeasureLateness(t), time.Now()
	leaving.Signal(syscall.SIGTERM)
	for _, c := range []<-chan turn{turns[1], turns[3], turns[5], turns[7], fresh} {
		o := <-c
		if o.err != nil || o.status != http.StatusServiceUnavailable || o.refusal.Type != "/problems/server-stopping" || o.retryAfter == "" {
			t.Errorf("status %d %s, Retry-After %q, %v", o.status, o.refusal.Type, o.retryAfter, o.err)
		}
	}
	answered := time.Since(begun)
	servers[0].awaitWaiting("stop", 4)
	left := time.Since(begun)
	if most := 2*time.Second + 4*machine.Longest(); left-answered > most { // a dead server's would stay for three
		t.Errorf("out of the line %s after the answers, want %s at most on a machine that is late by %s", left-answered, most, machine.Longest())
	}
	t.Logf("all were answered after %s, and out of the line after %s", answered.Round(time.Millisecond), left.Round(time.Millisecond))
	if code := leaving.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for i := 0; i < len(turns); i += 2 {
		servers[0].release(last)
		last = servers[0].granted(turns[i], last)
	}
	servers[0].release(last)
}

// killed kills a server at which half of the requests wait, including the first.
func killed(t *testing.T, alive, dying *process) {
	t.Helper()
	last := alive.acquire(`{"resource":"kill"}`)
	turns := lineUp(t, []*process{dying, alive}, "kill", 12)
	alone := alive.acquire(`{"resource":"lone"}`)
	dying.waits(t.Context(), "lone", "w", time.Minute) // a line that only the dead wait in
	alive.awaitWaiting("lone", 1)
	dying.Kill()
	begun := time.Now()
	alive.release(last)
	alive.release(alone)
	for i := 1; i < len(turns); i += 2 {
		last = alive.granted(turns[i], last)
		if i == 1 {
			t.Logf("the first of the living had the lease %s after the server died", time.Since(begun).Round(time.Millisecond))
		}
		alive.release(last)
	}
	testenv.Eventually(t, soon, func() error { // neither resource is stuck
		for _, resource := range []string{"kill", "lone"} {
			resp, err := alive.try(t.Context(), nil, "POST", "/locks", `{"resource":"`+resource+`","ttl_ms":100}`)
			if err != nil || resp.StatusCode != http.StatusCreated {
				return fmt.Errorf("%s: %v, %w", resource, resp, err)
			}
		}
		return nil
	})
}

// TestHandOff measures the time from the response to a release to the response to the next waiter. It compares that
// with an uncontended acquire, in the same run.
func TestHandOff(t *testing.T) {
	nodes := testenv.StartRedisN(t, 5)
	p := startServers(t, 1, nodes)[0]
	const rounds, most = 5, 3.0
	for _, waiters := range []int{16, 64} {
		var ratios []float64
		for range rounds { // by turns, so that other work on the machine slows both
			alone, handOff := uncontended(t, p, 40), contended(t, p, waiters, 80+waiters)
			ratios = append(ratios, float64(handOff)/float64(alone))
		}
		slices.Sort(ratios)
		ratio := ratios[rounds/2]
		t.Logf("%d waiters: a hand-off takes %.2f times as long as an acquire (%.2f)", waiters, ratio, ratios)
		if ratio >= most {
			t.Errorf("%d waiters: a hand-off takes %.2f times as long as an acquire, want less than %.1f", waiters, ratio, most)
		}
	}
}

func uncontended(t *testing.T, p *process, n int) time.Duration {
	t.Helper()
	var took []time.Duration
	for i := range n {
		begun := time.Now()
		lease := p.acquire(fmt.Sprintf(`{"resource":"alone/%d"}`, i%10))
		took = append(took, time.Since(begun))
		p.release(lease)
	}
	return median(took)
}

// contended keeps n requests in the queue, which pass the lease around.
func contended(t *testing.T, p *process, waiters, handOffs int) time.Duration {
	t.Helper()
	type event struct {
		token             int64
		granted, released time.Time
	}
	var mu sync.Mutex
	var events []event
	left := handOffs
	var callers sync.WaitGroup
	for range waiters {
		client := &http.Client{Transport: &http.Transport{}}
		t.Cleanup(client.CloseIdleConnections)
		callers.Go(func() {
			for {
				mu.Lock()
				left--
				enough := left < 0
				mu.Unlock()
				if enough {
					return
				}
				o := acquireWith(t.Context(), client, p.url)
				if o.err != nil || o.status != http.StatusCreated {
					t.Errorf("status %d, %v", o.status, o.err)
					return
				}
				released, err := releaseWith(t.Context(), client, p.url, o.lease)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				events = append(events, event{token: o.lease.FencingToken, granted: o.at, released: released})
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	slices.SortFunc(events, func(a, b event) int { return int(a.token - b.token) })
	var took []time.Duration
	for i := 1; i+waiters < len(events); i++ { // while the line is long
		took = append(took, max(0, events[i].granted.Sub(events[i-1].released)))
	}
	if len(took) == 0 {
		t.Fatal("nothing was measured")
	}
	return median(took)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func acquireWith(ctx context.Context, client *http.Client, url string) (o turn) {
	o.sent = time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/locks", strings.NewReader(`{"resource":"hot","wait_ms":60000}`))
	if err != nil {
		o.err = err
		return o
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	o.at = time.Now()
	if err != nil {
		o.err = err
		return o
	}
	o.status = resp.StatusCode
	o.err = readJSON(resp, &o.lease)
	return o
}

// releaseWith releases a lease, and returns when the response came.
func releaseWith(ctx context.Context, client *http.Client, url string, lease wire.Lease) (time.Time, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, url+"/leases/current", http.NoBody)
	if err != nil {
		return time.Time{}, err
	}
	req.Header.Set(wire.HeaderLease, lease.LeaseID)
	resp, err := client.Do(req)
	at := time.Now()
	if err != nil {
		return at, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return at, fmt.Errorf("the release answered %d", resp.StatusCode)
	}
	return at, nil
}

// waitRaw sends a request that waits in the queue. It returns without its response.
func (p *process) waitRaw(resource, holder string) net.Conn {
	p.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	body := `{"resource":"` + resource + `","holder":"` + holder + `","wait_ms":600000}`
	_, err = fmt.Fprintf(conn, "POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if err != nil {
		p.t.Fatal(err)
	}
	return conn
}
