package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// batchOf is the body of a batch of these operations.
func batchOf(operations ...string) string {
	return `{"operations":[` + strings.Join(operations, ",") + `]}`
}

func acquireOf(resource, more string) string {
	return fmt.Sprintf(`{"operation":"acquire","body":{"resource":%q}%s}`, resource, more)
}

// batch sends operations and gives their results.
func (s *service) batch(operations []string, header ...string) []wire.BatchResult {
	s.t.Helper()
	results := decode[wire.BatchResults](s.call("POST", "/locks/batch", batchOf(operations...), header...).wants(http.StatusOK)).Results
	if len(results) != len(operations) {
		s.t.Fatalf("%d results of %d operations", len(results), len(operations))
	}
	return results
}

// wantResults compares the results' statuses and, of refusals, the types.
func wantResults(t *testing.T, results []wire.BatchResult, want ...string) {
	t.Helper()
	got := make([]string, len(results))
	for i, r := range results {
		got[i] = fmt.Sprint(r.Status)
		if r.Status >= http.StatusBadRequest {
			var p wire.Problem
			if err := json.Unmarshal(r.Body, &p); err != nil || p.Status != r.Status {
				t.Fatalf("%d %s: %v", r.Status, r.Body, err)
			}
			got[i] += " " + strings.TrimPrefix(p.Type, wire.ProblemPrefix)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("results %q, want %q", got, want)
	}
}

// Each operation has the outcome of the single request, in the order of the request.
func TestBatch(t *testing.T) {
	s := newService(t, &fake{
		acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
			switch req.Resource {
			case "held":
				return lockcore.Lease{}, &lockcore.HeldError{Resource: "held", Remaining: 3 * time.Second}
			case "panics":
				panic("on purpose")
			}
			return grant(req.Resource), nil
		},
		extend: func(_ string, ttl time.Duration) (lockcore.Lease, error) {
			lease := grant("orders/42")
			lease.TTL = ttl
			return lease, nil
		},
		release: func(_ context.Context, id string) error {
			if id == "gone" {
				return lockcore.ErrNotHeld
			}
			return nil
		},
	})
	results := s.batch([]string{
		acquireOf("a", `,"idempotency_key":"k-1"`),
		acquireOf("held", ""),
		`{"operation":"extend","lease_id":"` + leaseID + `","body":{"ttl_ms":7000}}`,
		`{"operation":"extend","lease_id":"` + leaseID + `"}`,
		`{"operation":"release","lease_id":"` + leaseID + `"}`,
		`{"operation":"release","lease_id":"gone"}`,
		`{"operation":"release"}`,
		`{"operation":"acquire"}`,
		`{"operation":"acquire","body":{"resource":"w","wait_ms":1}}`,
		`{"operation":"acquire","body":{"resource":"w","unknown":1}}`,
		acquireOf("b", `,"idempotency_key":"has space"`),
		acquireOf("panics", ""),
	}, "X-Request-Id: checkout-7")
	wantResults(t, results, "201", "409 lock-held", "200", "200", "204", "404 lease-not-held", "400 invalid-request",
		"400 invalid-request", "400 invalid-request", "400 invalid-request", "400 invalid-request", "500 internal-error")
	single := s.call("POST", "/locks", `{"resource":"a"}`).wants(http.StatusCreated)
	want(t, "the grant", string(results[0].Body), strings.TrimSpace(single.body))
	want(t, "seconds to wait", results[1].RetryAfterS, 3)
	var extended wire.Lease
	if err := json.Unmarshal(results[2].Body, &extended); err != nil || extended.TTLMS != 7000 {
		t.Errorf("extended %s: %v", results[2].Body, err)
	}
	want(t, "a release's body", len(results[4].Body), 0)
	if n := strings.Count(s.log.String(), `"request_id":"checkout-7"`); n < 13 {
		t.Errorf("the log has %d lines of the batch's request id, want one for each operation and one for the batch", n)
	}
	for route, n := range map[string]float64{"POST /locks/batch": 1, "POST /locks": 8, "POST /leases/current/extend": 2, "DELETE /leases/current": 3} {
		eventually(t, "every request of "+route+" is counted", func() bool { return counted(t, s.registry, route) == n }) // the last after its answer
	}
}

// counted is how many requests of a route were counted.
func counted(t *testing.T, registry *prometheus.Registry, route string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "fencelock_http_requests_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := make(map[string]string)
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["method"]+" "+labels["route"] == route {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// A key belongs to its operation alone.
func TestBatchHasAKeyForEach(t *testing.T) {
	var mu sync.Mutex
	keys := make(map[string]string)
	s := newService(t, &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		mu.Lock()
		defer mu.Unlock()
		keys[req.Resource] = req.IdempotencyKey
		return grant(req.Resource), nil
	}})
	var operations []string
	for i := range api.MaxBatch {
		operations = append(operations, acquireOf(fmt.Sprint("r", i), fmt.Sprintf(`,"idempotency_key":"k%d"`, i)))
	}
	for i, r := range s.batch(operations) {
		var lease wire.Lease
		if err := json.Unmarshal(r.Body, &lease); err != nil || lease.Resource != fmt.Sprint("r", i) {
			t.Errorf("result %d is %s: %v", i, r.Body, err)
		}
		want(t, "key", keys[fmt.Sprint("r", i)], fmt.Sprint("k", i))
	}
}

