package main

import (
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// TestGuardThatPostgresRefuses uses a database in SQL_ASCII, which the guard refuses. The log of the start, /readyz
// and the metrics say so before any request for a record comes, and the server stays ready for locks.
func TestGuardThatPostgresRefuses(t *testing.T) {
	testenv.Long(t, "a guard without rights that is not named")
	t.Parallel()
	pg := testenv.Postgres(t)
	conn, err := pgx.Connect(t.Context(), pg.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	name := fmt.Sprintf("ascii_%d", testenv.FreePort(t))
	if _, err := conn.Exec(t.Context(), `CREATE DATABASE `+name+` ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0`); err != nil {
		t.Fatal(err)
	}
	database, err := url.Parse(pg.URL())
	if err != nil {
		t.Fatal(err)
	}
	database.Path = "/" + name
	p := start(t, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "data"), "FENCELOCK_DATABASE_URL="+database.String())
	const why = "this one is in SQL_ASCII"
	p.until("the log says that guarded records are not served", func() bool {
		return strings.Contains(p.Logs(), "guarded records are not served") && strings.Contains(p.Logs(), why)
	})
	var ready wire.Ready
	p.wants(p.ask(&ready, "GET", "/readyz", ""), http.StatusOK)
	if !ready.Ready || ready.Guard == nil || ready.Guard.Ready || !strings.Contains(ready.Guard.Reason, why) {
		t.Errorf("/readyz: %+v, guard %+v", ready, ready.Guard)
	}
	scraped := p.scrape()
	if !strings.Contains(scraped, "\nfencelock_guard_up 0\n") || strings.Contains(scraped, "\nfencelock_guard_errors_total{kind=\"refused\"} 0\n") {
		t.Errorf("the metrics do not show the guard that is down")
	}
	lease := p.acquire(`{"resource":"orders/42"}`)
	p.wants(p.ask(nil, "POST", "/guarded/orders/42", "", fmt.Sprintf("Fencing-Token: %d", lease.FencingToken)), http.StatusServiceUnavailable)
	testAlerts(t, `
  - interval: 15s
    input_series:
      - {series: 'fencelock_guard_up{instance="a"}', values: '1x4 0x8'}
    alert_rule_test:
      - {eval_time: 1m, alertname: FencelockGuardDown}
      - eval_time: 2m30s
        alertname: FencelockGuardDown
        exp_alerts:
          - exp_labels: {severity: critical, instance: a}
            exp_annotations:
              summary: "a cannot serve guarded records"
              description: The storage of the guarded records fails or refuses, so claims and writes get 503. Locks are not affected.
              runbook_url: docs/how-to/runbook.md#fencelockguarddown
`)
}

// TestFailingPostgresIsLoggedOnce sends twenty writes while Postgres is killed. The log has one line about it, which
// counts the earlier failures, and the records are there again afterwards.
func TestFailingPostgresIsLoggedOnce(t *testing.T) {
	testenv.Long(t, "a log that a Postgres which fails fills")
	t.Parallel()
	pg := testenv.StartPostgres(t)
	p := start(t, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "data"), "FENCELOCK_DATABASE_URL="+pg.URL())
	p.untilAnswer(http.StatusOK, "PUT", "/guarded/a", "1", "Fencing-Token: 1")
	p.until("the guard is up", func() bool { return strings.Contains(p.scrape(), "\nfencelock_guard_up 1\n") })
	pg.Kill()
	for range 20 {
		p.wants(p.ask(nil, "PUT", "/guarded/a", "2", "Fencing-Token: 1"), http.StatusServiceUnavailable)
	}
	scraped := p.scrape()
	if !strings.Contains(scraped, "\nfencelock_guard_up 0\n") || strings.Contains(scraped, "\nfencelock_guard_errors_total{kind=\"unreachable\"} 0\n") {
		t.Errorf("the metrics do not show the guard that is down")
	}
	if lines := strings.Count(p.Logs(), `"level":"WARN"`); lines < 1 || lines > 3 { // a line in ten seconds
		t.Errorf("%d warnings: %s", lines, p.Logs())
	}
	pg.Restart()
	p.untilAnswer(http.StatusOK, "PUT", "/guarded/a", "3", "Fencing-Token: 1")
	p.until("the guard is up again", func() bool { return strings.Contains(p.scrape(), "\nfencelock_guard_up 1\n") })
}
