package pgguardtest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/migrations"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// TestAStrangerDelaysNoInstallation: a role that may log in and nothing else holds what
// needs no right, which is advisory locks, an old snapshot and the catalogs.
func TestAStrangerDelaysNoInstallation(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	stranger := connectTo(t, withUser(t, pg.URL(), newRole(t, connectTo(t, pg.URL())), "pw"))
	for _, key := range []string{
		"0", "1", "-1", "7378424937698848611", "7813573191576544357", "7813573191492596596", // once this project's
		"hashtext('fencing')", "hashtext('fencelock')", "hashtext(current_database())", "(SELECT oid::bigint FROM pg_database WHERE datname = current_database())",
	} {
		mustExec(t, stranger, `SELECT pg_advisory_lock(`+key+`)`)
	}
	mustExec(t, stranger, `BEGIN ISOLATION LEVEL SERIALIZABLE; LOCK TABLE pg_namespace, pg_class, pg_proc, pg_type, pg_attribute IN ACCESS SHARE MODE`)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	owner := connectTo(t, pg.OwnerURL())
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"the first installation", func() error { return pgguard.Install(ctx, pg.OwnerURL()) }},
		{"an upgrade", func() error { return pgguard.Install(ctx, pg.OwnerURL()) }},
		{"a removal", func() error { return pgguard.Uninstall(ctx, pg.OwnerURL()) }},
		{"a removal of nothing", func() error { return pgguard.Uninstall(ctx, pg.OwnerURL()) }},
		{"an installation in an empty schema", func() error {
			mustExec(t, owner, `CREATE SCHEMA fencing`)
			return pgguard.Install(ctx, pg.OwnerURL())
		}},
	} {
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
	}
	for _, relation := range []string{"version", "marks"} {
		_ = stranger.Close(t.Context())
		stranger = connectTo(t, stranger.Config().ConnString())
		if _, err := stranger.Exec(t.Context(), `BEGIN; LOCK TABLE fencing.`+relation+` IN ACCESS SHARE MODE`); sqlState(err) != "42501" {
			t.Errorf("a lock of %s: %v", relation, err)
		}
	}
}

// TestInstallationsTakeNoAdvisoryLock, which any role could hold.
func TestInstallationsTakeNoAdvisoryLock(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	for name, m := range map[string]migrations.Migrations{"guard": migrations.Guard(), "store": migrations.Store()} {
		script, err := m.Script()
		if err != nil {
			t.Fatal(err)
		}
		conn := connectTo(t, pg.OwnerURL())
		open, _, ok := strings.Cut(script, "COMMIT;")
		if !ok {
			t.Fatal("the script does not commit")
		}
		mustExec(t, conn, open)
		var held int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`).Scan(&held); err != nil || held > 0 {
			t.Errorf("%s: %d advisory locks, %v", name, held, err)
		}
		_ = conn.Close(t.Context())
	}
}

// TestInstallationsTakeTurns: one waits for another that is under way, wherever that began
// from, and then has nothing to do or does it.
func TestInstallationsTakeTurns(t *testing.T) {
	t.Parallel()
	script, err := pgguard.SQL()
	if err != nil {
		t.Fatal(err)
	}
	open, _, _ := strings.Cut(script, "COMMIT;")
	for name, before := range map[string]string{"nothing": "", "an empty schema": `CREATE SCHEMA fencing`, "a guard": script} {
		for _, ends := range []string{"COMMIT", "ROLLBACK"} {
			t.Run(name+", "+ends, func(t *testing.T) {
				t.Parallel()
				pg := testenv.Postgres(t)
				first, second := connectTo(t, pg.OwnerURL()), connectTo(t, pg.OwnerURL())
				mustExec(t, second, `SET default_transaction_isolation = 'serializable'`)
				mustExec(t, first, before)
				mustExec(t, first, open)
				done := async(t, second, script)
				s := &stage{t: t, url: pg.OwnerURL(), admn: connectTo(t, pg.OwnerURL())}
				if waited, err := s.waits(done); !waited {
					t.Fatalf("it did not wait: %v", err)
				}
				mustExec(t, first, ends)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				mustExec(t, first, `SELECT fencing.claim('r', 1)`)
				removed := async(t, second, migrations.Guard().Removal())
				if err := <-removed; err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestForeignRelations: a schema with something else in it is left alone.
func TestForeignRelations(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	conn := connectTo(t, pg.OwnerURL())
	mustExec(t, conn, `CREATE SCHEMA fencing; CREATE TABLE fencing.posts (id int)`)
	if err := pgguard.Install(t.Context(), pg.OwnerURL()); err == nil || !strings.Contains(err.Error(), "holds relations of something else") || !strings.Contains(err.Error(), "Rename that schema") {
		t.Errorf("%v", err)
	}
}