// What is no batch does nothing: the fake fails the test at any call.
func TestRefusalsOfBatches(t *testing.T) {
	s := newService(t, &fake{})
	refused := func(body, field string, header ...string) {
		t.Helper()
		s.call("POST", "/locks/batch", body, header...).refusedField(field)
	}
	a := acquireOf("a", "")
	refused(``, "body")
	refused(`[]`, "body")
	refused(`{}`, "operations")
	refused(batchOf(), "operations")
	refused(`{"operations":1}`, "operations")
	refused(`{"operations":[1]}`, "operations")
	refused(batchOf(a, `{"operation":"break"}`), "operations")
	refused(batchOf(a, `{"operation":"release","lease_id":"x","body":{}}`), "operations")
	refused(batchOf(a, `{"operation":"release","lease_id":"x","idempotency_key":"k"}`), "operations")
	refused(batchOf(a, acquireOf("b", `,"lease_id":"x"`)), "operations")
	refused(batchOf(a, acquireOf("b", `,"unknown":1`)), "unknown")
	refused(batchOf(slices.Repeat([]string{a}, api.MaxBatch+1)...), "operations")
	refused(batchOf(a), "Idempotency-Key", "Idempotency-Key: k")
	refused(batchOf(a), "Fencelock-Lease", "Fencelock-Lease: x")
	s.call("POST", "/locks/batch", batchOf(a), "Content-Type: text/plain").wants(http.StatusUnsupportedMediaType).problem("unsupported-media-type")
	s.call("POST", "/locks/batch", batchOf(acquireOf(strings.Repeat("a", api.MaxBodyBytes), ""))).wants(http.StatusRequestEntityTooLarge).problem("body-too-large")
}

// A resource may be called batch.
func TestAResourceCalledBatch(t *testing.T) {
	s := newService(t, &fake{inspect: func(resource string) (lockcore.LockState, error) {
		return lockcore.LockState{Resource: resource}, nil
	}})
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/locks/batch", nil))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"resource":"batch"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Rights and limits hold for each operation.
func TestRightsAndLimitsInABatch(t *testing.T) {
	var mu sync.Mutex
	n := 0
	s := newService(t, &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		mu.Lock()
		defer mu.Unlock()
		n++
		lease := grant(req.Resource)
		lease.ID += fmt.Sprint(n)
		return lease, nil
	}}, withAccess(t, line("w", "acquire=a/"), line("holder", "acquire=* held=2"), line("slow", "acquire=* requests=0.01")))
	wantResults(t, s.batch([]string{acquireOf("a/1", ""), acquireOf("b/1", ""), acquireOf("a/2", "")}, bearer("w")),
		"201", "403 forbidden", "201")
	tally := func(name string, operations int) map[int]int {
		t.Helper()
		of := make(map[int]int)
		for _, r := range s.batch(slices.Repeat([]string{acquireOf("a/1", "")}, operations), bearer(name)) {
			of[r.Status]++
		}
		return of
	}
	if of := tally("holder", 5); of[http.StatusCreated] != 2 || of[http.StatusTooManyRequests] != 3 {
		t.Errorf("five acquires with held=2: %v", of)
	}
	if of := tally("slow", 10); of[http.StatusCreated] != 1 || of[http.StatusTooManyRequests] != 9 {
		t.Errorf("ten operations with requests=0.01, which allows one at once: %v", of)
	}
	s.call("POST", "/locks/batch", batchOf(acquireOf("a/1", "")), bearer("slow")).wants(http.StatusTooManyRequests).problem("request-limit")
}

// unreadable is a writer whose caller takes no answer.
type unreadable struct{ header http.Header }

func (w unreadable) Header() http.Header       { return w.header }
func (w unreadable) WriteHeader(int)           {}
func (w unreadable) Write([]byte) (int, error) { return 0, errors.New("the caller is gone") }

// unsent is a writer that takes an answer and cannot send it.
type unsent struct{ unreadable }

func (w unsent) Write(p []byte) (int, error) { return len(p), nil }
func (w unsent) FlushError() error           { return errors.New("the caller is gone") }

