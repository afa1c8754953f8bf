package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

// fleet is several servers of one cluster, and how clients reach them.
type fleet struct {
	t       *testing.T
	nodes   []*testenv.Redis // of startFleet
	env     []string
	ports   []int
	servers []*process
	program string       // that is started; "" for this version
	tls     *http.Client // that trusts the servers' certificates; nil over plain HTTP
	machine *testenv.Lateness
}

// newFleet starts servers with these settings, as a new cluster.
func newFleet(t *testing.T, servers int, env ...string) *fleet {
	t.Helper()
	return newFleetOver(t, nil, servers, env...)
}

func newFleetOver(t *testing.T, tls *http.Client, servers int, env ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, machine: testenv.MeasureLateness(t), ports: make([]int, servers), servers: make([]*process, servers), env: env, tls: tls}
	for i := range f.servers {
		f.ports[i] = testenv.FreePort(t)
		f.start(i, "FENCELOCK_BOOTSTRAP=new")
	}
	return f
}

// startFleet starts servers on three Redis nodes. A load balancer may reach the servers by its own host name.
func startFleet(t *testing.T, servers int) *fleet {
	t.Helper()
	nodes := testenv.StartRedisN(t, 3)
	f := newFleet(t, servers, redisAddrs(nodes), "FENCELOCK_NODE_DOWN_AFTER=3s", "FENCELOCK_ALLOWED_HOSTS=fencelock")
	f.nodes = nodes
	return f
}

func (f *fleet) start(i int, more ...string) {
	f.t.Helper()
	cmd := command(f.t, slices.Concat(anyPorts(), []string{"FENCELOCK_LISTEN=" + f.address(i)}, f.env, more), "serve")
	if f.program != "" {
		cmd.Path = f.program
	}
	scheme, by := f.over()
	f.servers[i] = startCommand(f.t, scheme, by, cmd)
	f.servers[i].untilReady()
}

// over returns the scheme and the HTTP client for the servers.
func (f *fleet) over() (scheme string, by *http.Client) {
	if f.tls != nil {
		return "https", f.tls
	}
	return "http", http.DefaultClient
}

func (f *fleet) address(i int) string { return fmt.Sprintf("127.0.0.1:%d", f.ports[i]) }

// direct returns the servers' own URLs.
func (f *fleet) direct() string {
	urls := make([]string, len(f.ports))
	scheme, _ := f.over()
	for i := range f.ports {
		urls[i] = scheme + "://" + f.address(i)
	}
	return strings.Join(urls, ",")
}

// shipped returns a configuration of deploy/, adapted to these servers.
func (f *fleet) shipped(path, listens, listen string) string {
	f.t.Helper()
	text, err := os.ReadFile("../../deploy/" + path)
	if err != nil {
		f.t.Fatal(err)
	}
	config := string(text)
	if len(f.ports) == 3 {
		config = regexp.MustCompile(`(?m)^.*locks-2.*\n`).ReplaceAllStringFunc(config, func(line string) string {
			return line + strings.ReplaceAll(strings.Replace(line, "locks-2:8080", f.address(2), 1), "locks-2", "locks-3")
		})
	}
	for old, with := range map[string]string{"locks-1:8080": f.address(0), "locks-2:8080": f.address(1), listens: listen} {
		if !strings.Contains(config, old) {
			f.t.Fatalf("deploy/%s has no %s", path, old)
		}
		config = strings.ReplaceAll(config, old, with)
	}
	return config
}

func (f *fleet) nginx() string {
	return testenv.StartNginx(f.t, f.shipped("nginx/fencelock.conf", " 8080;", " LISTEN;")).URL()
}

func (f *fleet) haproxy() string {
	return testenv.StartHAProxy(f.t, f.shipped("haproxy/haproxy.cfg", " :8080", " LISTEN")).URL()
}

// bareNginx starts an nginx with its default settings only.
func (f *fleet) bareNginx() string {
	return testenv.StartNginx(f.t, fmt.Sprintf("upstream fencelock { server %s; server %s; } server { listen LISTEN; location / { proxy_pass http://fencelock; } }",
		f.address(0), f.address(1))).URL()
}

// restart replaces a server: it stops it in an orderly way first, as a rolling restart does.
func (f *fleet) restart(i int) {
	f.t.Helper()
	f.servers[i].Signal(syscall.SIGTERM)
	if code := f.servers[i].exit(); code != 0 {
		f.t.Errorf("exit code %d", code)
	}
	f.start(i)
}

// crowd is a number of callers that wait for one resource, one behind the other.
type crowd struct {
	mu     sync.Mutex
	order  []int // of the grants, by their places in the queue
	failed []error
	ended  sync.WaitGroup
}

