package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// service is a lock service in memory behind several addresses, which share their leases as real servers
// do. The scenario decides its faults.
type service struct {
	scenario scenario
	servers  []*httptest.Server // without those that are down
	urls     []string           // of all servers
	over     chan struct{}      // closed at the end of the scenario, which releases requests to frozen servers
	working  sync.WaitGroup

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced whenever a lease begins or ends
	step     int           // the index of the driver's current order
	tokens   int64
	leases   map[string]*grant // by lease id
	keys     map[string]*grant // by Idempotency-Key
	requests []*request
	frozen   map[int]bool

	conns     map[int]int // open connections by server, from 1
	mostConns int         // the largest number that were open to one server
}

// another is the id of a lease of another client.
const another = "another's"

// grant is a lease, as the service keeps it.
type grant struct {
	id, resource, key string
	token             int64
	ttl               time.Duration
	until             time.Time
	capped            time.Time // when the maximum hold time ends; zero for no limit
	ended             bool
}

func (g *grant) live() bool { return !g.ended && time.Now().Before(g.until) }

// request is one request as the service saw it.
type request struct {
	step         int // the index of the order during which it came
	server       int // from 1
	call         call
	method, path string
	key, lease   string
	waits        time.Duration // how long the service may hold it back: wait_ms, or Prefer: wait=N
	body         requestBody
	problem      string // what is wrong with the request itself
	conn         string // the client's address
	at           time.Time

	// The next three fields are guarded by service.mu until the scenario has ended.
	outcome string // the status, "cut", "gone" (the client broke it off), or "open"
	ended   time.Time
	until   time.Time // the end of validity in a successful response, counted from at
}

func (r *request) String() string { return fmt.Sprintf("%s@%d=%s", r.call, r.server, r.outcome) }

// requestBody has the fields of every request's body.
type requestBody struct {
	wire.AcquireRequest
}

// call is a kind of request.
type call string

const (
	acquire call = "acquire"
	cancel  call = "cancel"
	extend  call = "extend"
	release call = "release"
	lookup  call = "lookup"
	inspect call = "inspect"
	probe   call = "probe"
	unknown call = "unknown"
)

func callOf(r *http.Request) call {
	switch r.Method + " " + r.URL.Path {
	case "POST /locks":
		return acquire
	case "POST /cancel":
		return cancel
	case "POST /leases/current/extend":
		return extend
	case "DELETE /leases/current":
		return release
	case "GET /leases/current":
		return lookup
	case "GET /locks/" + resource:
		return inspect
	case "GET /healthz", "GET /readyz":
		return probe
	}
	return unknown
}

func startService(t *testing.T, s scenario) *service {
	t.Helper()
	v := &service{
		scenario: s, over: make(chan struct{}), changed: make(chan struct{}),
		leases: map[string]*grant{}, keys: map[string]*grant{}, frozen: map[int]bool{}, conns: map[int]int{},
	}
	for i := range max(1, s.servers) {
		if s.outage || s.down == i+1 {
			v.urls = append(v.urls, fmt.Sprint("http://127.0.0.1:", testenv.FreePort(t)))
			continue
		}
		server := httptest.NewUnstartedServer(s.busy(unbatched(func(w http.ResponseWriter, r *http.Request) { v.serve(i+1, w, r) })))
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) { v.countConn(i+1, state) }
		server.Listener = reserve(t, server.Listener)
		server.Start()
		v.servers, v.urls = append(v.servers, server), append(v.urls, server.URL)
	}
	t.Cleanup(v.stop)
	return v
}

// busy makes a server handle only atOnce requests at a time, each of which takes a while.
func (s scenario) busy(handler http.HandlerFunc) http.HandlerFunc {
	if s.atOnce == 0 {
		return handler
	}
	turn := make(chan struct{}, s.atOnce)
	return func(w http.ResponseWriter, r *http.Request) {
		turn <- struct{}{}
		defer func() { <-turn }()
		time.Sleep(s.takes)
		handler(w, r)
	}
}

// countConn counts the open connections to a server.
func (v *service) countConn(server int, state http.ConnState) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch state {
	case http.StateNew:
		v.conns[server]++
		v.mostConns = max(v.mostConns, v.conns[server])
	case http.StateClosed, http.StateHijacked:
		v.conns[server]--
	}
}

// reserved is a listener whose port stays in use until the test ends. A client of an earlier scenario
// may still send requests to its old server, and they must not reach a server of a later scenario.
type reserved struct{ *net.TCPListener }

func reserve(t *testing.T, l net.Listener) net.Listener {
	t.Helper()
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		t.Fatalf("a listener that is not of TCP: %v", l.Addr())
	}
	t.Cleanup(func() { _ = tcp.Close() })
	return reserved{tcp}
}

// Close ends Accept, but keeps the port.
func (l reserved) Close() error { return l.SetDeadline(time.Unix(1, 0)) }

// Accept waits for a connection, until Close.
func (l reserved) Accept() (net.Conn, error) {
	conn, err := l.TCPListener.Accept()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, net.ErrClosed
	}
	return conn, err
}

// stop ends the servers. It may be called twice.
func (v *service) stop() {
	v.mu.Lock()
	select {
	case <-v.over:
	default:
		close(v.over)
	}
	v.mu.Unlock()
	for _, server := range v.servers {
		server.CloseClientConnections()
		server.Close()
	}
	v.working.Wait()
}

// begin records which of the driver's orders is being carried out.
func (v *service) begin(step int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.step = step
}

