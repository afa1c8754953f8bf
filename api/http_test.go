package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
)

func TestUnknownPathsAndMethods(t *testing.T) {
	s := newService(t, &fake{})
	for _, path := range []string{"/lock", "/locksx", "/leases", "/leases/", "/leases/" + leaseID, "/leases/" + leaseID + "/extend", "/problems/", "/problems", "/guardedx", "/metrics", "/debug/pprof/", "//locks"} {
		s.call("GET", path, "").wants(http.StatusNotFound).problem("not-found")
	}
	s.call("PATCH", "/nowhere", "").wants(http.StatusNotFound).problem("not-found")
	for _, c := range []struct{ method, path, allow string }{
		{"PUT", "/locks", "GET, HEAD, POST"},
		{"BREW", "/locks", "GET, HEAD, POST"},
		{"POST", "/locks/a", "GET, HEAD"},
		{"POST", "/locks/a%2Fb", "GET, HEAD"},
		{"GET", "/leases/current/extend", "POST"},
		{"PATCH", "/leases/current", "GET, HEAD, DELETE"},
		{"PATCH", "/guarded/a", "GET, HEAD, POST, PUT, DELETE"},
		{"OPTIONS", "/healthz", "GET, HEAD"},
	} {
		a := s.call(c.method, c.path, "").wants(http.StatusMethodNotAllowed)
		a.problem("method-not-allowed")
		want(t, c.method+" "+c.path, a.header.Get("Allow"), c.allow)
	}
}

func TestHeadIsGetWithoutABody(t *testing.T) {
	s := newService(t, &fake{
		inspect: func(resource string) (lockcore.LockState, error) { return lockcore.LockState{Resource: resource}, nil },
		lease:   func(string) (lockcore.Lease, error) { return grant("a"), nil },
		status:  func() lockcore.ClusterStatus { return lockcore.ClusterStatus{Ready: true, Quorum: 1} },
	}, func(o *api.Options) { o.Guard = nil }) // /readyz says for how long the guard's storage has been as it is
	for _, path := range []string{"/locks/a", "/leases/current", "/healthz", "/readyz", "/openapi.yaml", "/problems/lock-held"} {
		get := s.call("GET", path, "", "Fencelock-Lease: "+leaseID).wants(http.StatusOK)
		head := s.call("HEAD", path, "", "Fencelock-Lease: "+leaseID).wants(http.StatusOK)
		want(t, "body", head.body, "")
		for _, name := range []string{"Content-Length", "Content-Type", "Fencing-Token", "Cache-Control"} {
			want(t, path+" "+name, head.header.Get(name), get.header.Get(name))
		}
	}
}

func TestReadyz(t *testing.T) {
	var status lockcore.ClusterStatus
	s := newService(t, &fake{status: func() lockcore.ClusterStatus { return status }}, func(o *api.Options) { o.Guard = nil })
	status = lockcore.ClusterStatus{Ready: true, Quorum: 1, Voting: 1, Nodes: []lockcore.NodeStatus{
		{Name: "n1", State: lockcore.NodeVoting, Since: 1500 * time.Millisecond, Epoch: 5},
	}}
	a := s.call("GET", "/readyz", "").wants(http.StatusOK)
	want(t, "ready", strings.TrimSpace(a.body), `{"ready":true,"reason":"","quorum":1,"voting":1,"nodes":[{"name":"n1","state":"voting","reason":"","since_ms":1500,"wait_ms":0,"epoch":5}]}`)

	status = lockcore.ClusterStatus{Reason: "waiting", Quorum: 1, Nodes: []lockcore.NodeStatus{
		{Name: "n1", State: lockcore.NodeQuarantined, Reason: "restarted", Wait: time.Second + 1},
	}}
	a = s.call("GET", "/readyz", "").wants(http.StatusServiceUnavailable)
	want(t, "not ready", strings.TrimSpace(a.body), `{"ready":false,"reason":"waiting","quorum":1,"voting":0,"nodes":[{"name":"n1","state":"quarantined","reason":"restarted","since_ms":0,"wait_ms":1001,"epoch":0}]}`)
	want(t, "Cache-Control", a.header.Get("Cache-Control"), "no-store")

	status.Nodes[0] = lockcore.NodeStatus{Name: "n1", State: lockcore.NodeVoting, Version: "Redis 7.2.4", Role: "master", LastError: "no answer", LastErrorAgo: 2 * time.Second}
	a = s.call("GET", "/readyz", "").wants(http.StatusServiceUnavailable)
	want(t, "for people", strings.Contains(a.body, `"epoch":0,"version":"Redis 7.2.4","role":"master","last_error":"no answer","last_error_ms":2000}`), true)
	s.call("GET", "/healthz", "").wants(http.StatusOK)
}

