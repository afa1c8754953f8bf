package servicetest

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/fencelock/fencelock/lockcore"
)

// BenchmarkPairs measures acquire and release with 1, 16, 64 and 256 callers, each with its own resource. It
// reports pairs per second, and how many failed. measure, if not nil, is called before each measurement, and
// the function that it returns afterwards, to report further metrics.
func BenchmarkPairs(b *testing.B, s lockcore.Service, measure func(b *testing.B) (report func())) {
	b.Helper()
	byID := ByID{s}
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(max(callers/runtime.GOMAXPROCS(0), 1))
			if measure != nil {
				defer measure(b)()
			}
			var worker, failed atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				resource := fmt.Sprintf("bench/%d", worker.Add(1))
				for pb.Next() {
					lease, err := byID.Acquire(b.Context(), lockcore.Request{Resource: resource})
					if err == nil {
						err = byID.Release(b.Context(), lease.ID)
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
