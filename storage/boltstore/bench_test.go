package boltstore

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/replica"
)

func BenchmarkPair(b *testing.B) {
	db, err := bbolt.Open(filepath.Join(b.TempDir(), "x.db"), 0o600, nil)
	if err != nil {
		b.Fatal(err)
	}
	store, err := New(db, Options{})
	if err != nil {
		b.Fatal(err)
	}
	embedded, err := replica.New(b.Context(), "embedded", store, replica.Options{Bootstrap: true, Sole: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = embedded.Close(); _ = store.Close(); _ = db.Close() })
	locker, err := redlock.New(redlock.Config{NodeTimeout: time.Second}, []node.Node{embedded})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = locker.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-stopped })
	for {
		l, err := locker.Acquire(ctx, lockcore.AcquireRequest{Resource: "x"})
		if err == nil {
			_ = locker.Release(ctx, l.ID)
			break
		}
	}
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			b.SetParallelism(callers / 2)
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
