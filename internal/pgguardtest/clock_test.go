package pgguardtest_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencelock/fencelock/chaos"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// TestDatabaseClockIsSetBack: nothing of the guard is decided by a clock. The
// database server's is set back before, between and within transactions.
func TestDatabaseClockIsSetBack(t *testing.T) {
	dir := t.TempDir()
	library, err := chaos.BuildShim(dir)
	if err != nil {
		t.Fatal(err)
	}
	clock, _ := chaos.NewClock(t, dir, library, 0)
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // the server runs as another user
		t.Fatal(err)
	}
	pg := testenv.StartPostgres(t, clock.Env()...)
	if err := pgguard.Install(t.Context(), pg.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	conn := connectTo(t, pg.OwnerURL())
	mustExec(t, conn, `CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0)`)
	mustExec(t, conn, `INSERT INTO accounts VALUES (1)`)
	mustExec(t, conn, `SELECT fencing.protect('accounts', $$'accounts/' || id$$)`)
	claimed := func() (at time.Time) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), `SELECT claimed_at FROM fencing.marks`).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	const claim34, claim35 = `SELECT fencing.claim('accounts/1', 34)`, `SELECT fencing.claim('accounts/1', 35)`
	setBack := func() {
		t.Helper()
		if err := clock.Jump(-time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if err := tried(t, conn, claim34, write); err != nil {
		t.Fatal(err)
	}
	before := claimed()
	setBack()
	if err := tried(t, conn, `SELECT fencing.claim('accounts/1', 33)`, write); sqlState(err) != pgguard.SQLStateStale {
		t.Errorf("a stale claim: %v", err)
	}
	if err := tried(t, conn, `SELECT fencing.present('accounts/1', 33)`, write); sqlState(err) != pgguard.SQLStateStale {
		t.Errorf("a stale write: %v", err)
	}
	if err := tried(t, conn, write); sqlState(err) != pgguard.SQLStateMissing {
		t.Errorf("a write after the claim's transaction: %v", err)
	}
	if err := tried(t, conn, claim34, write); err != nil {
		t.Errorf("the holder: %v", err)
	}
	if back := before.Sub(claimed()); back < 50*time.Minute {
		t.Fatalf("the server's clock was set back by %s, so this proves nothing", back)
	}

	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, tx, claim35)
	setBack()
	mustExec(t, tx, write)
	mustCommit(t, tx)
	if err := tried(t, conn, claim34, write); sqlState(err) != pgguard.SQLStateStale {
		t.Errorf("the holder before: %v", err)
	}
	pg.Restart()
	setBack()
	conn = connectTo(t, pg.OwnerURL())
	if err := tried(t, conn, claim34, write); sqlState(err) != pgguard.SQLStateStale {
		t.Errorf("the holder before, after a restart: %v", err)
	}
	if err := tried(t, conn, claim35, write); err != nil {
		t.Errorf("the holder, after a restart: %v", err)
	}
}
