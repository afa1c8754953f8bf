package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

func parkAtOnce(o *api.Options) { o.ParkAfter = time.Millisecond }

const patient = `{"resource":"a","wait_ms":60000}`

// inLine is an Acquire that waits for its result.
type inLine struct {
	results chan error
	left    chan struct{}
}

func newInLine() *inLine { return &inLine{results: make(chan error, 1), left: make(chan struct{}, 1)} }

func (l *inLine) acquire(ctx context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
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

// TestParkedRequest: the answers of a parked request are those of any other,
// and its connection serves the next one.
func TestParkedRequest(t *testing.T) {
	line := newInLine()
	s := newService(t, &fake{acquire: line.acquire}, parkAtOnce)
	plain := newService(t, &fake{acquire: func(_ context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
		return grant(req.Resource), nil
	}})
	conns := map[string]bool{}
	trace := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) { conns[c.Conn.LocalAddr().String()] = true },
	})
	call := func(err error) answered {
		line.results = make(chan error, 1)
		go func() {
			<-s.hijacked
			line.results <- err
		}()
		req, bad := http.NewRequestWithContext(trace, http.MethodPost, s.url+"/locks", strings.NewReader(patient))
		if bad != nil {
			t.Fatal(bad)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(wire.HeaderRequestID, "r-1")
		resp, bad := s.client.Do(req)
		if bad != nil {
			t.Fatal(bad)
		}
		body, _ := io.ReadAll(resp.Body)
		return answered{t: t, status: resp.StatusCode, header: resp.Header, body: string(body)}
	}
	for range 3 {
		parked := call(nil).wants(http.StatusCreated)
		other := plain.call("POST", "/locks", patient, "X-Request-Id: r-1").wants(http.StatusCreated)
		want(t, "body", parked.body, other.body)
		for name := range other.header {
			if name != "Date" {
				want(t, name, parked.header.Get(name), other.header.Get(name))
			}
		}
		want(t, "number of headers", len(parked.header), len(other.header))
	}
	stopping := call(lockcore.ErrStopping).wants(http.StatusServiceUnavailable)
	stopping.problem("server-stopping")
	want(t, "Retry-After", stopping.header.Get("Retry-After"), "1")
	held := call(&lockcore.WaitTimeoutError{HeldError: lockcore.HeldError{Resource: "a", Holder: "h"}, Position: 2}).wants(http.StatusConflict)
	want(t, "holder", held.problem("wait-timeout").Holder, "h")
	want(t, "connections", len(conns), 1)
	eventually(t, "all of them are counted", func() bool {
		return testutil.GatherAndCompare(s.registry, strings.NewReader(`
# HELP fencelock_http_requests_total HTTP requests answered, by route pattern, method and status (499: the caller had gone).
# TYPE fencelock_http_requests_total counter
fencelock_http_requests_total{code="201",method="POST",route="/locks"} 3
fencelock_http_requests_total{code="409",method="POST",route="/locks"} 1
fencelock_http_requests_total{code="503",method="POST",route="/locks"} 1
`), "fencelock_http_requests_total") == nil
	})
	if log := s.log.String(); !strings.Contains(log, `"request_id":"r-1","method":"POST","route":"/locks","status":201`) {
		t.Errorf("the parked request is not logged like any other: %s", log)
	}
}

func TestParkedCallerThatHangsUp(t *testing.T) {
	line := newInLine()
	s := newService(t, &fake{acquire: line.acquire}, parkAtOnce) // a Release would fail the test
	rawRequest(t, s, patient, s.hijacked)
	await(t, "the request leaves the line", line.left)
	eventually(t, "the request is counted as gone", func() bool { return strings.Contains(s.log.String(), `"status":499`) })
}

// TestParkedGrantIsGivenBack: the grant is there at the moment in which the
// caller hangs up.
func TestParkedGrantIsGivenBack(t *testing.T) {
	released := make(chan struct{}, 1)
	s := newService(t, &fake{
		acquire: func(ctx context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
			<-ctx.Done()
			return grant(req.Resource), nil
		},
		release: func(ctx context.Context, id string) error {
			want(t, "released", id, leaseID)
			want(t, "context", ctx.Err(), nil)
			released <- struct{}{}
			return nil
		},
	}, parkAtOnce)
	rawRequest(t, s, patient, s.hijacked)
	await(t, "the grant is given back", released)
}