// queueUp lets callers enter the queue one by one, through several clients. Each caller releases the lock soon after
// its grant.
func (f *fleet) queueUp(clients []*client.Client) *crowd {
	f.t.Helper()
	const hold = 50 * time.Millisecond
	c := &crowd{}
	for i := range callers {
		c.ended.Go(func() {
			err := clients[i%len(clients)].Do(f.t.Context(), "hot", func(ctx context.Context, _ *client.Lease) error {
				c.mu.Lock()
				c.order = append(c.order, i)
				c.mu.Unlock()
				select {
				case <-time.After(hold):
				case <-ctx.Done():
				}
				return context.Cause(ctx)
			}, client.Holder(waiterName(i)))
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil {
				c.failed = append(c.failed, fmt.Errorf("waiter %d: %w", i, err))
			}
		})
		f.servers[0].awaitWaiting("hot", i+1)
	}
	return c
}

func waiterName(i int) string { return fmt.Sprintf("waiter %d", i) }

// inOrder waits for all callers. Each must get the lock, and none may be overtaken by one that came later. It
// forgives callers that the machine kept from asking again in time, because the servers keep a place only for a
// moment.
func (c *crowd) inOrder(t *testing.T, seen *polls, machine *testenv.Lateness) {
	t.Helper()
	c.ended.Wait()
	if len(c.failed) > 0 || len(c.order) != callers {
		t.Fatalf("order %v; errors: %v", c.order, errors.Join(c.failed...))
	}
	for i, overtaken := range c.order {
		passed := slices.ContainsFunc(c.order[:i], func(earlier int) bool { return earlier > overtaken })
		paused, late := seen.longestPause(waiterName(overtaken)), machine.Longest()
		switch {
		case !passed:
		case paused > waitqueue.LingerTime && late > waitqueue.LingerTime/4:
			t.Logf("%s was overtaken: it was without a request for %s, on a machine that was late by %s", waiterName(overtaken), paused, late)
		default:
			t.Errorf("%s was overtaken; it was without a request for %s, and the machine late by %s: %v", waiterName(overtaken), paused, late, c.order)
		}
	}
}

// someClients are several clients, whose requests are seen.
type someClients struct {
	clients []*client.Client
	seen    *polls
}

func (f *fleet) callers(url string, opts ...client.Option) *someClients {
	f.t.Helper()
	by := &someClients{seen: newPolls()}
	const several = 5
	var mu sync.Mutex
	retries := map[string]int{}
	opts = append(opts, client.WithOnRetry(func(r client.Retry) {
		mu.Lock()
		defer mu.Unlock()
		retries[r.Err.Error()]++
	}))
	for range several {
		c, err := client.New(strings.Split(url, ","), append(opts, client.WithHTTPClient(&http.Client{Transport: by.seen}))...)
		if err != nil {
			f.t.Fatal(err)
		}
		by.clients = append(by.clients, c)
	}
	f.t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for text, n := range retries {
			f.t.Logf("%d times repeated: %s", n, text)
		}
	})
	return by
}

// polls sees the requests of some clients.
type polls struct {
	http.Transport

	mu   sync.Mutex
	kept map[string]time.Time // by key: when the last poll was sent that kept a place

	ended  map[string]time.Time     // by caller: when its last request ended that did not get the lock
	paused map[string]time.Duration // by caller: the longest time until the next one was sent
}

func newPolls() *polls {
	return &polls{kept: map[string]time.Time{}, ended: map[string]time.Time{}, paused: map[string]time.Duration{}}
}

func (p *polls) RoundTrip(r *http.Request) (*http.Response, error) {
	sent, key, caller := time.Now(), r.Header.Get(wire.HeaderIdempotencyKey), callerOf(r)
	p.sends(caller, sent)
	resp, err := p.Transport.RoundTrip(r)
	if err != nil || resp.StatusCode >= http.StatusBadRequest {
		p.ends(caller)
	}
	if err == nil && resp.StatusCode == http.StatusConflict {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.kept[key] = sent
	}
	return resp, err
}

// callerOf returns the holder that a request for a lock names.
func callerOf(r *http.Request) string {
	if r.GetBody == nil {
		return ""
	}
	body, err := r.GetBody()
	if err != nil {
		return ""
	}
	defer func() { _ = body.Close() }()
	var asked struct {
		Holder string `json:"holder"`
	}
	_ = json.NewDecoder(body).Decode(&asked)
	return asked.Holder
}

func (p *polls) sends(caller string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ended, found := p.ended[caller]; found {
		p.paused[caller] = max(p.paused[caller], at.Sub(ended))
	}
	delete(p.ended, caller)
}

