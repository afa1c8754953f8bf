package zkstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/crowdtest"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// TestSoakManyLeases measures the space of 100,000 leases and 10,000 waiters on 100 resources. Little of it stays
// when they have ended.
func TestSoakManyLeases(t *testing.T) {
	testenv.Soak(t, "what 100,000 leases cost in ZooKeeper, and leave behind")
	z := testenv.StartZooKeeper(t, 1, "-Xmx512m")[0]
	opts := patient()
	url := Scheme + z.Addr() + "/fencelock"
	store := openStore(t, url, opts)
	node := nodetest.Over(t, store, replica.Options{Rules: replica.Rules{CounterTTL: 10 * time.Second}, Bootstrap: true})
	report := crowdtest.Report{T: t, Engine: "ZooKeeper", Usage: func() (string, int64) {
		entries, bytes, rows := shape(t, store)
		return fmt.Sprintf("%d rows, %d entries of %.1f MB in ZooKeeper, %.0f MB on disk", rows, entries, float64(bytes)/1e6, float64(z.DiskBytes())/1e6), int64(bytes)
	}}
	crowdtest.Run(t, crowdtest.Start(t, node), report, func() {
		fresh := time.Now()
		if err := openStore(t, url, opts).Close(); err != nil {
			t.Error(err)
		}
		t.Logf("another server has read all after %s", time.Since(fresh).Round(time.Millisecond))
	})
	testenv.Eventually(t, 2*time.Minute, func() error {
		if entries, bytes, rows := shape(t, store); rows > 100 || bytes > 1<<20 {
			return fmt.Errorf("%d rows in %d entries of %d bytes stay", rows, entries, bytes)
		}
		return nil
	})
	report.Log("ended")
}