// TestParkedConnectionWithMoreRequests: what a caller sends before it has its
// answer is answered afterwards.
func TestParkedConnectionWithMoreRequests(t *testing.T) {
	for _, late := range []bool{false, true} {
		line := newInLine()
		s := newService(t, &fake{acquire: line.acquire}, parkAtOnce)
		conn := dialRaw(t, s)
		first := fmt.Sprintf("POST /locks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(patient), patient)
		const second = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
		if !late {
			first += second
		}
		send(t, conn, first)
		await(t, "the request is parked", s.hijacked)
		if late {
			send(t, conn, second)
		}
		line.results <- nil
		reader := bufio.NewReader(conn)
		want(t, "first status", statusOf(t, reader), http.StatusCreated)
		want(t, "second status", statusOf(t, reader), http.StatusOK)
		send(t, conn, second)
		want(t, "third status", statusOf(t, reader), http.StatusOK)
	}
}

func TestParkedConnectionIsClosedOnRequest(t *testing.T) {
	line := newInLine()
	s := newService(t, &fake{acquire: line.acquire}, parkAtOnce)
	conn := dialRaw(t, s)
	send(t, conn, fmt.Sprintf("POST /locks HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(patient), patient))
	await(t, "the request is parked", s.hijacked)
	line.results <- nil
	answer, err := io.ReadAll(conn) // to the end
	if err != nil || !strings.Contains(string(answer), "201 Created") || !strings.Contains(string(answer), "Connection: close") {
		t.Errorf("%q, %v", answer, err)
	}
}

// TestOthersAreNotParked: HTTP/2 shares connections, and HTTP/1.0 closes them.
func TestOthersAreNotParked(t *testing.T) {
	entered := make(chan struct{}, 2)
	s := newService(t, &fake{acquire: func(_ context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
		entered <- struct{}{}
		<-time.After(50 * time.Millisecond) // long enough to be parked in
		return grant(req.Resource), nil
	}}, parkAtOnce)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Post(s.url+"/locks", "application/json", strings.NewReader(patient))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body) // who hangs up before gives the grant back
	_ = resp.Body.Close()
	want(t, "protocol", resp.ProtoMajor, 2)
	want(t, "status", resp.StatusCode, http.StatusCreated)

	conn := dialRaw(t, s)
	send(t, conn, fmt.Sprintf("POST /locks HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(patient), patient))
	want(t, "status", statusOf(t, bufio.NewReader(conn)), http.StatusCreated)
	want(t, "parked", len(s.hijacked), 0)
	want(t, "acquired", len(entered), 2)
}

func TestPanicInLineIsAnswered(t *testing.T) {
	s := newService(t, &fake{acquire: func(context.Context, lockcore.AcquireRequest) (lockcore.Lease, error) { panic("a bug") }}, parkAtOnce)
	s.call("POST", "/locks", patient).wants(http.StatusInternalServerError).problem("internal-error")
	if log := s.log.String(); !strings.Contains(log, "a bug") || !strings.Contains(log, "park_test.go") {
		t.Errorf("the log has no panic with its stack: %s", log)
	}
}

func TestDrainWaitsForParkedRequests(t *testing.T) {
	line := newInLine()
	s := newService(t, &fake{acquire: line.acquire}, parkAtOnce)
	if err := s.handler.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn := dialRaw(t, s)
	send(t, conn, fmt.Sprintf("POST /locks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(patient), patient))
	await(t, "the request is parked", s.hijacked)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if s.handler.Drain(ctx) == nil {
		t.Error("drained while a request waits")
	}
	line.results <- lockcore.ErrStopping
	if err := s.handler.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	want(t, "status", statusOf(t, bufio.NewReader(conn)), http.StatusServiceUnavailable)
}

// TestRealParkedWaits: a line of parked requests on the embedded file is served
// in the order of arrival; who hangs up is passed over.
func TestRealParkedWaits(t *testing.T) {
	s := newRealService(t, parkAtOnce)
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
		eventually(t, "the next one stands in line", func() bool {
			lock := s.inspect("a")
			return lock.Waiters == i+1 && lock.Queue[i].Holder == fmt.Sprint("w", i)
		})
	}
	for i := range n {
		s.call("DELETE", "/leases/"+last.LeaseID, "").wants(http.StatusNoContent)
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

// waiting is closed when so many stand in line.
func (s *service) waiting(resource string, n int) <-chan struct{} {
	there := make(chan struct{})
	go func() {
		defer close(there)
		for s.t.Context().Err() == nil && s.inspect(resource).Waiters < n {
		}
	}()
	return there
}

func dialRaw(t *testing.T, s *service) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
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

func statusOf(t *testing.T, r *bufio.Reader) int {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestConnectionsSurviveParking: whether a request is parked is decided in the
// moment in which its result comes; the caller's next request, on the same
// connection, is answered either way.
func TestConnectionsSurviveParking(t *testing.T) {
	s := newService(t, &fake{
		acquire: func(ctx context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
			around := time.NewTimer(time.Duration(rand.Int64N(int64(2 * time.Millisecond))))
			defer around.Stop()
			select {
			case <-around.C:
				return grant(req.Resource), nil
			case <-ctx.Done():
				return lockcore.Lease{}, ctx.Err()
			}
		},
		release: func(context.Context, string) error { return nil },
	}, parkAtOnce, func(o *api.Options) { o.IdleTimeout = time.Minute })
	var callers sync.WaitGroup
	for range 16 {
		client := &http.Client{Transport: &http.Transport{}}
		t.Cleanup(client.CloseIdleConnections)
		callers.Go(func() {
			for range 60 { // fewer hijacks in all than the service notes
				if err := takeAndGive(t.Context(), client, s.url); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
}

func takeAndGive(ctx context.Context, client *http.Client, url string) error {
	for _, c := range []struct {
		method, path string
		body         io.Reader
		status       int
	}{
		{http.MethodPost, "/locks", strings.NewReader(patient), http.StatusCreated},
		{http.MethodDelete, "/leases/" + leaseID, http.NoBody, http.StatusNoContent},
	} {
		req, err := http.NewRequestWithContext(ctx, c.method, url+c.path, c.body)
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.status {
			return fmt.Errorf("%s %s: %s", c.method, c.path, resp.Status)
		}
	}
	return nil
}
