package pgguardtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/fencing/guardtest"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func openGuard(t *testing.T, url string, opts pgguard.Options) *pgguard.Guard {
	t.Helper()
	g, err := pgguard.Open(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func openPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestConformance runs as a role that owns the database and is no superuser.
func TestConformance(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t).OwnerURL()
	open := func(t *testing.T) fencing.Guard {
		t.Helper()
		return openGuard(t, url, pgguard.Options{CallTimeout: 20 * time.Second})
	}
	guardtest.RunDurable(t,
		func(t *testing.T) fencing.Guard {
			t.Helper()
			if err := pgguard.Uninstall(t.Context(), url); err != nil {
				t.Fatal(err)
			}
			return open(t)
		},
		func(t *testing.T, g fencing.Guard) fencing.Guard {
			t.Helper()
			if err := g.(*pgguard.Guard).Close(); err != nil {
				t.Fatal(err)
			}
			return open(t)
		})
}

// TestIsolationOfTheRole checks that the guard keeps its promises in a database
// whose default is another isolation level, or commits without a sync.
func TestIsolationOfTheRole(t *testing.T) {
	for _, setting := range []string{
		"default_transaction_isolation = 'repeatable read'",
		"default_transaction_isolation = 'serializable'",
		"synchronous_commit = off",
	} {
		t.Run(setting, func(t *testing.T) {
			pg := testenv.Postgres(t)
			pool := openPool(t, pg.URL())
			var name string
			if err := pool.QueryRow(t.Context(), `SELECT current_database()`).Scan(&name); err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Exec(t.Context(), fmt.Sprintf("ALTER DATABASE %s SET %s", name, setting)); err != nil {
				t.Fatal(err)
			}
			g := openGuard(t, pg.OwnerURL(), pgguard.Options{})
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					_, err := g.Write(t.Context(), "r", fencing.Token(i+1), json.RawMessage(`1`))
					if err != nil && !errors.Is(err, fencing.ErrStaleToken) && !errors.Is(err, fencing.ErrGuardUnavailable) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if _, err := g.Claim(t.Context(), "r", 9); err != nil {
				t.Error(err)
			}
			if _, err := g.Write(t.Context(), "r", 8, json.RawMessage(`1`)); !errors.Is(err, fencing.ErrStaleToken) {
				t.Errorf("a stale write gives %v", err)
			}
		})
	}
}

