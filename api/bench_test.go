package api_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/lockcore"
)

func BenchmarkDecodeAcquire(b *testing.B) {
	for name, body := range map[string]string{
		"short": `{"resource":"orders/42"}`,
		"full":  `{"resource":"orders/42","ttl_ms":10000,"wait_ms":0,"holder":"worker-7","metadata":{"job":1234}}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := api.DecodeAcquire([]byte(body), limits); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// discard is a response writer that costs nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) WriteHeader(int)             {}
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) FlushError() error           { return nil }

func (d discard) SetReadDeadline(time.Time) error  { return nil }
func (d discard) SetWriteDeadline(time.Time) error { return nil }

// BenchmarkAcquireHandler is the way of a request through router, middleware,
// checks and encoding, without the network and without a Locker: alone, with a bearer
// token to be looked up among a thousand and a rule to be found, and with every span
// sampled and exported to nowhere.
func BenchmarkAcquireHandler(b *testing.B) {
	options := func() api.Options {
		return api.Options{Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Events: events.NewHub()}
	}
	b.Run("alone", func(b *testing.B) { benchmarkAcquire(b, options(), "") })
	b.Run("access", func(b *testing.B) {
		lines := make([]string, 1000)
		for i := range lines {
			lines[i] = line(fmt.Sprintf("worker-%d", i), "acquire=orders/ read=*")
		}
		opts := options()
		withAccess(b, lines...)(&opts)
		benchmarkAcquire(b, opts, "Bearer secret-of-worker-500")
	})
	b.Run("traced", func(b *testing.B) {
		provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(tracetest.NewNoopExporter()))
		b.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
		opts := options()
		opts.Tracer = provider.Tracer("bench")
		benchmarkAcquire(b, opts, "")
	})
}

func benchmarkAcquire(b *testing.B, opts api.Options, authorization string) {
	b.Helper()
	opts.Service = &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		return grant(req.Resource), nil
	}}
	handler := api.New(opts)
	body := strings.NewReader(`{"resource":"orders/42","ttl_ms":10000}`)
	req := httptest.NewRequest(http.MethodPost, "/locks", nil)
	req.Header.Set("Content-Type", "application/json")
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	req.ContentLength = body.Size()
	b.ReportAllocs()
	for b.Loop() {
		body.Reset(`{"resource":"orders/42","ttl_ms":10000}`)
		req.Body = io.NopCloser(body)
		handler.ServeHTTP(discard{header: http.Header{}}, req)
	}
}
