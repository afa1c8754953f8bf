package main

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/check"
	"github.com/fencelock/fencelock/internal/testenv"
)

// The service keeps its guarded records in a MariaDB, and counts the writes that a table there refused.
func TestMariaDBGuard(t *testing.T) {
	t.Parallel()
	maria := testenv.MariaDB(t)
	db := maria.DB()
	p := start(t, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "data"), "FENCELOCK_DATABASE_URL="+maria.OwnerURL())
	token := func(n string) string { return "Fencing-Token: " + n }
	p.wants(p.ask(nil, "POST", "/guarded/orders/42", "", token("34")), http.StatusOK)
	p.wants(p.ask(nil, "PUT", "/guarded/orders/42", `{"by":33}`, token("33")), http.StatusPreconditionFailed)
	p.wants(p.ask(nil, "PUT", "/guarded/orders/42", `{"by":34}`, token("34")), http.StatusOK)
	var record struct {
		Value struct{ By int }
	}
	p.wants(p.ask(&record, "GET", "/guarded/orders/42", ""), http.StatusOK)
	if record.Value.By != 34 {
		t.Errorf("the record is %+v", record)
	}
	for _, sql := range []string{`CREATE TABLE accounts (id INT PRIMARY KEY)`, `INSERT INTO accounts VALUES (1)`,
		`CALL fencing_protect('accounts', "CONCAT('accounts/', id)", 'strict')`, `SELECT fencing_claim('accounts/1', 34)`} {
		if _, err := db.ExecContext(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.ExecContext(t.Context(), `SELECT fencing_claim('accounts/1', 33)`); err == nil {
		t.Error("a stale claim went through")
	}
	p.until("the refusal is in the metrics", func() bool {
		return strings.Contains(p.scrape(), "\nfencelock_stale_writes_refused_total{operation=\"table\"} 1\n")
	})
	if out, err := runGuard(t, "status", "--database-url", maria.OwnerURL()); err != nil || !strings.Contains(out, "2 resources, highest mark 34, 1 stale claims refused in all") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := db.ExecContext(t.Context(), `DROP TRIGGER fencing_1_insert`); err != nil {
		t.Fatal(err)
	}
	if out, err := runGuard(t, "status", "-o", "json", "--database-url", maria.OwnerURL()); err == nil || !strings.Contains(out, "triggers are missing") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := runGuard(t, "uninstall", "--yes", "--database-url", maria.OwnerURL()); err != nil {
		t.Error(out, err)
	}
	if _, err := runGuard(t, "status", "--database-url", maria.OwnerURL()); err == nil || !strings.Contains(err.Error(), "fencelock guard install") {
		t.Errorf("status without a guard gives %v", err)
	}
}

// The mariadb client can run the printed SQL, and run it a second time.
func TestMariaDBScript(t *testing.T) {
	t.Parallel()
	maria := testenv.MariaDB(t)
	script, err := runGuard(t, "sql", "--mariadb")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		client := exec.CommandContext(t.Context(), "mariadb", append([]string{"--no-defaults"}, maria.ClientArgs()...)...)
		client.Stdin = strings.NewReader(script)
		if out, err := client.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if out, err := runGuard(t, "install", "--database-url", maria.OwnerURL()); err != nil || !strings.Contains(out, "CALL fencing_protect(") {
		t.Error(out, err)
	}
}

func TestCheckOfAMariaDB(t *testing.T) {
	t.Parallel()
	careless := testenv.StartMariaDB(t, "--innodb-flush-log-at-trx-commit=0", "--log-bin", "--binlog-format=STATEMENT", "--read-only")
	data := "FENCELOCK_DATA=" + filepath.Join(t.TempDir(), "data")
	_, report := checks(t, 1, data, "FENCELOCK_DATABASE_URL="+careless.OwnerURL())
	finds(t, report, check.Wrong, "FENCELOCK_DATABASE_URL", "innodb_flush_log_at_trx_commit")
	finds(t, report, check.Wrong, "FENCELOCK_DATABASE_URL", "STATEMENT")
	finds(t, report, check.Wrong, "FENCELOCK_DATABASE_URL", "read_only")
	if out, err := runGuard(t, "install", "--database-url", careless.OwnerURL()); err == nil || !strings.Contains(err.Error(), "binlog_format") {
		t.Errorf("installed where a replica would break: %v %s", err, out)
	}
	_, report = checks(t, 3, data, "FENCELOCK_DATABASE_URL="+testenv.MariaDB(t).OwnerURL())
	for _, f := range report.Findings {
		if f.Subject == "FENCELOCK_DATABASE_URL" {
			t.Errorf("of a careful one: %+v", f)
		}
	}
	careless.Kill()
	_, report = checks(t, 1, data, "FENCELOCK_DATABASE_URL="+careless.OwnerURL())
	finds(t, report, check.Wrong, "FENCELOCK_DATABASE_URL", "refuses connections")
}
