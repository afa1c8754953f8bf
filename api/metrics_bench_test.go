package api

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/lockcore"
)

// noLeases grants at once.
type noLeases struct{ Leases }

func (noLeases) Acquire(context.Context, lockcore.AcquireRequest) (lockcore.Lease, error) {
	return lockcore.Lease{Resource: "r", ID: "AYFqX3kfbB0sZ8Jp2i5cVxw0m9QeIoDw3gZvcmRlcnMvNDI", Token: 1, TTL: time.Minute}, nil
}

func (noLeases) Release(context.Context, string) error { return nil }

// What counting adds to an acquire and its release.
func BenchmarkMeasuring(b *testing.B) {
	registry := prometheus.NewRegistry()
	m := newLockMetrics(registry, []string{"orders/", "carts/"})
	leases := &measuredLeases{Leases: noLeases{}, m: m, held: newLedger(m, nil, registry)}
	b.ReportAllocs()
	for b.Loop() {
		lease, _ := leases.Acquire(b.Context(), lockcore.AcquireRequest{Resource: "x"})
		_ = leases.Release(b.Context(), lease.ID)
	}
}
