package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// abused is a server under hostile load.
type abused struct {
	t     *testing.T
	stand *Stand // its HTTP client
	*server
}

func newAbused(t *testing.T, s *server) *abused {
	t.Helper()
	stand := &Stand{t: t, servers: []*server{s}, began: time.Now()}
	stand.http = &http.Client{Transport: newTransport(stand.servers)}
	t.Cleanup(stand.http.CloseIdleConnections)
	return &abused{t: t, stand: stand, server: s}
}

// startAbused starts a server on an embedded file.
func startAbused(t *testing.T, env ...string) *abused {
	t.Helper()
	s := startServer(t, "server-0", append([]string{"FENCELOCK_DATA=" + t.TempDir() + "/fencelock.db"}, env...)...)
	a := newAbused(t, s)
	a.awaitReady()
	return a
}

func (a *abused) awaitReady() {
	a.t.Helper()
	testenv.Eventually(a.t, 30*time.Second, func() error {
		if r := a.stand.send(a.t.Context(), 0, request{method: http.MethodGet, path: "/readyz"}); r.status != http.StatusOK {
			return fmt.Errorf("not ready: %d %s", r.status, r.body)
		}
		return nil
	})
}

// usage is what a process holds.
type usage struct{ goroutines, files, heap float64 }

// usage asks the admin listener, after a garbage collection.
func (a *abused) usage() (u usage) {
	a.t.Helper()
	a.stand.http.CloseIdleConnections()
	a.admins("/debug/pprof/heap?gc=1")
	for line := range strings.Lines(a.admins("/metrics")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch name {
		case "go_goroutines":
			u.goroutines = number
		case "process_open_fds":
			u.files = number
		case "go_memstats_heap_alloc_bytes":
			u.heap = number
		}
	}
	if u.goroutines == 0 || u.heap == 0 {
		a.t.Fatal("the admin listener does not tell")
	}
	return u
}

func (a *abused) admins(path string) string {
	a.t.Helper()
	resp, err := http.Get("http://" + a.AdminAddr() + path)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(text)
}

// awaitUsage waits until the server uses about as much as before.
func (a *abused) awaitUsage(before usage, within time.Duration) {
	a.t.Helper()
	testenv.Eventually(a.t, within, func() error {
		now := a.usage()
		if now.goroutines > before.goroutines+10 || now.files > before.files+10 || now.heap > before.heap+(16<<20) {
			return fmt.Errorf("before %+v, now %+v", before, now)
		}
		return nil
	})
}

// dial opens a raw connection.
func (a *abused) dial() net.Conn {
	a.t.Helper()
	conn, err := net.Dial("tcp", a.Addr())
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// flood calls a function n times, with a limit of calls at the same time.
func flood(n, atOnce int, do func(i int)) {
	var running sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	running.Wait()
}

// Connections that send a byte now and then are closed, whether the bytes belong to a header or to a body (even one
// that nobody reads). Other callers are served meanwhile.
func TestSlowLoris(t *testing.T) {
	testenv.Long(t, "connections that drip and are not cut off")
	t.Parallel()
	a := startAbused(t)
	before := a.usage()
	const rest = " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
	// Of HTTP/2 the preface, SETTINGS, and HEADERS of 16 KB that never come.
	const http2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x40\x00\x01\x00\x00\x00\x00\x01"
	drips := []string{"POST /locks" + rest, "POST /locks" + rest + "\r\n{", "GET /healthz" + rest + "\r\n{", "POST /none" + rest + "\r\n", http2}
	var cut sync.WaitGroup
	for i := range 400 {
		conn := a.dial()
		drip := drips[i%len(drips)]
		cut.Go(func() {
			if _, err := io.WriteString(conn, drip); err != nil {
				t.Error(err)
			}
			if err := dripUntilCut(conn); err != nil {
				t.Error(err)
			}
		})
	}
	if took := a.cycle(t, "r"); took > 5*time.Second {
		t.Errorf("a lock took %s next to slow connections", took)
	}
	cut.Wait()
	a.awaitUsage(before, 30*time.Second)
}

// dripUntilCut sends a byte a second until the server has had enough.
func dripUntilCut(conn net.Conn) error {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, conn)
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for deadline := time.After(40 * time.Second); ; {
		select {
		case <-gone:
			return nil
		case <-tick.C:
			_, _ = conn.Write([]byte("a"))
		case <-deadline:
			return errors.New("a slow connection was not cut off")
		}
	}
}

