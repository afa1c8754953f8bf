package clienttest_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/lockcore"
)

// always grants, at once: what is measured is what a request costs the client and the server.
type always struct{ lockcore.Service }

func (always) Limits() lockcore.Limits { return lockcore.Limits{}.WithDefaults() }

func (always) Acquire(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
	return lockcore.Lease{Resource: req.Resource, ID: "AYFqX3kfbB0sZ8Jp2i5cVxw0m9QeIoDw3gZvcmRlcnMvNDI" + req.Resource, Token: 7, TTL: req.TTL, Validity: req.TTL}, nil
}

func (always) Open(_ context.Context, _ lockcore.Caller, id string) (lockcore.OpenedLease, error) {
	return anyLease{id: id}, nil
}

// anyLease is released at once.
type anyLease struct {
	lockcore.OpenedLease
	id string
}

func (anyLease) Release(context.Context) ([]lockcore.LeasePart, error) { return nil, nil }

func (l anyLease) Terms() lockcore.LeaseTerms {
	return lockcore.LeaseTerms{Parts: []lockcore.LeasePart{{Resource: l.id}}}
}

// BenchmarkCallers is what a pair costs with many callers of one client, server included: processor time, which
// other programs on the machine change little, and time.
func BenchmarkCallers(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		for name, after := range map[string]int{"single": -1, "batches": 2} {
			b.Run(fmt.Sprintf("%d/%s", callers, name), func(b *testing.B) {
				server := httptest.NewServer(api.New(api.Options{Service: always{}, Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler), Events: events.NewHub()}))
				defer server.Close()
				c, err := client.New([]string{server.URL}, client.WithBatchAfter(after))
				if err != nil {
					b.Fatal(err)
				}
				crowd(b, c, callers, callers*20) // dials
				before := processorTime()
				b.ResetTimer()
				crowd(b, c, callers, b.N)
				b.ReportMetric(float64((processorTime()-before).Microseconds())/float64(b.N), "cpu-µs/pair")
			})
		}
	}
}

// crowd has so many callers make so many pairs.
func crowd(b *testing.B, c *client.Client, callers, pairs int) {
	b.Helper()
	var done atomic.Int64
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			resource := fmt.Sprint("orders/", i)
			for done.Add(1) <= int64(pairs) {
				l, err := c.TryAcquire(b.Context(), resource, client.TTL(10*time.Second))
				if err == nil {
					err = l.Release(b.Context())
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func processorTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		panic(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