func TestOpenAPIIsServed(t *testing.T) {
	text, err := os.ReadFile("../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	a := newService(t, nil).call("GET", "/openapi.yaml", "").wants(http.StatusOK)
	if a.body != string(text) {
		t.Error("what is served is not openapi.yaml")
	}
}

func TestRequestIDs(t *testing.T) {
	s := newService(t, nil)
	for _, id := range []string{"a", "A.b_c-9", strings.Repeat("x", 64)} {
		want(t, "kept", s.call("GET", "/healthz", "", "X-Request-Id: "+id).header.Get(wire.HeaderRequestID), id)
	}
	seen := map[string]bool{}
	for _, id := range []string{"", "a b", "é", `"}`, strings.Repeat("x", 65), "a,b"} {
		got := s.call("GET", "/healthz", "", "X-Request-Id: "+id).header.Get(wire.HeaderRequestID)
		if got == id || len(got) != 16 || seen[got] {
			t.Errorf("%q became %q", id, got)
		}
		seen[got] = true
	}
}

// Clients behind a load balancer tell the servers apart by it, so it is in answers
// of every kind, and differs between two servers and two starts of one.
func TestEveryAnswerNamesItsServer(t *testing.T) {
	panics := &fake{
		inspect: func(string) (lockcore.LockState, error) { panic("a bug") },
		status:  func() lockcore.ClusterStatus { return lockcore.ClusterStatus{Quorum: 1} },
	}
	s, other := newService(t, panics), newService(t, panics)
	name := s.call("GET", "/healthz", "").header.Get(wire.HeaderServer)
	if name == "" || name != s.handler.Events.Server() || name == other.handler.Events.Server() {
		t.Errorf("%s is %q, the events name %q, another server is %q", wire.HeaderServer, name, s.handler.Events.Server(), other.handler.Events.Server())
	}
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"HEAD", "/healthz", http.StatusOK},
		{"GET", "/readyz", http.StatusServiceUnavailable},
		{"GET", "/openapi.yaml", http.StatusOK},
		{"GET", "/problems/lock-held", http.StatusOK},
		{"GET", "/nowhere", http.StatusNotFound},
		{"PATCH", "/locks", http.StatusMethodNotAllowed},
		{"POST", "/locks", http.StatusBadRequest},
		{"GET", "/locks/a", http.StatusInternalServerError},
	} {
		want(t, c.method+" "+c.path, s.call(c.method, c.path, "").wants(c.status).header.Get(wire.HeaderServer), name)
	}
}

func TestLogsHoldNoSecrets(t *testing.T) {
	s := newService(t, &fake{
		acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
			return grant(req.Resource), nil
		},
		lease:   func(string) (lockcore.Lease, error) { return lockcore.Lease{}, errors.New("broken") },
		extend:  func(string, time.Duration) (lockcore.Lease, error) { panic("broken") },
		release: func(context.Context, string) error { return lockcore.ErrNotHeld },
	})
	s.call("POST", "/locks", `{"resource":"a"}`, "Idempotency-Key: key-secret", "X-Request-Id: req-1")
	s.call("GET", "/leases/current", "", "X-Request-Id: req-2", "Fencelock-Lease: "+leaseID)
	s.call("POST", "/leases/current/extend", "", "X-Request-Id: req-3", "Fencelock-Lease: "+leaseID)
	s.call("DELETE", "/leases/current", "", "X-Request-Id: req-4", "Fencelock-Lease: "+leaseID)
	s.call("GET", "/leases/current/nowhere", "", "X-Request-Id: req-5", "Fencelock-Lease: "+leaseID)
	log := s.log.String()
	if strings.Contains(log, leaseID) || strings.Contains(log, "key-secret") {
		t.Errorf("the log holds a secret: %s", log)
	}
	for i := range 5 {
		id := fmt.Sprintf(`"request_id":"req-%d"`, i+1)
		if !strings.Contains(log, id) {
			t.Errorf("the log does not name %s: %s", id, log)
		}
	}
	if !strings.Contains(log, `"route":"/leases/current/extend","status":500`) {
		t.Errorf("requests are not logged by their pattern: %s", log)
	}
}

