package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
)

// ear notes the wakes that it gets.
type ear struct {
	mu    sync.Mutex
	wakes []string
	began int
}

func (e *ear) Wake(resource string, t node.Ticket) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wakes = append(e.wakes, strings.Join([]string{resource, t.ID, t.Server, t.Holder}, "|"))
}

func (e *ear) Subscribed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.began++
}

func (e *ear) heard() (wakes []string, began int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wakes, e.began
}

// listen listens until the test ends. It returns when notifications of other processes arrive.
func listen(t *testing.T, s *Store, server string, began int) *ear {
	t.Helper()
	e := &ear{}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { s.Listen(ctx, server, e) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	testenv.Eventually(t, 20*time.Second, func() error {
		if _, n := e.heard(); n < began {
			return fmt.Errorf("%d times subscribed, want %d", n, began)
		}
		return nil
	})
	return e
}

func notify(t *testing.T, s *Store, resource string, ticket node.Ticket) {
	t.Helper()
	err := s.Update(t.Context(), func(tx replica.Tx) error {
		tx.Put("note", []byte(resource), time.Minute)
		tx.Notify(resource, ticket)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// If a notification is too long, every first waiter tries instead. A broken connection is made again.
func TestNotificationsThatAreLost(t *testing.T) {
	url := testenv.Postgres(t).OwnerURL()
	a, b := openStore(t, url, fast()), openStore(t, url, fast())
	e := listen(t, a, "A", 2) // its own process, and LISTEN
	again := func(lose func()) {
		t.Helper()
		_, before := e.heard()
		lose()
		testenv.Eventually(t, 20*time.Second, func() error {
			if _, n := e.heard(); n == before {
				return fmt.Errorf("still subscribed %d times", n)
			}
			return nil
		})
	}
	again(func() { notify(t, b, strings.Repeat("x", 8000), node.Ticket{ID: "t", Server: "A"}) })
	again(func() {
		execSQL(t, url, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %' AND pid <> pg_backend_pid()`)
	})
}

// Through a pooler in session or transaction mode everything works, except that in transaction mode waiters try again
// and again. A pooler in statement mode is refused.
func TestThroughAPooler(t *testing.T) {
	testenv.Long(t, "a statement that a pooler in transaction mode breaks")
	for _, mode := range []string{"session", "transaction"} {
		t.Run(mode, func(t *testing.T) { throughAPooler(t, mode) })
	}
	url := testenv.Postgres(t).OwnerURL()
	_, err := Open(t.Context(), testenv.PgBouncer(t, url, "statement"), fast())
	if want := "set pool_mode = transaction or session"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if n := query[int](t, url, `SELECT count(*) FROM pg_namespace WHERE nspname = 'fencelock'`); n != 0 {
		t.Error("a pooler that is refused has made the schema")
	}
}

func throughAPooler(t *testing.T, mode string) {
	t.Helper()
	url := testenv.Postgres(t).OwnerURL()
	pooled, direct := openStore(t, testenv.PgBouncer(t, url, mode), fast()), openStore(t, url, fast())
	var all sync.WaitGroup
	const workers, each = 8, 20
	for i := range workers {
		all.Go(func() {
			s := []*Store{pooled, direct}[i%2]
			for range each {
				err := s.Update(t.Context(), func(tx replica.Tx) error {
					raw, _ := tx.Get("n")
					n, _ := strconv.Atoi(string(raw))
					tx.Put("n", []byte(strconv.Itoa(n+1)), time.Hour)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := getRow(t, pooled, "n"); n != strconv.Itoa(workers*each) {
		t.Errorf("%s updates, want %d", n, workers*each)
	}
	listen(t, pooled, "A", 4) // that often only by polling
	e := listen(t, direct, "B", 2)
	notify(t, pooled, "r", node.Ticket{ID: "t", Server: "B"})
	testenv.Eventually(t, 20*time.Second, func() error {
		if wakes, _ := e.heard(); len(wakes) != 1 {
			return fmt.Errorf("heard %q", wakes)
		}
		return nil
	})
	if n := query[int](t, url, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name <> $1 AND query LIKE 'LISTEN %'`, connName); n != 0 && mode == "transaction" {
		t.Errorf("%d LISTEN went through the pooler", n)
	}
}

// A process that is stopped in the middle of a transaction delays the others for a second.
func TestAStoppedWriterIsPassed(t *testing.T) {
	url := testenv.Postgres(t).OwnerURL()
	opts := fast()
	opts.Idle = 500 * time.Millisecond
	stopped, other := openStore(t, url, opts), openStore(t, url, opts)
	wanted := overlay.Missing{}
	err := stopped.with(t.Context(), func(conn *pgconn.PgConn) error {
		r := newReading(newKnown(), &wanted, 0)
		if err := roundTrip(t.Context(), conn, statement{sql: beginWrite}, r.open(true, stopped.idle())); err != nil {
			return err
		}
		putRow(t, other, "a", "1")
		return roundTrip(t.Context(), conn, statement{sql: commitSQL})
	})
	if err == nil {
		t.Error("the stopped transaction was committed")
	}
	putRow(t, stopped, "a", "2")
}

// If PostgreSQL ends a transaction because its process was stopped, the transaction had no effect. It is run again,
// even if that shows only at its commit.
func TestAStoppedTransactionIsRunAgain(t *testing.T) {
	url := testenv.Postgres(t).OwnerURL()
	opts := fast()
	opts.Idle = time.Second // within which it has to be seen in its transaction
	s, other := openStore(t, url, opts), openStore(t, url, opts)
	putRow(t, other, "b", "1") // another writes, so that s reads before it writes
	observer := connect(t, url)
	idle := func() bool {
		return queryOn[int](t, observer, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`) > 0
	}
	stopped := false
	err := s.Update(t.Context(), func(tx replica.Tx) error {
		tx.Put("a", []byte("1"), 0)
		if stopped || !idle() {
			return nil
		}
		stopped = true
		testenv.Eventually(t, 20*time.Second, func() error {
			if idle() {
				return errors.New("it still is in its transaction")
			}
			return nil
		})
		return nil
	})
	if err != nil || !stopped {
		t.Errorf("it was stopped: %t; %v", stopped, err)
	}
	if row := getRow(t, other, "a"); row != "1" {
		t.Errorf("row %q", row)
	}
}

// With synchronous_commit = off a crash would lose commits that got their reply, and no incarnation would show it. So
// commits are always synchronous.
func TestCommitsAreOnDisk(t *testing.T) {
	t.Parallel()
	pg := testenv.StartPostgres(t)
	execSQL(t, pg.URL(), `ALTER SYSTEM SET synchronous_commit = off`, `ALTER SYSTEM SET wal_writer_delay = '10s'`, `SELECT pg_reload_conf()`)
	s := openStore(t, pg.OwnerURL(), Options{Timeout: 20 * time.Second})
	for i := range 20 {
		putRow(t, s, "a", strconv.Itoa(i))
	}
	pg.Kill()
	pg.Restart()
	if row := getRow(t, s, "a"); row != "19" {
		t.Errorf("row %q after a crash, want 19", row)
	}
	execSQL(t, pg.URL(), `ALTER SYSTEM SET fsync = off`, `SELECT pg_reload_conf()`)
	testenv.Eventually(t, 20*time.Second, func() error {
		if unfit := incarnationOf(t, s).Unfit; !strings.HasPrefix(unfit, "fsync is off") {
			return fmt.Errorf("unfit: %q", unfit)
		}
		return nil
	})
}

// Rows that have ended are deleted, and no others.
func TestSweep(t *testing.T) {
	url := testenv.Postgres(t).OwnerURL()
	s := openStore(t, url, fast())
	err := s.Update(t.Context(), func(tx replica.Tx) error {
		for i := range 100 {
			tx.Put(fmt.Sprintf("short%d", i), []byte("x"), time.Millisecond)
			tx.Put(fmt.Sprintf("long%d", i), []byte("x"), time.Hour)
		}
		tx.Put("for good", []byte("x"), 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, func() error {
		if n := query[int](t, url, `SELECT count(*) FROM fencelock.rows`); n != 101 {
			return fmt.Errorf("%d rows", n)
		}
		return nil
	})
}

// If Postgres does not delete a page of rows in time, it is asked for smaller pages, until all are removed.
func TestASweepOfASlowServer(t *testing.T) {
	testenv.Long(t, "a sweep that a slow Postgres keeps from its end")
	t.Parallel()
	const rows = 100
	url := testenv.Postgres(t).OwnerURL()
	opts := Options{Timeout: time.Second, unsafe: true, sweep: sweeping{page: rows, pause: time.Millisecond, rest: 100 * time.Millisecond}}
	filler := openStore(t, url, fast())
	err := filler.Update(t.Context(), func(tx replica.Tx) error {
		for i := range rows {
			tx.Put(fmt.Sprint("row", i), []byte("x"), time.Second)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = filler.Close()
	execSQL(t, url, `CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.03); RETURN OLD; END'`,
		`CREATE TRIGGER slow BEFORE DELETE ON fencelock.rows FOR EACH ROW EXECUTE FUNCTION linger()`) // 3 s for all
	openStore(t, url, opts)
	testenv.Eventually(t, time.Minute, func() error {
		if n := query[int](t, url, `SELECT count(*) FROM fencelock.rows`); n > 0 {
			return fmt.Errorf("%d rows are left", n)
		}
		return nil
	})
}

// A role that may only log in holds the advisory lock that once gave the writers their turns, and tries to take the
// turn. No server waits for it.
func TestAStrangerStopsNobody(t *testing.T) {
	pg := testenv.Postgres(t)
	s := openStore(t, pg.URL(), fast())
	role := "stranger_" + query[string](t, pg.URL(), `SELECT current_database()`)
	execSQL(t, pg.URL(), `CREATE ROLE `+role+` LOGIN`)
	t.Cleanup(func() { _, _ = s.pool.Exec(context.WithoutCancel(t.Context()), `DROP ROLE `+role) })
	stranger, err := pgx.Connect(t.Context(), strings.Replace(pg.URL(), "//postgres@", "//"+role+"@", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close(context.WithoutCancel(t.Context())) }()
	if _, err := stranger.Exec(t.Context(), `SELECT pg_advisory_lock(7813573191576544357)`); err != nil {
		t.Fatal(err)
	}
	denied := func(sql string) {
		tx, err := stranger.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: %v", sql, err)
		}
		_ = tx.Rollback(t.Context())
	}
	for _, relation := range []string{"turn", "rows", "version"} {
		for _, mode := range []string{"ACCESS SHARE", "ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"} {
			denied(`LOCK TABLE fencelock.` + relation + ` IN ` + mode + ` MODE`)
		}
	}
	denied(`SELECT fencelock._lock()`)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	err = s.Update(ctx, func(tx replica.Tx) error {
		tx.Put("a", []byte("1"), 0)
		return nil
	})
	if err != nil {
		t.Errorf("a stranger keeps the server from writing: %v", err)
	}
}

// The schema of the previous version has no turn. When it is upgraded, a role that had rights to the schema gets the
// right to the turn, too.
func TestTheTurnComesWithAnUpgrade(t *testing.T) {
	pg := testenv.Postgres(t)
	s := openStore(t, pg.URL(), fast())
	putRow(t, s, "a", "1")
	role := "granted_" + query[string](t, pg.URL(), `SELECT current_database()`)
	execSQL(t, pg.URL(),
		`CREATE ROLE `+role, `GRANT SELECT, INSERT, UPDATE, DELETE ON fencelock.rows TO `+role,
		`DROP TABLE fencelock.turn`, `DROP FUNCTION fencelock._lock()`, `DELETE FROM fencelock.version WHERE version > 1`)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, _ = s.pool.Exec(ctx, `DROP OWNED BY `+role)
		_, _ = s.pool.Exec(ctx, `DROP ROLE `+role)
	})
	upgraded := openStore(t, pg.URL(), fast())
	putRow(t, upgraded, "a", "2")
	if row := getRow(t, s, "a"); row != "2" {
		t.Errorf("row %q", row)
	}
	if !query[bool](t, pg.URL(), `SELECT has_table_privilege($1, 'fencelock.turn', 'UPDATE')`, role) {
		t.Error("the role has no right to the turn")
	}
}

// The role of a server needs only these rights once the schema exists.
func TestLeastRights(t *testing.T) {
	pg := testenv.Postgres(t)
	s := openStore(t, pg.URL(), fast())
	putRow(t, s, "a", "1")
	database := query[string](t, pg.URL(), `SELECT current_database()`)
	role := "least_" + database
	execSQL(t, pg.URL(), `CREATE ROLE `+role+` LOGIN`)
	for _, grant := range Rights() {
		execSQL(t, pg.URL(), grant+` TO `+role)
	}
	t.Cleanup(func() {
		conn := context.WithoutCancel(t.Context())
		_, _ = s.pool.Exec(conn, `DROP OWNED BY `+role)
		_, _ = s.pool.Exec(conn, `DROP ROLE `+role)
	})
	least := openStore(t, strings.Replace(pg.URL(), "//postgres@", "//"+role+"@", 1), fast())
	putRow(t, least, "a", "2")
	if row := getRow(t, s, "a"); row != "2" {
		t.Errorf("row %q", row)
	}
}
