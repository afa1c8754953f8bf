package redisnode_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"context"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/storage/redisnode"
	"time"
)

// BenchmarkPair measures acquire and release, in process, over five Redis.
func BenchmarkPair(b *testing.B) {
	servers := testenv.StartRedisN(b, 5)
	nodes := make([]lockcore.Node, len(servers))
	for i, s := range servers {
		node, err := redisnode.Open(s.Addr(), redisnode.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = node.Close() })
		nodes[i] = node
	}
	locker, err := lockcore.New(nodes, lockcore.Config{New: true})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = locker.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-stopped })
	testenv.Eventually(b, 10*time.Second, func() error {
		if s := locker.Status(); s.Voting < 5 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			b.ReportAllocs()
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