func TestPanicIsAnsweredAndSurvived(t *testing.T) {
	s := newService(t, &fake{inspect: func(resource string) (lockcore.LockState, error) {
		if resource == "bad" {
			panic("a bug")
		}
		return lockcore.LockState{Resource: resource}, nil
	}})
	p := s.call("GET", "/locks/bad", "").wants(http.StatusInternalServerError).problem("internal-error")
	if strings.Contains(p.Detail, "a bug") {
		t.Errorf("the answer tells the panic: %s", p.Detail)
	}
	if log := s.log.String(); !strings.Contains(log, "a bug") || !strings.Contains(log, "http_test.go") {
		t.Errorf("the log has no panic with its stack: %s", log)
	}
	s.call("GET", "/locks/good", "").wants(http.StatusOK)
}

func TestMetrics(t *testing.T) {
	s := newService(t, &fake{inspect: func(resource string) (lockcore.LockState, error) {
		return lockcore.LockState{Resource: resource}, nil
	}})
	s.call("GET", "/locks/a", "")
	s.call("GET", "/locks/b", "")
	s.call("GET", "/nowhere", "")
	s.call("BREW", "/healthz", "")
	err := testutil.GatherAndCompare(s.registry, strings.NewReader(`
# HELP fencelock_http_requests_total Completed HTTP requests, by route pattern, method and status (499: the caller closed the connection).
# TYPE fencelock_http_requests_total counter
fencelock_http_requests_total{code="200",method="GET",route="/locks/*"} 2
fencelock_http_requests_total{code="404",method="GET",route="unmatched"} 1
fencelock_http_requests_total{code="405",method="other",route="unmatched"} 1
`), "fencelock_http_requests_total")
	if err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(s.registry, "fencelock_http_request_duration_seconds"); err != nil || n != 3 {
		t.Errorf("%d duration series, %v", n, err)
	}

	admin := httptest.NewServer(api.NewAdmin(s.registry))
	defer admin.Close()
	for path, part := range map[string]string{
		"/metrics":                       `fencelock_http_requests_total{code="200",method="GET",route="/locks/*"} 2`,
		"/debug/pprof/":                  "goroutine",
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
	} {
		resp, err := http.Get(admin.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), part) {
			t.Errorf("%s: %d, no %q", path, resp.StatusCode, part)
		}
	}
}

// hangUp sends a request by hand and closes the connection when told.
func hangUp(t *testing.T, s *service, header string, when <-chan struct{}) {
	t.Helper()
	rawRequest(t, s, `{"resource":"a"}`, when, header)
}

