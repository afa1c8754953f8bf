package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/check"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgstore"
)

func sqlOn(t *testing.T, database string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func sqlValue[T any](t *testing.T, database, sql string) (value T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func fencingToken(lease wire.Lease) string {
	return "Fencing-Token: " + strconv.FormatInt(lease.FencingToken, 10)
}

// The grants of docs/how-to/postgres.md are enough for locks and guarded records, and check names those that are
// missing.
func TestPostgresRoleOfThePage(t *testing.T) {
	t.Parallel()
	pg := testenv.StartPostgres(t)
	first := start(t, "FENCELOCK_STORE="+pg.URL())
	first.wants(first.ask(nil, "PUT", "/guarded/first", `{}`, fencingToken(first.acquire(`{"resource":"first"}`))), http.StatusOK)
	first.Signal(syscall.SIGTERM)
	first.exit()

	page, err := os.ReadFile("../../docs/how-to/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```sql\n")
	block, _, _ = strings.Cut(block, "```")
	statements := strings.Split(strings.TrimSpace(block), "\n")
	for _, grant := range pgstore.Rights() {
		if !slices.Contains(statements, grant+" TO locks;") {
			t.Errorf("the page lacks %s", grant)
		}
	}
	as := "FENCELOCK_STORE=" + strings.Replace(pg.URL(), "//postgres@", "//locks:secret@", 1)
	sqlOn(t, pg.URL(), statements[0])
	_, report := checks(t, cli.ExitFailed, as)
	finds(t, report, check.Wrong, "FENCELOCK_STORE", "may not use all of the schema fencelock")
	finds(t, report, check.Wrong, "FENCELOCK_STORE", "the schema fencing")
	sqlOn(t, pg.URL(), statements[1:]...)
	checks(t, 0, as)
	p := start(t, as)
	p.wants(p.ask(nil, "PUT", "/guarded/orders/42", `{}`, fencingToken(p.acquire(`{"resource":"orders/42"}`))), http.StatusOK)
	p.wants(p.ask(nil, "GET", "/guarded/orders/42", ""), http.StatusOK)
	p.wants(p.ask(nil, "GET", "/guarded", ""), http.StatusOK)
	p.wants(p.ask(nil, "DELETE", "/guarded/orders/42", "", fencingToken(p.acquire(`{"resource":"other"}`))), http.StatusOK)
}

// A store that cannot be used is refused at the start, and nothing is changed.
func TestPostgresThatCannotBeUsed(t *testing.T) {
	testenv.Long(t, "a Postgres that cannot be used and is not named")
	t.Parallel()
	pg := testenv.StartPostgres(t)
	standby := pg.Standby()
	foreign := strings.Replace(pg.URL(), "/test_", "/foreign_", 1)
	readOnly := strings.Replace(pg.URL(), "/test_", "/readonly_", 1)
	for _, u := range []string{foreign, readOnly} {
		sqlOn(t, pg.URL(), `CREATE DATABASE `+databaseOf(t, u))
	}
	sqlOn(t, foreign, `CREATE SCHEMA fencelock`, `CREATE TABLE fencelock.theirs (n int)`)
	sqlOn(t, readOnly, `ALTER DATABASE `+databaseOf(t, readOnly)+` SET default_transaction_read_only = on`)
	sqlOn(t, pg.URL(), `CREATE ROLE locks LOGIN PASSWORD 'right'`, `COPY (SELECT unnest(ARRAY['host all locks all scram-sha-256', 'host all all all trust', 'host replication all all trust'])) TO '`+ //nolint:dupword // fields of pg_hba.conf
		sqlValue[string](t, pg.URL(), `SHOW hba_file`)+`'`, `SELECT pg_reload_conf()`)
	for name, c := range map[string]struct {
		store string
		says  []string
	}{
		"wrong password": {strings.Replace(pg.URL(), "//postgres@", "//locks:hunter2@", 1), []string{"password authentication failed", "locks"}},
		"no such role":   {strings.Replace(pg.URL(), "//postgres@", "//intruder:hunter2@", 1), []string{"intruder", "does not exist"}},
		"standby":        {standby.URL(), []string{"it is a standby", "target_session_attrs=primary"}},
		"another schema": {foreign, []string{"something else", "Rename that schema"}},
		"read-only":      {readOnly, []string{"read-only", "default_transaction_read_only"}},
		"no rights":      {strings.Replace(pg.OwnerURL(), "/test_", "/foreign_", 1), []string{"permission denied", "docs/how-to/postgres.md"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, said := outcome(t, []string{"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0", "FENCELOCK_STORE=" + c.store}, "serve")
			if code != cli.ExitFailed {
				t.Errorf("exit code %d, want %d", code, cli.ExitFailed)
			}
			for _, part := range append(c.says, "FENCELOCK_STORE") {
				if !strings.Contains(said, part) {
					t.Errorf("%q is not said:\n%s", part, said)
				}
			}
			if strings.Contains(said, "hunter2") {
				t.Errorf("a password is shown:\n%s", said)
			}
		})
	}
	if n := sqlValue[int](t, foreign, `SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('fencelock')`); n != 1 {
		t.Errorf("the other schema has %d relations", n)
	}
	if sqlValue[bool](t, readOnly, `SELECT to_regnamespace('fencelock') IS NOT NULL`) {
		t.Error("a schema was made")
	}
}

// A Postgres that is too old is refused at the start and by fencelock check, and nothing is changed. If the test's
// server is not old, a function in its catalog reports an old version.
func TestPostgresThatIsTooOld(t *testing.T) {
	testenv.Long(t, "a Postgres that is too old and not named")
	t.Parallel()
	pg := testenv.StartPostgres(t)
	if sqlValue[int](t, pg.URL(), `SELECT current_setting('server_version_num')::int`) >= 150000 {
		sqlOn(t, pg.URL(), `ALTER FUNCTION pg_catalog.current_setting(text) RENAME TO real_setting`,
			`CREATE FUNCTION pg_catalog.current_setting(text) RETURNS text STABLE STRICT LANGUAGE sql AS $$
				SELECT CASE $1 WHEN 'server_version_num' THEN '140012' WHEN 'server_version' THEN '14.12' ELSE real_setting($1) END $$`)
	}
	version := sqlValue[string](t, pg.URL(), `SELECT current_setting('server_version')`)
	env := []string{"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0", "FENCELOCK_STORE=" + pg.URL()}
	for _, command := range []string{"serve", "check"} {
		code, said := outcome(t, env, command)
		if code == 0 || !strings.Contains(said, "FENCELOCK_STORE") || !strings.Contains(said, "needs PostgreSQL 15 or newer, this is "+version) {
			t.Errorf("fencelock %s: exit code %d:\n%s", command, code, said)
		}
	}
	if sqlValue[bool](t, pg.URL(), `SELECT to_regnamespace('fencelock') IS NOT NULL`) {
		t.Error("a schema was made")
	}
}

func databaseOf(t *testing.T, text string) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

// both returns a URL with two hosts, of which a client uses the primary.
func both(t *testing.T, a, b *testenv.PG) string {
	t.Helper()
	u, err := url.Parse(a.URL())
	if err != nil {
		t.Fatal(err)
	}
	v, err := url.Parse(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("postgres://postgres@%s,%s%s?sslmode=disable&target_session_attrs=primary", u.Host, v.Host, u.Path)
}

// pgLoad takes and releases locks, with a worker for each resource, and checks that tokens rise.
type pgLoad struct {
	p      *process
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	pairs   int
	failed  int
	last    map[string]int64
	success time.Time // the last
}

func startLoad(p *process, workers int) *pgLoad {
	ctx, cancel := context.WithCancel(p.t.Context())
	l := &pgLoad{p: p, cancel: cancel, last: make(map[string]int64)}
	for i := range workers {
		l.done.Go(func() {
			for ctx.Err() == nil {
				l.pair(ctx, "load/"+strconv.Itoa(i))
			}
		})
	}
	return l
}

func (l *pgLoad) pair(ctx context.Context, resource string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var lease wire.Lease
	resp, err := l.p.try(ctx, &lease, "POST", "/locks", `{"resource":"`+resource+`","ttl_ms":1000,"wait_ms":1000}`)
	if err == nil && resp.StatusCode == http.StatusCreated {
		l.granted(resource, lease.FencingToken)
		_, _ = l.p.try(ctx, nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed++
}

func (l *pgLoad) granted(resource string, token int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if token <= l.last[resource] {
		l.p.t.Errorf("%s: token %d after %d", resource, token, l.last[resource])
	}
	l.last[resource] = token
	l.pairs++
	l.success = time.Now()
}

// back waits for the first lease that is granted after `since`, and returns how long that took.
func (l *pgLoad) back(since time.Time) time.Duration {
	l.p.t.Helper()
	var at time.Time
	testenv.Eventually(l.p.t, time.Minute, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.success.After(since) {
			return errors.New("nothing is granted")
		}
		at = l.success
		return nil
	})
	return at.Sub(since)
}

func (l *pgLoad) end() {
	l.cancel()
	l.done.Wait()
	l.p.t.Logf("%d pairs, %d failures", l.pairs, l.failed)
}

// A server whose database is killed or frozen serves again as soon as the database does, with the earlier leases and
// rising tokens.
func TestPostgresIsKilledAndFrozen(t *testing.T) {
	testenv.Long(t, "a server that a frozen Postgres stops for good")
	t.Parallel()
	pg := testenv.StartPostgres(t)
	p := start(t, "FENCELOCK_STORE="+pg.URL())
	kept := p.acquire(`{"resource":"kept","ttl_ms":60000}`)
	l := startLoad(p, 8)
	l.back(time.Now())

	pg.Kill()
	pg.Restart()
	t.Logf("after kill -9: service is back %s after the database", l.back(time.Now()).Round(time.Millisecond))

	pg.Freeze()
	frozen := time.Now()
	testenv.Eventually(t, time.Minute, func() error {
		if resp, err := p.try(t.Context(), nil, "GET", "/readyz", ""); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
			return errors.New("it is ready without a database")
		}
		return nil
	})
	t.Logf("after SIGSTOP: not ready after %s", time.Since(frozen).Round(time.Millisecond))
	pg.Thaw()
	t.Logf("after SIGCONT: service is back after %s", l.back(time.Now()).Round(time.Millisecond))
	l.end()
	p.wants(p.ask(nil, "GET", "/leases/current", "", "Fencelock-Lease: "+kept.LeaseID), http.StatusOK)
	p.release(kept)
}

// A server that stops in the middle of its work does not stop the others for long.
func TestPostgresWithAFrozenServer(t *testing.T) {
	testenv.Long(t, "locks in Postgres that a frozen server keeps from others")
	t.Parallel()
	pg := testenv.StartPostgres(t)
	p, other := start(t, "FENCELOCK_STORE="+pg.URL()), start(t, "FENCELOCK_STORE="+pg.URL())
	mine, theirs := startLoad(p, 8), startLoad(other, 0)
	for i := range 8 {
		theirs.done.Go(func() { theirs.pair(t.Context(), "other/"+strconv.Itoa(i)) })
	}
	theirs.back(time.Time{})
	for range 5 {
		other.Freeze()
		t.Logf("the other server serves %s after one was stopped", mine.back(time.Now()).Round(time.Millisecond))
		other.Thaw()
		other.acquireEventually("again")
	}
	mine.end()
	theirs.end()
}

func (p *process) acquireEventually(resource string) {
	p.t.Helper()
	testenv.Eventually(p.t, time.Minute, func() error {
		var lease wire.Lease
		resp, err := p.try(p.t.Context(), &lease, "POST", "/locks", `{"resource":"`+resource+`","ttl_ms":1000}`)
		if err != nil || resp.StatusCode != http.StatusCreated {
			return errors.Join(errors.New("not granted"), err)
		}
		p.release(lease)
		return nil
	})
}

// A standby is promoted without the last commits of a primary that still runs, and a server uses each of the two. The
// server of the standby grants nothing for the longest TTL, and then larger tokens. The guard, a third database,
// refuses the tokens of the old primary.
func TestPostgresFailsOverWithoutTheLastCommits(t *testing.T) {
	testenv.Long(t, "tokens that a lossy failover of Postgres brings back")
	t.Parallel()
	const maxTTL = 2 * time.Second
	guard := "FENCELOCK_DATABASE_URL=" + testenv.Postgres(t).OwnerURL()
	primary := testenv.StartPostgres(t)
	const patient = "FENCELOCK_NODE_TIMEOUT=1s" // the machine may be busy
	zombie := start(t, "FENCELOCK_STORE="+primary.URL(), guard, "FENCELOCK_MAX_TTL=2s", patient)
	first := zombie.acquire(`{"resource":"a","ttl_ms":2000}`)
	standby := primary.Standby()
	sqlOn(t, standby.URL(), `ALTER SYSTEM SET primary_conninfo = ''`, `SELECT pg_reload_conf()`)
	testenv.Eventually(t, 20*time.Second, func() error {
		if sqlValue[int](t, standby.URL(), `SELECT count(*) FROM pg_stat_wal_receiver`) > 0 {
			return errors.New("it still receives")
		}
		return nil
	})
	lost := zombie.acquire(`{"resource":"lost","ttl_ms":2000}`)
	if sqlValue[bool](t, standby.URL(), `SELECT EXISTS (SELECT FROM fencelock.rows WHERE key = 'clost')`) {
		t.Fatal("the standby has the commit that it was to lack")
	}

	sqlOn(t, standby.URL(), `SELECT pg_promote(wait => false)`) // one that waits is a query that the rest of the recovery may wait for
	promoted := time.Now()
	heir := startUnready(t, "http", http.DefaultClient, "FENCELOCK_STORE="+both(t, standby, standby), guard, "FENCELOCK_MAX_TTL=2s", patient)
	resp, err := heir.try(t.Context(), nil, "POST", "/locks", `{"resource":"lost","ttl_ms":2000}`)
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("it grants while earlier leases may live: %v, %v", resp, err)
	}
	heir.untilReady()
	took := time.Since(promoted)
	if took < maxTTL {
		t.Errorf("it serves %s after the promotion: earlier leases may live for %s", took, maxTTL)
	}
	t.Logf("service is back %s after the promotion, with a longest TTL of %s", took.Round(time.Millisecond), maxTTL)

	risen := heir.acquire(`{"resource":"lost","ttl_ms":2000}`)
	again := heir.acquire(`{"resource":"a","ttl_ms":2000}`)
	if risen.FencingToken <= lost.FencingToken || again.FencingToken <= first.FencingToken {
		t.Errorf("tokens %d after %d, %d after %d", risen.FencingToken, lost.FencingToken, again.FencingToken, first.FencingToken)
	}
	write := func(p *process, token int64, status int) {
		t.Helper()
		p.wants(p.ask(nil, "PUT", "/guarded/lost", `1`, "Fencing-Token: "+strconv.FormatInt(token, 10)), status)
	}
	write(heir, risen.FencingToken, http.StatusOK)
	late := zombie.acquire(`{"resource":"lost","ttl_ms":2000,"wait_ms":10000}`) // two primaries: it grants
	if late.FencingToken >= risen.FencingToken {
		t.Errorf("the old primary grants token %d, the new one %d", late.FencingToken, risen.FencingToken)
	}
	write(zombie, late.FencingToken, http.StatusPreconditionFailed)
}

// A running server finds the new primary after a failover, because its URL names both hosts.
func TestPostgresServersFollowAFailover(t *testing.T) {
	testenv.Long(t, "servers that stay with a Postgres which is no primary any more")
	t.Parallel()
	primary := testenv.StartPostgres(t)
	sqlOn(t, primary.URL(), `SELECT 1`)
	standby := primary.Standby()
	p := start(t, "FENCELOCK_STORE="+both(t, primary, standby), "FENCELOCK_MAX_TTL=2s")
	l := startLoad(p, 8)
	l.back(time.Now())
	primary.Kill()
	killed := time.Now()
	sqlOn(t, standby.URL(), `SELECT pg_promote(wait => false)`) // one that waits is a query that the rest of the recovery may wait for
	took := l.back(time.Now())
	t.Logf("service is back %s after the promotion, %s after the kill", took.Round(time.Millisecond), time.Since(killed).Round(time.Millisecond))
	l.end()
}

// Two servers without clients write hardly anything to their database.
func TestSoakIdleServersOnPostgres(t *testing.T) {
	testenv.Soak(t, "what idle servers write to Postgres")
	t.Parallel()
	pg := testenv.StartPostgres(t)
	for range 2 {
		start(t, "FENCELOCK_STORE="+pg.URL())
	}
	const (
		writes       = `SELECT last_value FROM fencelock.writes`
		transactions = `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`
		window       = time.Minute
	)
	time.Sleep(10 * time.Second) // what a start brings
	written, committed := sqlValue[int64](t, pg.URL(), writes), sqlValue[int64](t, pg.URL(), transactions)
	time.Sleep(window)
	written, committed = sqlValue[int64](t, pg.URL(), writes)-written, sqlValue[int64](t, pg.URL(), transactions)-committed
	t.Logf("two idle servers: %d writes a minute, %.1f transactions a second", written, float64(committed)/window.Seconds())
	if written > 2 {
		t.Errorf("two idle servers wrote %d times in %s", written, window)
	}
}

// A lease that is short for its store is granted if its commit takes less than half of it. A TTL that the store
// cannot keep is refused, and the response says why.
func TestShortLeasesOnASlowStore(t *testing.T) {
	testenv.Long(t, "short leases that a slow store makes useless")
	t.Parallel()
	f := newPostgresFaults(t)
	f.p.release(f.p.acquire(`{"resource":"a","ttl_ms":1000}`))
	f.line.Delay(60 * time.Millisecond) // a commit takes more than a tenth of the TTL
	f.p.acquire(`{"resource":"b","ttl_ms":1000}`)
	var problem wire.Problem
	f.p.wants(f.p.ask(&problem, "POST", "/locks", `{"resource":"c","ttl_ms":249}`), http.StatusBadRequest)
	if problem.Field != "ttl_ms" || !strings.Contains(problem.Detail, "from 250 to 3000: the store") {
		t.Errorf("%+v", problem)
	}
}

// While PgBouncer does not reach Postgres, and waits 15 s before it tries again, the server still responds to every
// request within its own time limit.
func TestRequestsInTimeBehindAPooler(t *testing.T) {
	testenv.Long(t, "a request that waits as long as a pooler does")
	t.Parallel()
	machine := testenv.MeasureLateness(t)
	pg := testenv.StartPostgres(t)
	way := testenv.StartProxy(t, hostOf(t, pg.URL()))
	u, err := url.Parse(pg.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.Host = way.Addr()
	const limit = 500 * time.Millisecond
	p := start(t, "FENCELOCK_STORE="+testenv.PgBouncer(t, u.String(), "transaction"), "FENCELOCK_NODE_TIMEOUT="+limit.String())
	lease := p.acquire(`{"resource":"held"}`)
	way.Cut(testenv.CutRefuse)
	way.Reset()
	var longest time.Duration
	refused := 0
	for range 10 {
		for _, request := range []func() (*http.Response, error){
			func() (*http.Response, error) {
				return p.try(t.Context(), nil, "POST", "/locks", `{"resource":"free"}`)
			},
			func() (*http.Response, error) {
				return p.try(t.Context(), nil, "POST", "/leases/current/extend", "", "Fencelock-Lease: "+lease.LeaseID)
			},
			func() (*http.Response, error) {
				return p.try(t.Context(), nil, "PUT", "/guarded/held", `1`, fencingToken(lease))
			},
		} {
			began := time.Now()
			resp, err := request()
			longest = max(longest, time.Since(began))
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode == http.StatusServiceUnavailable {
				refused++
			}
		}
	}
	t.Logf("%d of 30 refused, the longest after %s, on a machine late by %s", refused, longest, machine.Longest())
	const guard = 2 * time.Second // the guard's own limit, which is the longest
	if refused == 0 || longest > guard+time.Second+3*machine.Longest() {
		t.Errorf("%d requests were refused, and one took %s", refused, longest)
	}
}
