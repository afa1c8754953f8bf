package pgstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/replica"
)

func BenchmarkPair(b *testing.B) {
	pg := testenv.StartPostgres(b)
	store := openStore(b, pg.OwnerURL(), Options{Timeout: time.Minute})
	engine, err := replica.New(b.Context(), "postgres", store, replica.Options{Bootstrap: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = engine.Close() })
	locker, err := redlock.New(redlock.Config{NodeTimeout: 5 * time.Second, DefaultTTL: time.Minute}, []node.Node{engine})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = locker.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-stopped })
	testenv.Eventually(b, 20*time.Second, func() error {
		lease, err := locker.Acquire(ctx, lockcore.AcquireRequest{Resource: "x"})
		if err == nil {
			err = locker.Release(ctx, lease.ID)
		}
		return err
	})
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			b.SetParallelism(max(callers/2, 1))
			var worker, failed atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				resource := fmt.Sprintf("bench/%d", worker.Add(1))
				for pb.Next() {
					lease, err := locker.Acquire(ctx, lockcore.AcquireRequest{Resource: resource})
					if err == nil {
						err = locker.Release(ctx, lease.ID)
					}
					if err != nil {
						failed.Add(1)
						b.Log(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
			b.ReportMetric(float64(failed.Load()), "failed")
		})
	}
}