func rawRequest(t *testing.T, s *service, body string, when <-chan struct{}, header ...string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(conn, "POST /locks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", strings.Join(header, ""), len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	<-when
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestGrantOfACallerThatHungUpIsGivenBack(t *testing.T) {
	reached, released := make(chan struct{}), make(chan string, 1)
	s := newService(t, &fake{
		acquire: func(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
			close(reached)
			<-ctx.Done() // the grant comes just as the caller goes
			return grant(req.Resource), nil
		},
		release: func(ctx context.Context, id string) error {
			if _, limited := ctx.Deadline(); ctx.Err() != nil || !limited {
				t.Errorf("released under a context that is over, or has no end: %v", ctx.Err())
			}
			released <- id
			return nil
		},
	})
	hangUp(t, s, "", reached)
	select {
	case id := <-released:
		want(t, "released", id, leaseID)
	case <-time.After(10 * time.Second):
		t.Fatal("the grant was not released")
	}
}

func TestGrantUnderAnIdempotencyKeyIsLeftToTheRetry(t *testing.T) {
	reached, gone := make(chan struct{}), make(chan struct{})
	s := newService(t, &fake{acquire: func(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
		close(reached)
		<-ctx.Done()
		defer close(gone)
		return grant(req.Resource), nil
	}}) // a Release would fail the test
	hangUp(t, s, "Idempotency-Key: k\r\n", reached)
	<-gone
	// The request is recorded once its handler has ended: nothing comes after.
	eventually(t, "the request is counted", func() bool {
		return strings.Contains(s.log.String(), `"status":499`)
	})
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	begun, deadline := time.Now(), time.After(10*time.Second)
	for !done() {
		select {
		case <-time.After(testenv.PollPause(time.Since(begun))):
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// A caller that goes while nothing was granted is told nothing, and nothing is
// counted against the service.
func TestHangUpWithoutAGrant(t *testing.T) {
	reached := make(chan struct{})
	s := newService(t, &fake{acquire: func(ctx context.Context, _ lockcore.Request) (lockcore.Lease, error) {
		close(reached)
		<-ctx.Done()
		return lockcore.Lease{}, &lockcore.QuorumError{Cause: ctx.Err()}
	}})
	hangUp(t, s, "", reached)
	eventually(t, "the request is counted", func() bool {
		return strings.Contains(s.log.String(), `"status":499`)
	})
}

// brokenWriter is a connection that fails when the answer is flushed.
type brokenWriter struct {
	*httptest.ResponseRecorder
	failWrite bool
}

func (w brokenWriter) Write(p []byte) (int, error) {
	if w.failWrite {
		return 0, net.ErrClosed
	}
	return w.ResponseRecorder.Write(p)
}

func (w brokenWriter) FlushError() error { return net.ErrClosed }

func TestGrantThatCannotBeWrittenIsGivenBack(t *testing.T) {
	for _, failWrite := range []bool{false, true} {
		var released []string
		s := newService(t, &fake{
			acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
				return grant(req.Resource), nil
			},
			release: func(_ context.Context, id string) error {
				released = append(released, id)
				return nil
			},
		})
		req := httptest.NewRequest(http.MethodPost, "/locks", strings.NewReader(`{"resource":"a"}`))
		req.Header.Set("Content-Type", "application/json")
		func() {
			defer func() {
				if cause, ok := recover().(error); !ok || !errors.Is(cause, http.ErrAbortHandler) {
					t.Errorf("the connection was not cut: %v", cause)
				}
			}()
			s.handler.ServeHTTP(brokenWriter{httptest.NewRecorder(), failWrite}, req)
		}()
		if len(released) != 1 || released[0] != leaseID {
			t.Errorf("released %v, want the grant", released)
		}
	}
}

// slowWriter is a connection whose reads run into their deadline.
type slowWriter struct {
	*httptest.ResponseRecorder
	deadlines []time.Time
}

func (w *slowWriter) SetReadDeadline(t time.Time) error {
	w.deadlines = append(w.deadlines, t)
	return nil
}

func TestBodyThatDoesNotArrive(t *testing.T) {
	s := newService(t, &fake{})
	body := io.MultiReader(strings.NewReader(`{"resource"`), errReader{os.ErrDeadlineExceeded})
	req := httptest.NewRequest(http.MethodPost, "/locks", body)
	req.Header.Set("Content-Type", "application/json")
	w := &slowWriter{ResponseRecorder: httptest.NewRecorder()}
	begun := time.Now()
	s.handler.ServeHTTP(w, req)
	answered{t: t, status: w.Code, header: w.Header(), body: w.Body.String()}.wants(http.StatusRequestTimeout).problem("request-timeout")
	want(t, "Connection", w.Header().Get("Connection"), "close")
	if len(w.deadlines) != 1 || w.deadlines[0].Before(begun.Add(api.BodyTimeout)) {
		t.Errorf("deadlines %v, want one %s ahead that stays", w.deadlines, api.BodyTimeout)
	}
}

// The deadline ends with the body: a request that waits in the queue may take longer.
func TestDeadlineEndsWithTheBody(t *testing.T) {
	s := newService(t, &fake{write: func(context.Context, string, fencing.Token, json.RawMessage) (fencing.Record, error) {
		return fencing.Record{Resource: "r", Mark: 1, Value: json.RawMessage("1"), Version: 1}, nil
	}})
	req := httptest.NewRequest(http.MethodPut, "/guarded/r", strings.NewReader("1"))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Fencing-Token", "1")
	w := &slowWriter{ResponseRecorder: httptest.NewRecorder()}
	s.handler.ServeHTTP(w, req)
	if len(w.deadlines) != 2 || w.deadlines[0].IsZero() || !w.deadlines[1].IsZero() {
		t.Errorf("deadlines %v, want one, then none", w.deadlines)
	}
}

func TestBodyThatEndsEarly(t *testing.T) {
	s := newService(t, &fake{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "POST /locks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	answered{t: t, status: resp.StatusCode, header: resp.Header, body: string(text)}.refusedField("body")
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// TestProblemsRoundTrip shows that a client which decodes into wire.Problem
// gets back what the server put there.
func TestProblemsRoundTrip(t *testing.T) {
	in := wire.Problem{Type: "/problems/lock-held", Status: 409, Resource: "a", HeldDetails: &wire.HeldDetails{Holder: "b", FencingToken: 3, RemainingMS: 4, Waiters: 5}}
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out wire.Problem
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if out.HeldDetails == nil || *out.HeldDetails != *in.HeldDetails || out.QuorumDetails != nil || out.StaleDetails != nil {
		t.Errorf("%s became %+v", text, out)
	}
}
