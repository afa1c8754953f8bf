package api

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/lockcore"
)

// noLeases grants at once.
type noLeases struct{ lockcore.Service }

func (noLeases) Acquire(context.Context, lockcore.Request) (lockcore.Lease, error) {
	return lockcore.Lease{Resource: "r", ID: "AYFqX3kfbB0sZ8Jp2i5cVxw0m9QeIoDw3gZvcmRlcnMvNDI", Token: 1, TTL: time.Minute}, nil
}

func (noLeases) Open(context.Context, lockcore.Caller, string) (lockcore.OpenedLease, error) {
	return noLease{}, nil
}

// noLease is released at once.
type noLease struct{ lockcore.OpenedLease }

func (noLease) Release(context.Context) ([]lockcore.LeasePart, error) { return nil, nil }

func (noLease) Terms() lockcore.LeaseTerms { return lockcore.LeaseTerms{} }

// What limits, metrics and the table of live leases add to an acquire and its release.
func BenchmarkLifecycle(b *testing.B) {
	leases := &lifecycle{service: noLeases{}, events: events.NewHub()}
	leases.metrics = newLockMetrics(prometheus.NewRegistry(), []string{"orders/", "carts/"}, leases.live.Held, func() int { return 0 })
	b.ReportAllocs()
	for b.Loop() {
		lease, _ := leases.Acquire(b.Context(), nil, &lockcore.Request{Resource: "x"})
		_, _ = leases.Release(b.Context(), named{id: lease.ID})
	}
}