func (p *polls) ends(caller string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if caller != "" {
		p.ended[caller] = time.Now()
	}
}

// longestPause returns the longest time so far between two requests by which one caller waits.
func (p *polls) longestPause(caller string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused[caller]
}

// allWait waits until each caller has sent a request that keeps its place, after this call. The servers' queue does
// not prove that, because it counts the tickets of a server that was lost.
func (p *polls) allWait(t *testing.T, within time.Duration) {
	t.Helper()
	now := time.Now()
	testenv.Eventually(t, within, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		waiting := 0
		for _, sent := range p.kept {
			if sent.After(now) {
				waiting++
			}
		}
		if waiting < callers {
			return fmt.Errorf("%d of %d wait again", waiting, callers)
		}
		return nil
	})
}

// TestRollingRestartKeepsTheQueue restarts both of two servers while thirty callers pass a
// lock on, reached directly and through load balancers: no caller gets an error, and none
// is overtaken.
func TestRollingRestartKeepsTheQueue(t *testing.T) {
	t.Parallel()
	for name, reach := range map[string]func(*fleet) string{"direct": (*fleet).direct, "nginx": (*fleet).nginx, "haproxy": (*fleet).haproxy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 2)
			url := reach(f)
			by := f.callers(url, client.WithPoll(2*time.Second))
			f.rollingRestart(by, url, 0)
		})
	}
}

// TestSoakRollingRestarts is TestRollingRestartKeepsTheQueue with the default time limits of clients and proxies,
// after the callers have waited for longer than any of these. It also freezes each server before it is replaced: then
// its waiters return to their places before the lock is free.
func TestSoakRollingRestarts(t *testing.T) {
	testenv.Soak(t, "a restart behind a balancer that costs a waiter its place")
	for name, reach := range map[string]func(*fleet) string{
		"direct": (*fleet).direct, "nginx": (*fleet).nginx, "haproxy": (*fleet).haproxy, "nginx's defaults": (*fleet).bareNginx,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 2)
			url := reach(f)
			by := f.callers(url)
			f.rollingRestart(by, url, 70*time.Second)
			by = f.callers(url, client.WithPoll(5*time.Second))
			f.frozenRestart(by)
		})
	}
}

const callers = 30

// rollingRestart restarts both servers while callers pass the lock on. It restarts the second when the balancer uses
// the first again.
func (f *fleet) rollingRestart(by *someClients, url string, waited time.Duration) {
	f.t.Helper()
	release := f.hold(by.clients[0])
	waiting := f.queueUp(by.clients)
	<-time.After(waited)
	release()
	f.restart(0)
	f.awaitUse(0, url)
	f.restart(1)
	waiting.inOrder(f.t, by.seen, f.machine)
}

// awaitUse waits until a server answers requests to the URL of a balancer.
func (f *fleet) awaitUse(i int, url string) {
	f.t.Helper()
	own, _, several := strings.Cut(url, ",")
	if several {
		return // clients find it themselves
	}
	name := answeredBy(f.t, "http://"+f.address(i))
	testenv.Eventually(f.t, patience, func() error {
		if by := answeredBy(f.t, own); by != name {
			return fmt.Errorf("%q answers, and not %q", by, name)
		}
		return nil
	})
}

// answeredBy returns the name of the server that answers at a URL; "" if none does.
func answeredBy(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url + "/healthz") //nolint:noctx // a test
	if err != nil {
		return ""
	}
	_ = resp.Body.Close()
	return resp.Header.Get(wire.HeaderServer)
}

// frozenRestart freezes and replaces both servers, and then releases the lock.
func (f *fleet) frozenRestart(by *someClients) {
	f.t.Helper()
	release := f.hold(by.clients[0])
	waiting := f.queueUp(by.clients)
	for i := range f.servers {
		f.servers[i].Freeze()
		<-time.After(4 * time.Second) // its tickets live for three
		f.servers[i].Kill()
		f.start(i)
		by.seen.allWait(f.t, 2*time.Minute)
	}
	release()
	waiting.inOrder(f.t, by.seen, f.machine)
}

// hold takes the lock until the function that it returns is called.
func (f *fleet) hold(c *client.Client) (release func()) {
	f.t.Helper()
	over, taken, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.Do(f.t.Context(), "hot", func(ctx context.Context, _ *client.Lease) error {
			close(taken)
			select {
			case <-over:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	<-taken
	return func() {
		f.t.Helper()
		close(over)
		if err := <-ended; err != nil {
			f.t.Error("the holder:", err)
		}
	}
}
