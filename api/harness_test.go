package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

const (
	maxTTL  = 60 * time.Second
	leaseID = "AYFqX3kfbB0sZ8Jp2i5cVxw0m9QeIoDw3gZvcmRlcnMvNDI"
)

// fake stands for the Locker and the Guard. A call that a test does not expect
// fails it, so a test that sets nothing proves that nothing is called.
type fake struct {
	t       *testing.T
	acquire func(context.Context, lockcore.Request) (lockcore.Lease, error)
	extend  func(id string, ttl time.Duration) (lockcore.Lease, error)
	release func(ctx context.Context, id string) error
	cancel  func(req lockcore.Request) []lockcore.LeasePart
	lease   func(id string) (lockcore.Lease, error)
	endOf   func(id string) (lockcore.End, error)
	inspect func(resource string) (lockcore.LockState, error)
	list    func(prefix string, limit int, cursor string) (lockcore.LockPage, error)
	brk     func(resource string, token fencing.Token) error
	minHold time.Duration
	status  func() lockcore.ClusterStatus
	claim   func(ctx context.Context, resource string, token fencing.Token) (fencing.Record, error)
	write   func(ctx context.Context, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error)
	read    func(resource string) (fencing.Record, error)
	usage   func() fencing.Usage
	history func(resource string, limit int) ([]fencing.Attempt, error)
	records func(prefix, after string, limit int) ([]fencing.Record, error)
}

// limits are those of a fake.
var limits = lockcore.Limits{MaxTTL: maxTTL}.WithDefaults()

func (f *fake) Limits() lockcore.Limits { return limits }

func (f *fake) unexpected(call string) { f.t.Errorf("unexpected call: %s", call) }

func (f *fake) Acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	if f.acquire == nil {
		f.unexpected("Acquire")
		return lockcore.Lease{}, nil
	}
	return f.acquire(ctx, req)
}

// Cancel takes every request for one that left nothing, unless the test says otherwise.
func (f *fake) Cancel(_ context.Context, req lockcore.Request) ([]lockcore.LeasePart, error) {
	if f.cancel == nil {
		return nil, nil
	}
	return f.cancel(req), nil
}

// ForgetPlace forgets nothing.
func (f *fake) ForgetPlace(context.Context, lockcore.Request) error { return nil }

// Find knows no key.
func (f *fake) Find(context.Context, lockcore.Request) (lockcore.Lease, error) {
	return lockcore.Lease{}, lockcore.ErrNotHeld
}

// Open takes every id for one of the caller's.
func (f *fake) Open(_ context.Context, _ lockcore.Caller, id string) (lockcore.OpenedLease, error) {
	return fakeLease{f, id}, nil
}

// fakeLease is a lease of a fake.
type fakeLease struct {
	*fake
	id string
}

func (f fakeLease) ID() string { return f.id }

func (f fakeLease) Terms() lockcore.LeaseTerms {
	return lockcore.LeaseTerms{Parts: []lockcore.LeasePart{{Resource: "orders/42"}}, Granted: time.Now(), MinHold: f.minHold}
}

func (f fakeLease) Extend(_ context.Context, ttl time.Duration) (lockcore.Lease, error) {
	if f.extend == nil {
		f.unexpected("Extend")
		return lockcore.Lease{}, nil
	}
	return f.extend(f.id, ttl)
}

func (f fakeLease) Release(ctx context.Context) ([]lockcore.LeasePart, error) {
	if f.release == nil {
		f.unexpected("Release")
		return nil, nil
	}
	return nil, f.release(ctx, f.id)
}

func (f fakeLease) Now(context.Context) (lockcore.Lease, error) {
	if f.lease == nil {
		f.unexpected("Lease")
		return lockcore.Lease{}, nil
	}
	return f.lease(f.id)
}

func (f *fake) Inspect(_ context.Context, resource string) (lockcore.LockState, error) {
	if f.inspect == nil {
		f.unexpected("Inspect")
		return lockcore.LockState{}, nil
	}
	return f.inspect(resource)
}

func (f fakeLease) End(context.Context) (lockcore.End, error) {
	if f.endOf == nil {
		f.unexpected("EndOf")
		return lockcore.EndUnknown, nil
	}
	return f.endOf(f.id)
}

func (f *fake) List(_ context.Context, req lockcore.ListRequest) (lockcore.LockPage, error) {
	if f.list == nil {
		f.unexpected("List")
		return lockcore.LockPage{}, nil
	}
	return f.list(req.Prefix, req.Limit, req.Cursor)
}

func (f *fake) Break(_ context.Context, resource string, token fencing.Token) error {
	if f.brk == nil {
		f.unexpected("Break")
		return nil
	}
	return f.brk(resource, token)
}

func (f *fake) Observe(context.Context) lockcore.ClusterStatus { return f.Status() }

func (f *fake) Status() lockcore.ClusterStatus {
	if f.status == nil {
		f.unexpected("Status")
		return lockcore.ClusterStatus{}
	}
	return f.status()
}

func (f *fake) Claim(ctx context.Context, resource string, token fencing.Token) (fencing.Record, error) {
	if f.claim == nil {
		f.unexpected("Claim")
		return fencing.Record{}, nil
	}
	return f.claim(ctx, resource, token)
}

