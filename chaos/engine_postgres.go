package chaos

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
)

// lag is how long clients make commits that a copy of the database lacks.
const lag = 400 * time.Millisecond

// postgresEngine is a Postgres that every server reaches through a proxy of its own, which plays the role of
// an address that follows the primary.
type postgresEngine struct {
	t       testing.TB
	primary *testenv.PG
	lines   []*testenv.Proxy
	standby *testenv.PG     // the standby that a fault made
	backup  *testenv.Backup // the backup that a fault made
}

func startPostgresEngine(tb testing.TB, servers int) Engine {
	tb.Helper()
	e := &postgresEngine{t: tb, primary: testenv.StartPostgres(tb)}
	for range servers {
		e.lines = append(e.lines, testenv.StartProxy(tb, hostOf(tb, e.primary.OwnerURL())))
	}
	return e
}

func (e *postgresEngine) Store(server int) string {
	return withHost(e.t, e.primary.OwnerURL(), e.lines[server].Addr())
}

// Faults lists the faults of Postgres and of the proxies.
func (e *postgresEngine) Faults() []Fault {
	return []Fault{
		{Name: "engine: kill -9", Major: true, begin: e.begin(func() { e.primary.Kill() }, func() { e.primary.Restart() })},
		{Name: "engine: SIGSTOP", Major: true, begin: e.begin(func() { e.primary.Freeze() }, func() { e.primary.Thaw() })},
		{Name: "engine: partition", Major: true, begin: e.begin(func() { e.cut(e.lines...) }, e.heal)},
		{Name: "engine: a server is cut off", cutsServer: true, begin: e.cutOneOff},
		{Name: "engine: replies lost, resets", Major: true, begin: e.flaky},
		{Name: "engine: switchover", Major: true, prepare: e.followed, begin: e.begin(e.switchOver, func() {})},
		{Name: "engine: promotion without the last commits", Major: true, prepare: e.copied, begin: e.begin(e.failOver, func() {})},
		{Name: "engine: promotion while the old primary serves one server", Major: true, Split: true, prepare: e.copied, begin: e.begin(e.split, e.unite)},
		{Name: "engine: restore to a point in time", Major: true, prepare: e.backedUp, begin: e.begin(e.restore, func() {})},
	}
}

func (*postgresEngine) begin(do, end func()) func(*Stand, *rand.Rand, []*node) course {
	return func(*Stand, *rand.Rand, []*node) course {
		do()
		return course{end: end}
	}
}

func (*postgresEngine) cut(lines ...*testenv.Proxy) {
	for _, line := range lines {
		line.Cut(testenv.CutBlackhole)
	}
}

// heal ends all faults of the proxies.
func (e *postgresEngine) heal() {
	for _, line := range e.lines {
		line.DropReplies(false)
		line.Cut(testenv.CutNone)
		line.Reset() // the stream would lack the bytes that a cut swallowed
	}
}

func (e *postgresEngine) cutOneOff(s *Stand, random *rand.Rand, _ []*node) course {
	server := random.IntN(len(e.lines))
	e.cut(e.lines[server])
	return s.without(server, e.heal)
}

func (e *postgresEngine) flaky(_ *Stand, random *rand.Rand, _ []*node) course {
	return course{
		tick: func() {
			for _, line := range e.lines {
				line.DropReplies(random.IntN(3) == 0)
				line.Reset()
			}
		},
		end: e.heal,
	}
}

// copied makes a standby that gets no further commits.
func (e *postgresEngine) copied(*Stand, []*node) {
	e.standby = e.primary.Standby()
	e.sql(e.standby, `ALTER SYSTEM SET primary_conninfo = ''`, `SELECT pg_reload_conf()`)
}

// followed makes a standby that gets every commit.
func (e *postgresEngine) followed(*Stand, []*node) { e.standby = e.primary.Standby() }

// switchOver does a planned failover like Patroni's: it stops the primary after the standby has every commit,
// and promotes the standby.
func (e *postgresEngine) switchOver() {
	wait(lag)
	e.primary.Shutdown()
	e.sql(e.standby, `SELECT pg_promote()`)
	e.move(e.standby, e.lines...)
}

func (e *postgresEngine) backedUp(*Stand, []*node) { e.backup = e.primary.Backup() }

// failOver promotes the standby after the primary has died with commits that the standby lacks.
func (e *postgresEngine) failOver() {
	wait(lag)
	e.primary.Kill()
	e.sql(e.standby, `SELECT pg_promote()`)
	e.move(e.standby, e.lines...)
}

// split promotes the standby while the first server continues to use the old primary.
func (e *postgresEngine) split() {
	wait(lag)
	e.sql(e.standby, `SELECT pg_promote()`)
	e.move(e.standby, e.lines[1:]...)
}

func (e *postgresEngine) unite() {
	e.primary.Kill()
	e.move(e.standby, e.lines...)
}

func (e *postgresEngine) restore() {
	wait(lag)
	e.primary.Kill()
	e.move(e.backup.Restore(), e.lines...)
}

// move connects proxies to another server. That server is the primary when all proxies are moved.
func (e *postgresEngine) move(to *testenv.PG, lines ...*testenv.Proxy) {
	for _, line := range lines {
		line.Retarget(hostOf(e.t, to.OwnerURL()))
	}
	if len(lines) == len(e.lines) {
		e.primary = to
	}
}

func (e *postgresEngine) sql(pg *testenv.PG, statements ...string) {
	e.t.Helper()
	ctx := context.WithoutCancel(e.t.Context())
	conn, err := pgx.Connect(ctx, pg.URL())
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			e.t.Fatalf("%s: %v", statement, err)
		}
	}
}