func TestThousandsOfIdleConnections(t *testing.T) {
	testenv.Long(t, "idle connections that cost a server its memory, or others its answers")
	a := startAbused(t)
	before := a.usage()
	conns := make([]net.Conn, 3000)
	flood(len(conns), 50, func(i int) {
		conn, err := net.Dial("tcp", a.Addr())
		if err != nil {
			t.Error(err)
			return
		}
		conns[i] = conn
		if i%2 == 0 {
			return // never says anything
		}
		_, err = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if _, errRead := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || errRead != nil {
			t.Error(err, errRead)
		}
	})
	if took := a.cycle(t, "r"); took > 5*time.Second {
		t.Errorf("a lock took %s next to idle connections", took)
	}
	a.answersSoon(t)
	for _, conn := range conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
	a.awaitUsage(before, 30*time.Second)
}

// answersSoon checks on new connections that the process responds. A busy machine may be late, but not every time.
func (a *abused) answersSoon(t *testing.T) {
	t.Helper()
	const tries, most = 20, 250 * time.Millisecond
	soon := 0
	for range tries {
		began := time.Now()
		conn := a.dial()
		_, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if _, errRead := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || errRead != nil {
			t.Fatal(err, errRead)
		}
		if time.Since(began) < most {
			soon++
		}
		_ = conn.Close()
	}
	if soon < tries/2 {
		t.Errorf("%d of %d looks were answered within %s", soon, tries, most)
	}
}

// Callers that ask for large responses and do not read them get only a few at a time, and these are cut off. So they
// cost the server little, and other callers are served meanwhile.
func TestSlowReaders(t *testing.T) {
	testenv.Long(t, "answers that nobody reads and that fill a server")
	t.Parallel()
	a := startAbused(t)
	metadata := strings.Repeat("m", 4000)
	flood(1000, 16, func(i int) {
		r := a.stand.send(t.Context(), 0, request{
			method: http.MethodPost, path: "/locks", body: fmt.Sprintf(`{"resource":"big/%d","ttl_ms":60000,"metadata":%q}`, i, metadata),
		})
		if r.status != http.StatusCreated {
			t.Errorf("status %d", r.status)
		}
	})
	before := a.usage()
	const readers, most = 200, 128 << 20
	var refused, begun atomic.Int32
	var reading sync.WaitGroup
	for range readers { // an answer that fits the buffers of the network is complete: what keeps its connection is not tested
		conn := a.dialNarrow()
		if _, err := io.WriteString(conn, "GET /locks?limit=1000 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		reading.Go(func() {
			reader := bufio.NewReader(conn)
			resp, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if resp.StatusCode == http.StatusTooManyRequests {
				refused.Add(1)
				_ = conn.Close()
				return
			}
			begun.Add(1)
		})
	}
	reading.Wait()
	if got := begun.Load(); got == 0 || got > 40 || got+refused.Load() != readers {
		t.Errorf("%d lists began, %d were refused", got, refused.Load())
	}
	if now := a.usage(); now.heap > before.heap+most {
		t.Errorf("unread lists cost %.0f MB", (now.heap-before.heap)/(1<<20))
	}
	testenv.Eventually(t, 20*time.Second, func() error { // those that nobody reads make room
		r := a.stand.send(t.Context(), 0, request{method: http.MethodGet, path: "/locks?limit=1"})
		if r.status != http.StatusOK {
			return fmt.Errorf("status %d %s", r.status, r.body)
		}
		return nil
	})
	a.awaitUsage(before, time.Minute)
}

