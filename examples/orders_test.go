package examples_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
)

// orderBackend is a backend in one language: how to run it, and the number from which its own orders count, so that
// backends do not use the same orders.
type orderBackend struct {
	find   func(*testing.T) (command, env []string)
	orders int
}

var orderBackends = map[string]orderBackend{
	"go": {orders: 10, find: func(t *testing.T) ([]string, []string) {
		t.Helper()
		return []string{testenv.Build(t, "./orders-go")}, nil
	}},
	"python": {orders: 20, find: func(t *testing.T) ([]string, []string) {
		t.Helper()
		return []string{findPython(t), "orders-python/app.py"}, nil
	}},
	"node": {orders: 30, find: func(t *testing.T) ([]string, []string) {
		t.Helper()
		return []string{"node", "orders-node/app.js"}, []string{"NODE_PATH=" + findNodePg(t)}
	}},
}

// start runs the backend on a database of its own.
func (b orderBackend) start(t *testing.T, locks string) (backend, database string) {
	t.Helper()
	command, env := b.find(t)
	database = prepare(t, "orders.sql")
	line, _ := start(t, append(env, "DATABASE_URL="+database, "FENCELOCK_URL="+locks, "PORT=0"), command...)
	backend, ok := strings.CutPrefix(line, "listening on ")
	if !ok {
		t.Fatalf("the backend said %q", line)
	}
	return backend, database
}

// The backends take a lock for each order and write under its token. Of requests that come at the same time none is
// lost, and a request whose token is stale writes nothing.
func TestOrderBackends(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	for name, b := range orderBackends {
		t.Run(name, func(t *testing.T) {
			if name != "go" {
				testenv.Long(t, "a charge that the example in Python or Node loses or makes under a stale token")
			}
			t.Parallel()
			backend, database := b.start(t, serve(t))
			chargesAtOnce(t, backend)
			refusesTheStale(t, backend, database)
		})
	}
}

// A charge is made once, in less time than a lease lives, and its lease is released,
// although the first of two lock servers fails.
func TestOrderBackendsSurvive(t *testing.T) {
	testenv.Long(t, "a charge that is made twice, or a lease that stays, when the first of two servers fails")
	testenv.NeedsServer(t)
	var nodes []string
	for _, r := range testenv.StartRedisN(t, 3) {
		nodes = append(nodes, r.URL())
	}
	for name, b := range orderBackends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := startPair(t, nodes)
			for i, fault := range servers.faults() {
				t.Run(fault.name, func(t *testing.T) {
					backend, _ := b.start(t, "http://"+servers.proxy.Addr()+","+servers.second)
					servers.survives(t, fault, backend, b.orders+i)
				})
			}
		})
	}
}

// pair is two lock servers on the same nodes, the first one behind a proxy.
type pair struct {
	first  *testenv.Fencelock
	second string // its URL
	proxy  *testenv.Proxy
}

