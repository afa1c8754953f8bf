package api_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

const patient = `{"resource":"a","wait_ms":60000}`

// inQueue is an Acquire that waits for its result.
type inLine struct {
	entered chan struct{}
	results chan error
	left    chan struct{}
}

// newInLine comes after newService: at the test's end it lets go whoever still waits.
func newInLine(t *testing.T) *inLine {
	t.Helper()
	l := &inLine{entered: make(chan struct{}, 1), results: make(chan error, 1), left: make(chan struct{}, 1)}
	t.Cleanup(func() { close(l.results) })
	return l
}

func (l *inLine) acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	l.entered <- struct{}{}
	select {
	case err := <-l.results:
		return grant(req.Resource), err
	case <-ctx.Done():
		l.left <- struct{}{}
		return lockcore.Lease{}, ctx.Err()
	}
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("not within 10 s: %s", what)
	}
}

// post is a request as it goes over the wire.
func post(body string) string {
	return fmt.Sprintf("POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

const health = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"

func TestPanicInAcquireIsAnswered(t *testing.T) {
	s := newService(t, &fake{acquire: func(context.Context, lockcore.Request) (lockcore.Lease, error) { panic("a bug") }})
	s.call("POST", "/locks", patient).wants(http.StatusInternalServerError).problem("internal-error")
	if log := s.log.String(); !strings.Contains(log, "a bug") || !strings.Contains(log, "wait_test.go") {
		t.Errorf("the log has no panic with its stack: %s", log)
	}
}

// secure serves the service over TLS, to callers that dial it raw.
func secure(t *testing.T, s *service) *service {
	t.Helper()
	server := httptest.NewUnstartedServer(s.handler)
	server.Config.ConnContext = edge.ConnContext
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	w := *s
	w.url, w.client = server.URL, server.Client()
	return &w
}

func dialRaw(t *testing.T, s *service) net.Conn {
	t.Helper()
	scheme, addr, _ := strings.Cut(s.url, "://")
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if scheme == "https" {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// TestHangUpLeavesTheQueue: however much a caller has sent of its next request,
// and whenever, it leaves the queue when it hangs up.
func TestHangUpLeavesTheQueue(t *testing.T) {
	for _, c := range []struct {
		name        string
		early, late string // sent with the request, and while it waits
	}{
		{"nothing more", "", ""},
		{"one byte with the request", "G", ""},
		{"one byte later", "", "G"},
		{"a request later", "", health},
		{"more than a buffer later", "", strings.Repeat("x", 100_000)},
	} {
		for _, overTLS := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS %t", c.name, overTLS), func(t *testing.T) {
				t.Parallel()
				f := &fake{} // a Release would fail the test
				s := newService(t, f)
				if overTLS {
					s = secure(t, s)
				}
				line := newInLine(t)
				f.acquire = line.acquire
				conn := dialRaw(t, s)
				send(t, conn, post(patient)+c.early)
				await(t, "the request waits", line.entered)
				if c.late != "" {
					send(t, conn, c.late)
				}
				if err := conn.Close(); err != nil {
					t.Fatal(err)
				}
				await(t, "the request leaves the queue", line.left)
				eventually(t, "the request is counted as gone", func() bool { return strings.Contains(s.log.String(), `"status":499`) })
			})
		}
	}
}

// TestHangUpInTwoRecords: over TLS a byte that came in the same segment as the
// request is in memory before anybody waits.
func TestHangUpInTwoRecords(t *testing.T) {
	f := &fake{}
	s := secure(t, newService(t, f))
	line := newInLine(t)
	f.acquire = line.acquire
	gather := &gatherer{Conn: dialRaw(t, s).(*tls.Conn).NetConn()}
	conn := tls.Client(gather, &tls.Config{InsecureSkipVerify: true})
	if err := conn.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	gather.hold = true
	send(t, conn, post(patient))
	send(t, conn, "G")
	if _, err := gather.Conn.Write(gather.held); err != nil {
		t.Fatal(err)
	}
	await(t, "the request waits", line.entered)
	_ = gather.Close()
	await(t, "the request leaves the queue", line.left)
}

// gatherer keeps what is written, to send it as one.
type gatherer struct {
	net.Conn
	hold bool
	held []byte
}

func (g *gatherer) Write(p []byte) (int, error) {
	if !g.hold {
		return g.Conn.Write(p)
	}
	g.held = append(g.held, p...)
	return len(p), nil
}

// TestHangUpOverHTTP2: the end of a stream and the end of the connection.
func TestHangUpOverHTTP2(t *testing.T) {
	for _, overTLS := range []bool{false, true} {
		f := &fake{}
		s := newService(t, f)
		transport := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		if overTLS {
			s = secure(t, s)
			transport.Protocols.SetHTTP2(true)
		} else {
			transport.Protocols.SetUnencryptedHTTP2(true)
		}
		line := newInLine(t)
		f.acquire = line.acquire
		var conn net.Conn
		transport.DialContext = func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return conn, err
		}
		for _, cut := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/locks", strings.NewReader(patient))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			ended := make(chan error, 1)
			go func() {
				resp, err := transport.RoundTrip(req)
				if err == nil {
					_ = resp.Body.Close()
				}
				ended <- err
			}()
			await(t, "the request waits", line.entered)
			if cut {
				_ = conn.Close()
			} else {
				cancel()
			}
			await(t, "the request leaves the queue", line.left)
			if err := <-ended; err == nil {
				t.Error("the caller got an answer")
			}
			cancel()
		}
	}
}

