package mysqlguardtest_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/mysqlguard"
)

const (
	benchAccounts = 10_000
	benchSlice    = time.Second // of one kind, before the other's turn
)

// BenchmarkGuard measures what a guarded transaction costs, relative to a plain one, on a
// server that syncs to disk. Both take turns, so that whatever else the machine does hits
// both: an iteration is a turn of each, and the ratio is their median.
func BenchmarkGuard(b *testing.B) {
	maria := testenv.StartMariaDB(b, "--innodb-buffer-pool-size=256M", "--innodb-log-file-size=256M")
	if err := mysqlguard.Install(b.Context(), maria.OwnerURL()); err != nil {
		b.Fatal(err)
	}
	db := maria.DB()
	for _, statement := range []string{
		`CREATE TABLE plain (id INT PRIMARY KEY, balance BIGINT NOT NULL DEFAULT 0, filler VARCHAR(80) NOT NULL DEFAULT 'x')`,
		`CREATE TABLE guarded LIKE plain`,
		fmt.Sprintf(`INSERT INTO plain (id) SELECT seq FROM seq_1_to_%d`, benchAccounts),
		`INSERT INTO guarded SELECT * FROM plain`,
		`CALL fencing_protect('guarded', "CONCAT('accounts/', id)", 'strict')`,
		fmt.Sprintf(`SELECT COUNT(fencing_claim(CONCAT('accounts/', seq), 34)) FROM seq_1_to_%d`, benchAccounts),
	} {
		if _, err := db.ExecContext(b.Context(), statement); err != nil {
			b.Fatalf("%s: %v", statement, err)
		}
	}
	for _, clients := range []int{1, 16} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			db.SetMaxOpenConns(clients)
			db.SetMaxIdleConns(clients)
			var plain, guarded, ratios []float64
			for b.Loop() {
				p, g := rate(b, clients, func(id int) error { return plainPayment(db, id) }), rate(b, clients, func(id int) error { return guardedPayment(b, db, id) })
				plain, guarded, ratios = append(plain, p), append(guarded, g), append(ratios, p/g)
			}
			b.ReportMetric(median(plain), "plain/s")
			b.ReportMetric(median(guarded), "guarded/s")
			b.ReportMetric(median(ratios), "times-plain")
		})
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// rate is how many payments a second the clients make together.
func rate(b *testing.B, clients int, pay func(id int) error) float64 {
	b.Helper()
	var wg sync.WaitGroup
	counts := make([]int, clients)
	begun := time.Now()
	for client := range clients {
		wg.Go(func() {
			for time.Since(begun) < benchSlice {
				if err := pay(1 + rand.IntN(benchAccounts)); err != nil && !mysqlguard.MayRetry(err) {
					b.Error(err)
					return
				}
				counts[client]++
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(begun).Seconds()
}

// payment reads and writes a row. Its texts have no arguments, which would cost round trips.
func payment(tx *sql.Tx, table string, id int) error {
	var balance int64
	if err := tx.QueryRow(fmt.Sprintf(`SELECT balance FROM %s WHERE id = %d`, table, id)).Scan(&balance); err != nil {
		return err
	}
	_, err := tx.Exec(fmt.Sprintf(`UPDATE %s SET balance = %d WHERE id = %d`, table, balance+1, id))
	return err
}

func plainPayment(db *sql.DB, id int) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := payment(tx, "plain", id); err != nil {
		return err
	}
	return tx.Commit()
}

func guardedPayment(b *testing.B, db *sql.DB, id int) error {
	b.Helper()
	return mysqlguard.Do(b.Context(), db, fencing.Claim{Resource: fmt.Sprintf("accounts/%d", id), Token: 34}, func(tx *sql.Tx) error { return payment(tx, "guarded", id) })
}