func startPair(t *testing.T, nodes []string) *pair {
	t.Helper()
	env := []string{"FENCELOCK_REDIS_ADDRS=" + strings.Join(nodes, ","), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=3s", "FENCELOCK_DATA="}
	var p pair
	p.first = testenv.StartFencelock(t, env...)
	p.second = testenv.StartFencelock(t, env...).URL()
	p.proxy = testenv.StartProxy(t, p.first.Addr())
	for _, url := range []string{p.first.URL(), p.second} {
		eventuallyAnswers(t, url+"/readyz", `"ready":true`)
	}
	return &p
}

// fault is what happens to the first server.
type fault struct {
	name       string
	begin, end func()
	queued     bool // it begins while the request waits in the first server's queue
}

func (p *pair) faults() []fault {
	return []fault{
		{"its answers are lost", func() { p.proxy.DropReplies(true) }, func() { p.proxy.DropReplies(false) }, false},
		{"it refuses connections", func() { p.proxy.Cut(testenv.CutRefuse) }, func() { p.proxy.Cut(testenv.CutNone) }, false},
		{"it is frozen", p.first.Freeze, p.first.Thaw, false},
		{"it is frozen later", p.first.Freeze, p.first.Thaw, true},
	}
}

func (p *pair) survives(t *testing.T, f fault, backend string, order int) {
	t.Helper()
	resource, free := fmt.Sprintf("orders/%d", order), func() {}
	begin := sync.OnceFunc(f.begin)
	if f.queued {
		free = p.hold(t, resource)
	} else {
		begin()
	}
	defer f.end()
	begun, answer := time.Now(), make(chan string, 1)
	go func() { answer <- post(fmt.Sprintf("%s/orders/%d/charge", backend, order)) }()
	if f.queued {
		eventuallyAnswers(t, p.second+"/locks/"+resource, `"waiters":1`)
		begin()
		free()
	}
	if got := strings.Join(strings.Fields(<-answer), ""); got != `200{"charges":1}` || time.Since(begun) > leaseTTL/2 {
		t.Errorf("after %s the backend answers %s", time.Since(begun), got)
	}
	eventuallyAnswers(t, p.second+"/locks/"+resource, `"held":false`)
}

// leaseTTL is that of the backends' leases.
const leaseTTL = 30 * time.Second

// hold takes a lease through the second server, until free is called.
func (p *pair) hold(t *testing.T, resource string) (free func()) {
	t.Helper()
	locks, err := client.New(strings.Split(p.second, ","))
	if err != nil {
		t.Fatal(err)
	}
	lease, err := locks.TryAcquire(t.Context(), resource)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// eventuallyAnswers waits until a GET is answered with a text.
func eventuallyAnswers(t *testing.T, url, text string) {
	t.Helper()
	testenv.Eventually(t, leaseTTL/3, func() error {
		if got := request(http.MethodGet, url); !strings.Contains(got, text) {
			return fmt.Errorf("GET %s answers %s, want %s", url, got, text)
		}
		return nil
	})
}

// chargesAtOnce sends requests for one order at the same time.
func chargesAtOnce(t *testing.T, backend string) {
	t.Helper()
	const requests = 12
	var all sync.WaitGroup
	said := make([]string, requests)
	for i := range said {
		all.Go(func() { said[i] = post(backend + "/orders/1/charge") })
	}
	all.Wait()
	seen := map[string]bool{}
	for _, answer := range said {
		seen[strings.Join(strings.Fields(answer), "")] = true
	}
	for i := 1; i <= requests; i++ {
		if want := fmt.Sprintf(`200{"charges":%d}`, i); !seen[want] {
			t.Errorf("no request was answered with %s, but with %q", want, said)
		}
	}
}

// refusesTheStale claims the order with the largest token first, so that the backend's token is stale.
func refusesTheStale(t *testing.T, backend, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), "SELECT fencing.claim('orders/2', $1)", int64(fencing.MaxToken)); err != nil {
		t.Fatal(err)
	}
	if said := post(backend + "/orders/2/charge"); !strings.HasPrefix(said, "409 ") {
		t.Errorf("a stale write was answered with %q", said)
	}
	var charges int
	if err := conn.QueryRow(t.Context(), "SELECT charges FROM orders WHERE id = 2").Scan(&charges); err != nil || charges != 0 {
		t.Errorf("the order has %d charges after a stale write (%v)", charges, err)
	}
}

func post(url string) string { return request(http.MethodPost, url) }

// request returns status and body.
func request(method, url string) string {
	req, err := http.NewRequest(method, url, http.NoBody)
	if err != nil {
		return err.Error()
	}
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, body)
}

// serve runs the lock service on its embedded default.
func serve(t *testing.T) (url string) {
	t.Helper()
	return testenv.StartFencelock(t).URL()
}

// start runs a program until the test ends, and returns the first line that it says.
func start(t *testing.T, env []string, command ...string) (line string, process *os.Process) {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	lines := bufio.NewReader(out)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if rest, _ := io.ReadAll(lines); t.Failed() {
			t.Logf("%s said:\n%s", command[0], rest)
		}
		_ = out.Close()
	})
	line, err = lines.ReadString('\n')
	if err != nil {
		t.Fatalf("%s said %q and ended: %v", command[0], line, err)
	}
	return strings.TrimSpace(line), cmd.Process
}
