package pgstore

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
	testenv.Soak(t, "what 100,000 leases cost in Postgres, and leave behind")
	url := testenv.StartPostgres(t).OwnerURL()
	store := openStore(t, url, Options{Timeout: 20 * time.Second})
	node := nodetest.Over(t, store, replica.Options{Rules: replica.Rules{CounterTTL: 10 * time.Second}, Bootstrap: true})
	rows := func() int { return query[int](t, url, `SELECT count(*) FROM fencelock.rows`) }
	disk := func() int64 { return query[int64](t, url, `SELECT pg_total_relation_size('fencelock.rows')`) }
	report := crowdtest.Report{T: t, Engine: "Postgres", Usage: func() (string, int64) {
		return fmt.Sprintf("%d rows of %.1f MB in Postgres", rows(), float64(disk())/1e6), disk()
	}}
	var most int64
	crowdtest.Run(t, crowdtest.Start(t, node), report, func() { most = disk() })
	testenv.Eventually(t, 2*time.Minute, func() error {
		if rows := rows(); rows > 100 {
			return fmt.Errorf("%d rows stay", rows)
		}
		return nil
	})
	report.Log("ended")
	execSQL(t, url, `VACUUM fencelock.rows`) // as autovacuum does
	report.Log("vacuumed")
	if left := disk(); left > most/2 { // the last page has a living row: VACUUM cuts off only what is behind it
		testenv.Eventually(t, 20*time.Second, func() error { // but all of it can be written again
			if dead := query[int64](t, url, deadRows); dead > 100 {
				return fmt.Errorf("%d bytes stay of %d, with %d dead rows", left, most, dead)
			}
			return nil
		})
	}
}

const deadRows = `SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'fencelock.rows'::regclass`