// TestWaitWithMoreRequests: what a caller sends before it has its answer is
// answered afterwards, however the wait's end meets it.
func TestWaitWithMoreRequests(t *testing.T) {
	t.Parallel()
	var waits atomic.Uint64
	s := newService(t, &fake{acquire: func(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
		random := rand.New(rand.NewPCG(1, waits.Add(1)))
		around := time.NewTimer(api.WatchAfter - 10*time.Millisecond + time.Duration(random.Int64N(int64(20*time.Millisecond))))
		defer around.Stop()
		select {
		case <-around.C:
			return grant(req.Resource), nil
		case <-ctx.Done():
			return lockcore.Lease{}, ctx.Err()
		}
	}})
	overTLS := secure(t, s)
	var callers sync.WaitGroup
	for i := range 32 {
		conn := dialRaw(t, s)
		if i%2 == 1 {
			conn = dialRaw(t, overTLS)
		}
		callers.Go(func() {
			reader, random := bufio.NewReader(conn), rand.New(rand.NewPCG(2, uint64(i)))
			for range 6 {
				_, _ = io.WriteString(conn, post(patient))
				if random.IntN(4) > 0 {
					<-time.After(time.Duration(random.Int64N(int64(api.WatchAfter + 10*time.Millisecond)))) // the early request comes at any time
				}
				_, _ = io.WriteString(conn, health)
				for _, status := range []int{http.StatusCreated, http.StatusOK} {
					resp, err := http.ReadResponse(reader, nil)
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					want(t, "status", resp.StatusCode, status)
				}
			}
		})
	}
	callers.Wait()
}

// TestRealWaits: a queue on the embedded file is served in the order of arrival;
// a caller that hangs up is passed over.
func TestRealWaits(t *testing.T) {
	s := newRealService(t)
	last := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"a"}`).wants(http.StatusCreated))
	const n = 12
	answers := make([]answered, n)
	done := make([]chan struct{}, n)
	var callers sync.WaitGroup
	for i := range n {
		done[i] = make(chan struct{})
		if i%4 == 3 {
			rawRequest(t, s, patient, s.waiting("a", i+1))
			eventually(t, "who hung up is out of the line", func() bool { return s.inspect("a").Waiters == i })
			rawRequest(t, s, patient, s.waiting("a", i+1)) // stands there for a moment, and is gone
		}
		callers.Go(func() {
			defer close(done[i])
			answers[i] = s.call("POST", "/locks", fmt.Sprintf(`{"resource":"a","holder":"w%d","wait_ms":60000}`, i))
		})
		eventually(t, "the next one stands in the queue", func() bool {
			lock := s.inspect("a")
			return lock.Waiters == i+1 && lock.Queue[i].Holder == fmt.Sprint("w", i)
		})
	}
	for i := range n {
		s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+last.LeaseID).wants(http.StatusNoContent)
		await(t, fmt.Sprint("the turn of ", i), done[i])
		next := decode[wire.Lease](answers[i].wants(http.StatusCreated))
		if next.FencingToken <= last.FencingToken {
			t.Errorf("token %d after %d", next.FencingToken, last.FencingToken)
		}
		last = next
	}
	callers.Wait()
	want(t, "waiters left", s.inspect("a").Waiters, 0)
}

func (s *service) inspect(resource string) wire.Lock {
	s.t.Helper()
	return decode[wire.Lock](s.call("GET", "/locks/"+resource, "").wants(http.StatusOK))
}

// waiting is closed when so many stand in the queue.
func (s *service) waiting(resource string, n int) <-chan struct{} {
	there := make(chan struct{})
	go func() {
		defer close(there)
		for s.t.Context().Err() == nil && s.inspect(resource).Waiters < n {
		}
	}()
	return there
}
