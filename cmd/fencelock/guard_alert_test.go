package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
)

// TestAlertOfARealTable: stale claims and writes of a user's own table, in transactions that are rolled back, are
// counted by the metric and fire the alert.
func TestAlertOfARealTable(t *testing.T) {
	testenv.Long(t, "an alert of the guard that a real table does not fire")
	t.Parallel()
	pg := testenv.Postgres(t)
	p := start(t, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "data"), "FENCELOCK_DATABASE_URL="+pg.OwnerURL())
	refused := regexp.MustCompile(`\nfencelock_stale_writes_refused_total\{operation="table"\} (\d+)\n`)
	count := func() (value string) {
		t.Helper()
		p.until("the guard's count is in the metrics", func() bool {
			found := refused.FindStringSubmatch(p.scrape())
			if found != nil {
				value = found[1]
			}
			return found != nil
		})
		return value
	}
	before := count()
	conn, err := pgx.Connect(t.Context(), pg.OwnerURL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	for _, sql := range []string{
		`CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL DEFAULT 0)`,
		`INSERT INTO accounts VALUES (1)`,
		`SELECT fencing.protect('accounts', $$'accounts/' || id$$)`,
		`SELECT fencing.claim('accounts/1', 34)`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if accepted := count(); accepted != before {
		t.Errorf("an accepted claim changed the count from %s to %s", before, accepted)
	}
	for _, sql := range []string{
		`SELECT fencing.claim('accounts/1', 33)`,
		`UPDATE accounts SET balance = -1 WHERE id = 1 AND fencing.present('accounts/1', 33) <> ''`,
	} {
		if _, err := conn.Exec(t.Context(), `BEGIN; `+sql); err == nil {
			t.Errorf("%s went through", sql)
		}
		if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
			t.Fatal(err)
		}
	}
	after := count()
	if before != "0" || after != "2" {
		t.Errorf("the count was %s and is %s, want 0 and 2", before, after)
	}

	// Two servers report the one count.
	testAlerts(t, fmt.Sprintf(`
  - interval: 1m
    input_series:
      - {series: 'fencelock_stale_writes_refused_total{instance="a", operation="table"}', values: '%[1]sx20 %[2]sx30'}
      - {series: 'fencelock_stale_writes_refused_total{instance="b", operation="table"}', values: '%[1]sx20 %[2]sx30'}
    alert_rule_test:
      - {eval_time: 20m, alertname: FencelockStaleWritesRefused}
      - eval_time: 30m
        alertname: FencelockStaleWritesRefused
        exp_alerts:
          - exp_labels: {severity: warning, operation: table}
            exp_annotations:
              summary: The guard refused a stale token
              description: "%[2]s times in 15 minutes a holder claimed or wrote after its lease had expired and another had the lock. Nothing was lost, but the holder should have stopped."
              runbook_url: docs/how-to/runbook.md#fencelockstalewritesrefused
`, before, after))
}
