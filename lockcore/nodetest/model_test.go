package nodetest_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/nodetest"
)

func TestModel(t *testing.T) {
	nodetest.Run(t, func(*testing.T) nodetest.Harness {
		var now atomic.Int64
		const counterTTL = time.Hour
		m := nodetest.NewModel(nodetest.ModelOptions{
			Now:        func() time.Time { return time.Unix(1_800_000_000, now.Load()) },
			CounterTTL: counterTTL,
		})
		return nodetest.Harness{
			Node:       m,
			Advance:    func(d time.Duration) { now.Add(int64(d)) },
			Restart:    func() { m.Restart(true) },
			Wipe:       m.Wipe,
			CounterTTL: counterTTL,
		}
	})
}