func (f *fake) Write(ctx context.Context, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
	if f.write == nil {
		f.unexpected("Write")
		return fencing.Record{}, nil
	}
	return f.write(ctx, resource, token, value)
}

func (f *fake) Read(_ context.Context, resource string) (fencing.Record, error) {
	if f.read == nil && resource == "fencelock/check" { // of Server.Run
		return fencing.Record{}, fencing.ErrNotFound
	}
	if f.read == nil {
		f.unexpected("Read")
		return fencing.Record{}, nil
	}
	return f.read(resource)
}

func (f *fake) Records(_ context.Context, prefix, after string, limit int) ([]fencing.Record, error) {
	if f.records == nil {
		f.unexpected("Records")
		return nil, nil
	}
	return f.records(prefix, after, limit)
}

func (f *fake) History(_ context.Context, resource string, limit int) ([]fencing.Attempt, error) {
	if f.history == nil {
		f.unexpected("History")
		return nil, nil
	}
	return f.history(resource, limit)
}

func (f *fake) Delete(ctx context.Context, resource string, token fencing.Token) (fencing.Record, error) {
	if f.write == nil {
		f.unexpected("Delete")
		return fencing.Record{}, nil
	}
	return f.write(ctx, resource, token, nil)
}

// Usage is that of an empty guard, unless the test says otherwise.
func (f *fake) Usage(context.Context) (fencing.Usage, error) {
	if f.usage == nil {
		return fencing.Usage{}, nil
	}
	return f.usage(), nil
}

func (f *fake) HighestMark(context.Context) (fencing.Token, error) {
	f.unexpected("HighestMark")
	return 0, nil
}

// logBuffer collects a log that several goroutines write.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// service is an API under test, on a real socket, and its client: everything
// that goes through call is held against openapi.yaml.
type service struct {
	t        *testing.T
	handler  *api.Server
	url      string
	client   *http.Client
	log      *logBuffer
	registry *prometheus.Registry
	named    string // the request id of each request; "" for what the server makes up
}

func newService(t *testing.T, f *fake, change ...func(*api.Options)) *service {
	t.Helper()
	s := &service{t: t, log: &logBuffer{}, registry: prometheus.NewRegistry()}
	text, err := os.ReadFile("../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	opts := api.Options{
		OpenAPI: text,
		Logger:  slog.New(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics: s.registry,
		Events:  events.NewHub(),
	}
	if f != nil {
		f.t = t
		opts.Service, opts.Guard = f, f
	}
	for _, c := range change {
		c(&opts)
	}
	server := httptest.NewUnstartedServer(nil)
	s.handler = api.New(opts)
	server.Config.Handler = s.handler
	server.Config.ConnContext = edge.ConnContext
	server.Config.ReadHeaderTimeout = 10 * time.Second
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	s.url = server.URL
	s.client = &http.Client{Transport: &contractTransport{t: t, contract: loadContract(t), next: server.Client().Transport}}
	return s
}

// answered is a response, read.
type answered struct {
	t      *testing.T
	status int
	header http.Header
	body   string
}

// call sends a request; header lines are "Name: value".
func (s *service) call(method, path, body string, header ...string) answered {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if s.named != "" {
		req.Header.Set(wire.HeaderRequestID, s.named)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		if name == "Content-Type" {
			req.Header.Del(name)
		}
		req.Header.Add(name, value)
	}
	return s.do(req)
}

// breaks ends whatever lease holds the resource.
func (s *service) breaks(resource string, header ...string) answered {
	s.t.Helper()
	return s.call("POST", "/breaks", fmt.Sprintf(`{"resource":%q,"any":true}`, resource), header...)
}

func (s *service) do(req *http.Request) answered {
	s.t.Helper()
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answered{t: s.t, status: resp.StatusCode, header: resp.Header, body: string(text)}
}

func (a answered) wants(status int) answered {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

// problem wants a problem of this type and returns it.
func (a answered) problem(slug string) wire.Problem {
	a.t.Helper()
	var p wire.Problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		a.t.Fatalf("%d %q is no problem: %v", a.status, a.body, err)
	}
	if p.Type != wire.ProblemPrefix+slug || p.Status != a.status || a.header.Get("Content-Type") != wire.TypeProblem {
		a.t.Fatalf("%d %s, want the problem %s: %s", a.status, a.header.Get("Content-Type"), slug, a.body)
	}
	return p
}

// refusedField wants an invalid-request problem about the field.
func (a answered) refusedField(field string) {
	a.t.Helper()
	if p := a.wants(http.StatusBadRequest).problem("invalid-request"); p.Field != field || p.Detail == "" {
		a.t.Fatalf("field %q, want %q: %s", p.Field, field, a.body)
	}
}

// decode reads a body.
func decode[T any](a answered) (v T) {
	a.t.Helper()
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		a.t.Fatalf("%s: %v", a.body, err)
	}
	return v
}

// want fails unless the two are equal.
func want[T comparable](t *testing.T, what string, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Errorf("%s is %v, want %v", what, got, wanted)
	}
}
