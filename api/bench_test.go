package api_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

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
				if _, err := api.DecodeAcquire([]byte(body), maxTTL); err != nil {
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

// BenchmarkAcquireHandler is the way of a request through router, middleware,
// checks and encoding, without the network and without a Locker.
func BenchmarkAcquireHandler(b *testing.B) {
	benchmarkAcquire(b, api.Options{MaxTTL: maxTTL, Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Events: events.NewHub()}, "")
}

func benchmarkAcquire(b *testing.B, opts api.Options, authorization string) {
	b.Helper()
	opts.Service = &fake{acquire: func(_ context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
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