// TestManyServersInstallAtOnce starts servers on an empty database together,
// and checks that nothing outside the schema fencing was touched.
func TestManyServersInstallAtOnce(t *testing.T) {
	pg := testenv.Postgres(t)
	pool := openPool(t, pg.URL())
	before := objectsOutside(t, pool)
	var wg sync.WaitGroup
	for i := range 8 {
		g := openGuard(t, pg.OwnerURL(), pgguard.Options{CallTimeout: 30 * time.Second})
		wg.Go(func() {
			if _, err := g.Claim(t.Context(), fmt.Sprintf("r%d", i), 1); err != nil {
				t.Errorf("server %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if after := objectsOutside(t, pool); after != before {
		t.Errorf("objects outside the schema fencing were\n%s\nand are\n%s", before, after)
	}
}

func objectsOutside(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	var names string
	err := pool.QueryRow(t.Context(), `
		SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM (
			SELECT n.nspname || '.' || c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			UNION ALL SELECT n.nspname || '.' || p.proname || '()' FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
			UNION ALL SELECT n.nspname || '.' || y.typname FROM pg_type y JOIN pg_namespace n ON n.oid = y.typnamespace
			UNION ALL SELECT 'schema.' || nspname FROM pg_namespace
			UNION ALL SELECT 'extension.' || extname FROM pg_extension
			UNION ALL SELECT 'event trigger.' || evtname FROM pg_event_trigger
		) AS o WHERE name NOT LIKE 'fencing.%' AND name <> 'schema.fencing' AND name NOT LIKE 'pg_toast%'`).Scan(&names)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestHistoryKept(t *testing.T) {
	g := openGuard(t, testenv.Postgres(t).OwnerURL(), pgguard.Options{HistoryKept: 3})
	for i := range fencing.Token(10) {
		if _, err := g.Claim(t.Context(), "r", i+1); err != nil {
			t.Fatal(err)
		}
	}
	attempts, err := g.History(t.Context(), "r", 100)
	if err != nil || len(attempts) != 3 || attempts[0].Token != 10 {
		t.Errorf("history is %v, %v; want the newest 3", attempts, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	const secret = "hunter2hunter2"
	for _, url := range []string{
		"postgres://user:" + secret + "@host:notaport/db",
		"postgres://user:" + secret + "@host/db?sslmode=perhaps",
		"postgres://user:" + secret + "@ho st/db",
		"host=x password=" + secret + " port=y",
		"mysql://user:" + secret + "@host/db",
	} {
		_, err := pgguard.Open(t.Context(), url, pgguard.Options{})
		if err == nil {
			t.Errorf("%q was accepted", strings.ReplaceAll(url, secret, "…"))
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error tells the password: %v", err)
		}
	}
	for _, opts := range []pgguard.Options{{HistoryKept: -1}, {HistoryKept: 1 << 20}, {CallTimeout: -1}} {
		if _, err := pgguard.Open(t.Context(), "postgres://localhost/db", opts); err == nil {
			t.Errorf("options %+v were accepted", opts)
		}
	}
}

// unavailable checks what a guard says while Postgres is away: without secrets,
// and without waiting for it. The limit is far above Options.CallTimeout, since
// the machine may be busy; a call without a limit would not return at all.
func unavailable(t *testing.T, g *pgguard.Guard, secret string) {
	t.Helper()
	const limit = 20 * time.Second
	started := time.Now()
	_, err := g.Write(t.Context(), "r", 1, json.RawMessage(`1`))
	if took := time.Since(started); took > limit {
		t.Errorf("a write took %s to find Postgres away, want at most %s", took, limit)
	}
	if !errors.Is(err, fencing.ErrGuardUnavailable) {
		t.Errorf("a write without Postgres gives %v, want ErrGuardUnavailable", err)
	}
	if err != nil && secret != "" && strings.Contains(err.Error(), secret) {
		t.Errorf("the error tells the password: %v", err)
	}
}

func TestWrongPasswordIsUnavailable(t *testing.T) {
	const secret = "hunter2hunter2"
	g := openGuard(t, "postgres://nobody:"+secret+"@127.0.0.1:1/db", pgguard.Options{})
	unavailable(t, g, secret)
	const want = "no connection to Postgres at 127.0.0.1:1 as user nobody: connection refused"
	if err := g.Check(t.Context()); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestComesAndGoes starts without Postgres, and lives through its restart, its
// crash, its freezing, and the loss of the schema.
func TestComesAndGoes(t *testing.T) {
	t.Parallel()
	pg := testenv.StartPostgres(t)
	pg.Shutdown()
	g := openGuard(t, pg.OwnerURL(), pgguard.Options{})
	unavailable(t, g, "")

	back := func(token fencing.Token) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() error {
			_, err := g.Write(t.Context(), "r", token, json.RawMessage(`1`))
			return err
		})
	}
	pg.Restart()
	back(1)

	pg.Kill()
	testenv.Eventually(t, time.Minute, func() error { // a backend may outlive the postmaster for a moment
		if _, err := g.Read(t.Context(), "r"); err == nil {
			return errors.New("Postgres still answers")
		}
		return nil
	})
	unavailable(t, g, "")
	pg.Restart()
	if record, err := g.Read(t.Context(), "r"); err == nil && record.Mark != 1 {
		t.Errorf("after a crash the record is %+v", record)
	}
	back(2)

	pg.Freeze()
	unavailable(t, g, "")
	pg.Thaw()
	back(3)

	if err := pgguard.Uninstall(t.Context(), pg.URL()); err != nil {
		t.Fatal(err)
	}
	back(4)
	testenv.Eventually(t, time.Minute, func() error {
		attempts, err := g.History(t.Context(), "r", 100)
		for _, a := range attempts { // a write that was not answered may have been made, too
			if a.Token != 4 {
				t.Errorf("after the schema was dropped the history has token %d", a.Token)
			}
		}
		return err
	})
}

// TestCrashKeepsAnswers kills the server under load: every write that was
// answered is there afterwards.
func TestCrashKeepsAnswers(t *testing.T) {
	t.Parallel()
	pg := testenv.StartPostgres(t)
	g := openGuard(t, pg.OwnerURL(), pgguard.Options{})
	answered := make([]fencing.Token, 8)
	first := make(chan struct{}, len(answered))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range answered {
		wg.Go(func() {
			for token := fencing.Token(1); ctx.Err() == nil; {
				if _, err := g.Write(ctx, fmt.Sprintf("r%d", i), token, json.RawMessage(`1`)); err != nil {
					continue // the schema may be in the making
				}
				if answered[i] = token; token == 20 {
					first <- struct{}{}
				}
				token++
			}
		})
	}
	for range answered {
		<-first
	}
	pg.Kill()
	cancel()
	wg.Wait()
	pg.Restart()
	for i, token := range answered {
		testenv.Eventually(t, 20*time.Second, func() error {
			record, err := g.Read(t.Context(), fmt.Sprintf("r%d", i))
			if err == nil && (record.Mark < token || record.Version < int64(token)) {
				t.Errorf("token %d was answered, the record is %+v", token, record)
			}
			return err
		})
	}
}

// TestGivingUpLeavesNothingBehind checks that a write whose caller gave up in
// the queue for a row does not take effect later.
func TestGivingUpLeavesNothingBehind(t *testing.T) {
	pg := testenv.Postgres(t)
	g := openGuard(t, pg.OwnerURL(), pgguard.Options{})
	if _, err := g.Claim(t.Context(), "r", 1); err != nil {
		t.Fatal(err)
	}
	pool := openPool(t, pg.URL())
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT fencing.claim('r', 1)`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := g.Write(ctx, "r", 2, json.RawMessage(`1`)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a write past its caller's time limit gives %v", err)
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		var waiting int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		if err == nil && waiting > 0 {
			err = fmt.Errorf("%d statements still wait for the row", waiting)
		}
		return err
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if record, err := g.Read(t.Context(), "r"); err != nil || record.Mark != 1 {
		t.Errorf("the abandoned write took effect: %+v, %v", record, err)
	}
}