// What was granted in an answer that does not arrive is released, except under a key, as
// for single requests: when the answer cannot be written or sent, and when the caller leaves
// while another operation is under way.
func TestUnreadGrantsOfABatchAreReleased(t *testing.T) {
	gone := unreadable{make(http.Header)}
	for name, w := range map[string]http.ResponseWriter{"the answer cannot be written": gone, "it cannot be sent": unsent{gone}, "the caller leaves": nil} {
		t.Run(name, func(t *testing.T) {
			leaves := w == nil
			if leaves {
				w = gone
			}
			var mu sync.Mutex
			var released []string
			var granted sync.WaitGroup
			granted.Add(2)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			s := newService(t, &fake{
				acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
					if req.Resource == "last" {
						granted.Wait()
						if leaves {
							leave()
						}
						return lockcore.Lease{}, lockcore.ErrHeld
					}
					defer granted.Done()
					lease := grant(req.Resource)
					lease.ID = "lease-of-" + req.Resource
					return lease, nil
				},
				release: func(_ context.Context, id string) error {
					mu.Lock()
					defer mu.Unlock()
					released = append(released, id)
					return nil
				},
			})
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/locks/batch", strings.NewReader(
				batchOf(acquireOf("keyed", `,"idempotency_key":"k"`), acquireOf("unkeyed", ""), acquireOf("last", ""))))
			r.Header.Set("Content-Type", "application/json")
			func() {
				defer func() {
					if cause := recover(); cause != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
						t.Errorf("the handler ended with %v, want the connection cut", cause)
					}
				}()
				s.handler.ServeHTTP(w, r)
			}()
			if !slices.Equal(released, []string{"lease-of-unkeyed"}) {
				t.Errorf("released %q, want the one without a key", released)
			}
		})
	}
}

// Each operation has a span of its own, below the batch's.
func TestTraceOfABatch(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	s := newService(t, &fake{
		acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
			return grant(req.Resource), nil
		},
		release: func(context.Context, string) error { return nil },
	}, func(o *api.Options) { o.Tracer = provider.Tracer("test") })
	s.batch([]string{acquireOf("a", ""), acquireOf("b", ""), `{"operation":"release","lease_id":"x"}`})
	var spans tracetest.SpanStubs
	root := -1
	eventually(t, "the span of the batch, which ends after its answer", func() bool {
		spans = exporter.GetSpans()
		root = slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.Name == "POST /locks/batch" })
		return root >= 0
	})
	of := make(map[string]int)
	for _, span := range spans {
		if span.Parent.SpanID() == spans[root].SpanContext.SpanID() {
			of[span.Name]++
		}
	}
	if of["POST /locks"] != 2 || of["DELETE /leases/current"] != 1 {
		t.Errorf("below the batch's span: %v", of)
	}
}

// On a real node: leases of a batch are found again by their keys, stay held against a
// second batch, and end by a third.
func TestBatchOnANode(t *testing.T) {
	const n = 100
	s := newRealService(t)
	take := func(key string) (results []wire.BatchResult, releases []string) {
		var operations []string
		for i := range n {
			operations = append(operations, acquireOf(fmt.Sprint("r", i), fmt.Sprintf(`,"idempotency_key":"%s-%d"`, key, i)))
		}
		results = s.batch(operations)
		for _, r := range results {
			var lease wire.Lease
			if err := json.Unmarshal(r.Body, &lease); err != nil {
				t.Fatal(err)
			}
			releases = append(releases, fmt.Sprintf(`{"operation":"release","lease_id":%q}`, lease.LeaseID))
		}
		return results, releases
	}
	all := func(status string) []string { return slices.Repeat([]string{status}, n) }
	first, releases := take("one")
	wantResults(t, first, all("201")...)
	again, same := take("one")
	wantResults(t, again, all("200")...)
	if !slices.Equal(same, releases) {
		t.Error("a repeated batch has other leases")
	}
	held, _ := take("two")
	wantResults(t, held, all("409 lock-held")...)
	wantResults(t, s.batch(releases), all("204")...)
	wantResults(t, s.batch(releases), all("404 lease-not-held")...)
	freed, _ := take("two")
	wantResults(t, freed, all("201")...)
}

// A batch has 128 requests, and a connection a hundred batches: those of one caller run some
// at a time, and leave room for another's.
func TestBatchesOfOneCallerLeaveRoom(t *testing.T) {
	const most = 512 // operations of a caller
	var running, peak atomic.Int64
	begun, end := make(chan struct{}, 2*most), make(chan struct{})
	s := newService(t, &fake{acquire: func(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
		if strings.HasPrefix(req.Resource, "other/") {
			return grant(req.Resource), nil
		}
		now := running.Add(1)
		defer running.Add(-1)
		for before := peak.Load(); now > before && !peak.CompareAndSwap(before, now); before = peak.Load() {
		}
		begun <- struct{}{}
		select {
		case <-end:
		case <-ctx.Done():
		}
		return grant(req.Resource), nil
	}}, withAccess(t, line("w", "acquire=*"), line("other", "acquire=other/")))
	batch := func(prefix string) []string {
		operations := make([]string, api.MaxBatch)
		for i := range operations {
			operations[i] = acquireOf(fmt.Sprint(prefix, i), "")
		}
		return operations
	}
	var flood sync.WaitGroup
	for i := range 2 * most / api.MaxBatch {
		flood.Go(func() { s.batch(batch(fmt.Sprintf("%d/", i)), bearer("w")) })
	}
	for range most {
		await(t, "it runs", begun)
	}
	for _, result := range s.batch(batch("other/"), bearer("other")) {
		want(t, "another caller's status", result.Status, http.StatusCreated)
	}
	close(end)
	flood.Wait()
	want(t, "the most at a time", peak.Load(), int64(most))
}