func (v *service) serve(server int, w http.ResponseWriter, r *http.Request) {
	v.working.Add(1)
	defer v.working.Done()
	body, err := io.ReadAll(r.Body)
	if err != nil { // the client hung up while sending the request: a real service does not see such a request either
		return
	}
	req := v.note(server, r, body)
	f := v.fault(req)
	outcome := v.play(req, f, w, r)
	v.mu.Lock()
	defer v.mu.Unlock()
	req.outcome, req.ended = outcome, time.Now()
}

// note records a request.
func (v *service) note(server int, r *http.Request, body []byte) *request {
	req := &request{
		server: server, call: callOf(r), method: r.Method, path: r.URL.Path, conn: r.RemoteAddr, outcome: "open",
		key: r.Header.Get(wire.HeaderIdempotencyKey), lease: r.Header.Get(wire.HeaderLease),
	}
	var err error
	if len(body) > 0 {
		decoder := json.NewDecoder(strings.NewReader(string(body)))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(&req.body)
		if r.Header.Get("Content-Type") != wire.TypeJSON {
			err = errors.Join(err, errors.New("Content-Type is not application/json"))
		}
	}
	if err != nil {
		req.problem = err.Error()
	}
	req.waits = time.Duration(value(req.body.WaitMS)) * time.Millisecond
	if seconds, err := strconv.Atoi(strings.TrimPrefix(r.Header.Get(wire.HeaderPrefer), "wait=")); err == nil {
		req.waits = min(req.waits, time.Duration(seconds)*time.Second)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	req.step, req.at = v.step, time.Now() // set here so that times and list have the same order, even if two requests come together
	if held := v.scenario.held; held > 0 && len(v.requests) == 0 {
		v.leases[another] = &grant{id: another, resource: resource, ttl: held, until: req.at.Add(held)}
	}
	v.requests = append(v.requests, req)
	return req
}

// fault returns what the scenario does with a request: the first entry that matches its kind, server and
// number. A frozen server never responds.
func (v *service) fault(req *request) fault {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.frozen[req.server] {
		return fault{freeze: true}
	}
	n := 0
	for _, r := range v.requests {
		if r.call == req.call {
			n++
		}
	}
	for _, f := range v.scenario.faults {
		if f.on == req.call && (f.server == 0 || f.server == req.server) && (f.nth == 0 || f.nth == n) && (f.from == 0 || n >= f.from) &&
			(f.lasting == 0 || time.Since(v.requests[0].at) < f.lasting) {
			return f
		}
	}
	return fault{}
}

// play handles a request, with its fault, and returns the outcome.
func (v *service) play(req *request, f fault, w http.ResponseWriter, r *http.Request) (outcome string) {
	if f.freezeAfter > 0 {
		time.AfterFunc(f.freezeAfter, func() { v.freeze(req.server) })
	}
	if f.freeze {
		v.freeze(req.server)
		v.untilOver(r.Context())
		return "gone"
	}
	if !v.pause(r.Context(), f.before) {
		return "gone"
	}
	v.clock(f)
	status, body := f.status, f.problem()
	if status == 0 || f.effect {
		status, body = v.act(r.Context(), req, f)
	}
	if f.status != 0 {
		status, body = f.status, f.problem()
	}
	if !v.pause(r.Context(), f.after) {
		return "gone"
	}
	if v.isFrozen(req.server) {
		v.untilOver(r.Context())
		return "gone"
	}
	if f.cut {
		cut(w)
		return "cut"
	}
	return v.answer(w, r, req, status, body, f)
}

// clock moves the client's wall clock, if the scenario can.
func (v *service) clock(f fault) {
	if f.clock != 0 && v.scenario.moveClock != nil {
		v.scenario.moveClock(f.clock)
	}
}

func (v *service) answer(w http.ResponseWriter, r *http.Request, req *request, status int, body any, f fault) string {
	if f.retryAfter != "" {
		w.Header().Set("Retry-After", f.retryAfter)
	}
	if f.redirects {
		w.Header().Set("Location", v.urls[req.server-1]+"/elsewhere"+r.URL.Path)
	}
	w.Header().Set("Fencelock-Server", fmt.Sprintf("server-%d", req.server))
	w.Header().Set("Date", time.Now().Add(f.clock).UTC().Format(http.TimeFormat)) // a client must not rely on it
	text, isText := body.(string)
	switch {
	case isText:
		w.Header().Set("Content-Type", "text/html")
	case status >= http.StatusBadRequest:
		w.Header().Set("Content-Type", wire.TypeProblem)
	default:
		w.Header().Set("Content-Type", wire.TypeJSON)
	}
	if !isText && body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			panic(err)
		}
		text = string(raw)
	}
	if f.half {
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text[:len(text)/2])
		cut(w)
		return "cut"
	}
	if r.Context().Err() != nil {
		return "gone"
	}
	if granted, ok := body.(answeredLease); ok {
		v.mu.Lock()
		req.until = req.at.Add(time.Duration(granted.WaitedMS+granted.ValidityMS) * time.Millisecond)
		v.mu.Unlock()
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
	return fmt.Sprint(status)
}

// cut resets the connection, as a dying server does.
func cut(w http.ResponseWriter) {
	if flusher, ok := w.(http.Flusher); ok {
		if _, written := w.Header()["Content-Length"]; written {
			flusher.Flush()
		}
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func (v *service) freeze(server int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.frozen[server] = true
	v.wake()
}

func (v *service) isFrozen(server int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.frozen[server]
}

// untilOver waits until the scenario ends or the client hangs up.
func (v *service) untilOver(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-v.over:
	}
}

// pause waits for d. It returns false if the client hangs up before.
func (v *service) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-v.over:
	}
	return false
}

// wake makes waiting acquires look again. The caller holds mu.
func (v *service) wake() {
	close(v.changed)
	v.changed = make(chan struct{})
}
