package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// collection receives traces by OTLP over HTTP, as a collector does.
type collection struct {
	mu    sync.Mutex
	spans []*traces.Span
	raw   bytes.Buffer
	names map[string]bool // of the services
}

func (c *collection) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &req) != nil {
		http.Error(w, "unreadable", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.Write(body)
	for _, resource := range req.GetResourceSpans() {
		c.names[attributeOf(resource.GetResource().GetAttributes(), "service.name")] = true
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	w.WriteHeader(http.StatusOK)
}

func attributeOf(attributes []*common.KeyValue, key string) string {
	for _, a := range attributes {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// named returns the spans of a trace that have the name.
func (c *collection) named(name string) (found []*traces.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, span := range c.spans {
		if span.GetName() == name {
			found = append(found, span)
		}
	}
	return found
}

const parentTrace = "4bf92f3577b34da6a3ce929d0e0e4736"

func TestTraces(t *testing.T) {
	testenv.Long(t, "a span that a collector does not get")
	t.Parallel()
	c := &collection{names: map[string]bool{}}
	server := httptest.NewServer(c)
	defer server.Close()
	redis := testenv.StartRedisN(t, 3)
	p := start(t,
		"FENCELOCK_REDIS_ADDRS="+redis[0].Addr()+","+redis[1].Addr()+","+redis[2].Addr(), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=1s",
		"FENCELOCK_TRACING=otlp", "OTEL_EXPORTER_OTLP_ENDPOINT="+server.URL, "OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_SERVICE_NAME=locks-of-test")
	parent := "Traceparent: 00-" + parentTrace + "-00f067aa0ba902b7-01"
	var lease, waited wire.Lease
	p.wants(p.ask(&lease, "POST", "/locks", `{"resource":"orders/42","ttl_ms":3000}`, parent, "Idempotency-Key: key-of-mine"), http.StatusCreated)
	p.wants(p.ask(nil, "POST", "/leases/current/extend", `{"ttl_ms":2000}`, parent, "Fencelock-Lease: "+lease.LeaseID), http.StatusOK)
	p.wants(p.ask(&waited, "POST", "/locks", `{"resource":"orders/42","wait_ms":20000}`, parent), http.StatusCreated)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", parent, "Fencelock-Lease: "+waited.LeaseID), http.StatusNoContent)

	p.until("all spans have come", func() bool {
		return len(c.named("acquire")) == 2 && len(c.named("POST /locks")) == 2 &&
			len(c.named("POST /leases/current/extend")) == 1 && len(c.named("DELETE /leases/current")) == 1
	})
	for _, span := range append(c.named("acquire"), c.named("POST /locks")...) {
		if id := string(span.GetTraceId()); id != string([]byte{0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36}) {
			t.Errorf("%s is in the trace %x", span.GetName(), id)
		}
	}
	parents := map[string]bool{}
	for _, span := range c.named("POST /locks") {
		parents[string(span.GetSpanId())] = true
	}
	for _, span := range c.named("acquire") {
		if !parents[string(span.GetParentSpanId())] {
			t.Errorf("an acquire is not a child of its request")
		}
		if got := attributeOf(span.GetAttributes(), "fencelock.outcome"); got != "granted" {
			t.Errorf("outcome %q", got)
		}
		granted := 0
		for _, event := range span.GetEvents() {
			if event.GetName() == "vote" && attributeOf(event.GetAttributes(), "fencelock.answer") == "granted" && attributeOf(event.GetAttributes(), "fencelock.node") != "" {
				granted++
			}
		}
		if granted < 2 {
			t.Errorf("%d granted votes in %v", granted, span.GetEvents())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.names["locks-of-test"] {
		t.Errorf("services %v", c.names)
	}
	noSecrets(t, "the traces", c.raw.String(), []string{lease.LeaseID, waited.LeaseID, "key-of-mine"})
}

// A collector that is down must not disturb the service, nor delay its end.
func TestTracingWithoutACollector(t *testing.T) {
	t.Parallel()
	p := start(t, "FENCELOCK_TRACING=otlp", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY=20")
	p.untilReady()
	lease := p.acquire(`{"resource":"a"}`)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID), http.StatusNoContent)
	p.until("the log says so", func() bool { return strings.Contains(p.Logs(), `"msg":"tracing failed: spans may be lost"`) })
}

func TestNoTracesUnlessAskedFor(t *testing.T) {
	t.Parallel()
	c := &collection{names: map[string]bool{}}
	server := httptest.NewServer(c)
	defer server.Close()
	p := start(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+server.URL, "OTEL_BSP_SCHEDULE_DELAY=1")
	lease := p.acquire(`{"resource":"a"}`)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID), http.StatusNoContent)
	p.Signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.spans) > 0 {
		t.Errorf("%d spans", len(c.spans))
	}
}