// dialNarrow opens a connection with small buffers, which hold little that is not read.
func (a *abused) dialNarrow() net.Conn {
	a.t.Helper()
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
		return errors.Join(err, failed)
	}}
	conn, err := dialer.DialContext(a.t.Context(), "tcp", a.Addr())
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Headers and bodies over the limit are refused before they have arrived as a whole.
func TestGiantRequests(t *testing.T) {
	testenv.Long(t, "a giant request that fills the server or its log")
	a := startAbused(t)
	before := a.usage()
	giant := strings.Repeat("x", 1<<20)
	for name, text := range map[string]string{
		"header":      "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Giant: " + giant + "\r\n\r\n",
		"headers":     "GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X-Giant: x\r\n", 100_000) + "\r\n",
		"path":        "GET /locks/" + giant + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"method":      giant + " / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"body":        "POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1048576\r\n\r\n" + giant,
		"chunks":      "POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n100000\r\n" + giant + "\r\n0\r\n\r\n",
		"not HTTP":    giant,
		"HTTP/2 rude": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + giant,
	} {
		t.Run(name, func(t *testing.T) {
			flood(50, 25, func(int) {
				conn, err := net.Dial("tcp", a.Addr())
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
				go func() { _, _ = io.WriteString(conn, text) }()
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err == nil && (resp.StatusCode < 400 || resp.StatusCode >= 500) {
					t.Errorf("answered %s", resp.Status)
				}
			})
			a.cycle(t, "r")
		})
	}
	a.awaitUsage(before, 30*time.Second)
}

// When the queue is full, the server tells a further request to come back later. When the waiters hang up, nothing of
// them is left.
func TestFloodOfWaiters(t *testing.T) {
	const most, all = 200, 600
	a := startAbused(t, "FENCELOCK_MAX_WAITERS="+strconv.Itoa(most))
	before := a.usage()
	held := &op{}
	a.stand.acquire(t.Context(), &history{}, held, &wish{resources: []string{"r"}, ttl: time.Minute}, 0)
	if !held.ok() {
		t.Fatal(held.Status)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	statuses := make(chan string, all)
	for i := range all {
		waiting.Go(func() { statuses <- a.waitInLine(ctx, fmt.Sprint("r", i%2)[:1]) })
	}
	for range all - most {
		select {
		case got := <-statuses:
			if got != "503 1" {
				t.Errorf("one too many got status and Retry-After %q", got)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("those that are too many are not answered")
		}
	}
	if took := a.cycle(t, "other"); took > 5*time.Second {
		t.Errorf("a lock took %s next to the waiters", took)
	}
	hangUp()
	waiting.Wait()
	a.stand.release(t.Context(), &history{}, held)
	testenv.Eventually(t, 10*time.Second, func() error {
		o := &op{}
		a.stand.acquire(t.Context(), &history{}, o, &wish{resources: []string{"r"}, ttl: time.Second}, 0)
		if !o.ok() {
			return fmt.Errorf("lock after the flood: %d", o.Status)
		}
		return nil
	})
	a.awaitUsage(before, 30*time.Second)
}

// waitInLine asks for a lock with a long wait. It returns the status and Retry-After.
func (a *abused) waitInLine(ctx context.Context, resource string) string {
	body := fmt.Sprintf(`{"resource":%q,"wait_ms":60000}`, resource)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://server-0/locks", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.stand.http.Do(req)
	if err != nil {
		return "" // hung up
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body)
	return fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Retry-After"))
}

// Resources that are locked once and never again leave nothing behind, neither in the server nor on a node.
func TestFloodOfResources(t *testing.T) {
	testenv.Long(t, "resources by the thousand that a server never forgets")
	t.Parallel()
	redis := testenv.StartRedis(t)
	s := startServer(t, "server-0", "FENCELOCK_REDIS_ADDRS="+redis.Addr(), "FENCELOCK_BOOTSTRAP=new",
		"FENCELOCK_MAX_TTL=2s", "FENCELOCK_COUNTER_TTL=2s")
	a := newAbused(t, s)
	a.awaitReady()
	before := a.usage()
	flood(10_000, 32, func(i int) {
		o := &op{Resource: fmt.Sprint("once/", i)}
		a.stand.acquire(t.Context(), &history{}, o, &wish{resources: []string{o.Resource}, ttl: 2 * time.Second}, 0)
	})
	testenv.Eventually(t, 20*time.Second, func() error {
		size, err := redis.Client().DBSize(t.Context()).Result()
		if err != nil || size > 2 { // the state, and this server's sign of life
			return fmt.Errorf("%d keys left: %w", size, err)
		}
		return nil
	})
	a.awaitUsage(before, 30*time.Second)
}
