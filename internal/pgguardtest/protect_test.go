package pgguardtest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// theatre is a database with the guard installed, for one stage after another.
type theatre struct {
	t   *testing.T
	url string // of the owner of everything, who is no superuser

	superURL string
	levels   []pgx.TxIsoLevel // at which scenarios are played
	admn     *pgx.Conn        // of the stages, one after another: to connect for each is an eighth of what they cost
}

func newTheatre(t *testing.T) *theatre {
	t.Helper()
	t.Parallel()
	pg := installed(t)
	return &theatre{t: t, url: pg.OwnerURL(), superURL: pg.URL(), levels: isolations}
}

// stage is a table accounts with the rows 1, 2 and 3, each the resource
// accounts/<id>. The holder's token is 34. Whoever presents 33 is stale; what
// it does to the table, it does with balance -1, or by deleting.
type stage struct {
	t    *testing.T
	url  string
	admn *pgx.Conn
	iso  pgx.TxIsoLevel
	// protected: every scenario is played with protection, and without.
	protected bool
}

func (th *theatre) newStage(t *testing.T, protected bool, iso pgx.TxIsoLevel) *stage {
	t.Helper()
	s := &stage{t: t, url: th.url, iso: iso, protected: protected}
	if th.admn == nil || th.admn.IsClosed() {
		th.admn = (&stage{t: th.t, url: th.url}).connect()
	}
	s.admn = th.admn
	s.exec(`
		ROLLBACK;
		RESET ALL;
		DISCARD TEMP;
		DROP SCHEMA IF EXISTS app CASCADE;
		DELETE FROM fencing.marks;
		CREATE SCHEMA app;
		CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0, note varchar(99)); -- short, so there is no TOAST table
		INSERT INTO accounts SELECT generate_series(1, 3)`)
	s.protect("accounts", `'accounts/' || id`)
	return s
}

func (s *stage) connect() *pgx.Conn {
	s.t.Helper()
	config, err := pgx.ParseConfig(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	config.RuntimeParams["search_path"] = "app"
	conn, err := pgx.ConnectConfig(s.t.Context(), config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (s *stage) exec(sql string, args ...any) {
	s.t.Helper()
	mustExec(s.t, s.admn, sql, args...)
}

func (s *stage) protect(table, resource string) {
	s.t.Helper()
	if s.protected {
		s.exec(`SELECT fencing.protect($1::text::regclass, $2)`, table, resource)
	}
}

// claim34 makes token 34 the mark of the three resources.
func (s *stage) claim34() {
	s.t.Helper()
	s.exec(`SELECT fencing.claim('accounts/' || id, 34) FROM generate_series(1, 3) AS id`)
}

// begin starts a transaction at the stage's isolation level.
func (s *stage) begin() pgx.Tx {
	s.t.Helper()
	tx, err := s.connect().BeginTx(s.t.Context(), pgx.TxOptions{IsoLevel: s.iso})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// damaged says whether a stale writer changed the table.
func (s *stage) damaged() bool {
	s.t.Helper()
	var damage int
	err := s.admn.QueryRow(s.t.Context(), `
		SELECT count(*) FILTER (WHERE balance = -1) + abs(3 - count(*) FILTER (WHERE balance <> -1)) FROM accounts`).Scan(&damage)
	if err != nil {
		s.t.Fatal(err)
	}
	return damage > 0
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func mustExec(t *testing.T, db execer, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// async runs a statement that may have to wait for another transaction.
func async(t *testing.T, db execer, sql string, args ...any) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := db.Exec(t.Context(), sql, args...)
		done <- err
	}()
	return done
}

// waits returns once some statement waits for a lock, or once it is done,
// which is what happens without a guard.
func (s *stage) waits(done <-chan error) (waited bool, err error) {
	s.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		var n int
		if err := s.admn.QueryRow(s.t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n); err != nil {
			s.t.Fatal(err)
		}
		if n > 0 {
			return true, nil
		}
		select {
		case err := <-done:
			return false, err
		case <-deadline:
			s.t.Fatal("the statement neither waits nor ends")
		default:
		}
	}
}

var isolations = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// usual is the default level. What one transaction does alone is refused at each level in the same way, so the
// first tier plays that at this one.
var usual, others = isolations[:1], isolations[1:]

func (th *theatre) at(levels []pgx.TxIsoLevel) *theatre {
	th.levels = levels
	return th
}

// play runs a scenario with and without protection at every isolation level.
// It returns what the stale writer was told, nil if its change was committed.
// With protection that must be one of the refusals, and the table unharmed;
// without, the harm must be done, or the scenario proves nothing.
func (th *theatre) play(name string, refusals []string, scenario func(s *stage) error) {
	for _, iso := range th.levels {
		th.playAt(iso, name, refusals, scenario)
	}
}

func (th *theatre) playAt(iso pgx.TxIsoLevel, name string, refusals []string, scenario func(s *stage) error) {
	for _, protected := range []bool{true, false} {
		th.t.Run(fmt.Sprintf("%s/%s/protected=%t", name, iso, protected), func(t *testing.T) {
			s := th.newStage(t, protected, iso)
			err := scenario(s)
			switch damaged := s.damaged(); {
			case protected && !slices.Contains(refusals, sqlState(err)):
				t.Errorf("the stale writer was told %v, want one of %v", err, refusals)
			case protected && damaged:
				t.Error("the stale write is in the table")
			case !protected && err != nil:
				t.Errorf("without protection the stale write fails too, so this proves nothing: %v", err)
			case !protected && !damaged:
				t.Error("without protection the stale write is not in the table, so this proves nothing")
			}
		})
	}
}

// stale is what a stale writer is told at a level where it may also run into
// the holder's newer version of the mark.
var stale = []string{pgguard.SQLStateStale}

// TestEveryFormOfWrite has a stale writer try each way of changing a row.
func TestEveryFormOfWrite(t *testing.T) { everyFormOfWrite(newTheatre(t).at(usual)) }

func TestEveryFormOfWriteAtOtherLevels(t *testing.T) {
	testenv.Long(t, "a form of write that a stale writer can use at REPEATABLE READ or SERIALIZABLE alone")
	everyFormOfWrite(newTheatre(t).at(others))
}

func everyFormOfWrite(th *theatre) {
	th.t.Helper()
	forms := map[string][]string{
		"insert":                    {`INSERT INTO accounts VALUES (9, -1)`},
		"insert, select":            {`INSERT INTO accounts SELECT 9, -1`},
		"update":                    {`UPDATE accounts SET balance = -1 WHERE id = 1`},
		"update of several rows":    {`UPDATE accounts SET balance = -1`},
		"update from":               {`UPDATE accounts a SET balance = -1 FROM accounts b WHERE a.id = b.id AND b.id = 1`},
		"update back and forth":     {`UPDATE accounts SET balance = -1 WHERE id = 1`, `UPDATE accounts SET note = 'x' WHERE id = 1`},
		"update that moves the row": {`UPDATE accounts SET id = 9, balance = -1 WHERE id = 1`},
		"delete":                    {`DELETE FROM accounts WHERE id = 1`},
		"delete using":              {`DELETE FROM accounts a USING accounts b WHERE a.id = b.id AND b.id = 1`},
		"on conflict, update":       {`INSERT INTO accounts VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET balance = -1`},
		"on conflict, nothing":      {`INSERT INTO accounts VALUES (9, -1) ON CONFLICT DO NOTHING`},
		"data-modifying with":       {`WITH w AS (UPDATE accounts SET balance = -1 WHERE id = 1 RETURNING *) SELECT * FROM w`},
		"merge, update":             {`MERGE INTO accounts USING (VALUES (1)) v (id) ON accounts.id = v.id WHEN MATCHED THEN UPDATE SET balance = -1`},
		"merge, delete":             {`MERGE INTO accounts USING (VALUES (1)) v (id) ON accounts.id = v.id WHEN MATCHED THEN DELETE`},
		"merge, insert":             {`MERGE INTO accounts USING (VALUES (9)) v (id) ON accounts.id = v.id WHEN NOT MATCHED THEN INSERT VALUES (9, -1)`},
		"through a view":            {`CREATE VIEW v AS SELECT * FROM accounts`, `UPDATE v SET balance = -1 WHERE id = 1`},
		"through a function":        {`DO $$ BEGIN UPDATE accounts SET balance = -1 WHERE id = 1; END $$`},
		"through a prepared plan":   {`PREPARE p(int) AS UPDATE accounts SET balance = -1 WHERE id = $1`, `EXECUTE p(1)`},
		"at a cursor":               {`DECLARE c CURSOR FOR SELECT * FROM accounts WHERE id = 1 FOR UPDATE`, `FETCH c`, `UPDATE accounts SET balance = -1 WHERE CURRENT OF c`},
		"after a rule":              {`CREATE TABLE inbox (id int)`, `CREATE RULE r AS ON INSERT TO inbox DO ALSO UPDATE accounts SET balance = -1 WHERE id = NEW.id`, `INSERT INTO inbox VALUES (1)`},
		"by another table's trigger": {
			`CREATE TABLE inbox (id int)`,
			`CREATE FUNCTION pass_on() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE accounts SET balance = -1 WHERE id = NEW.id; RETURN NEW; END $$`,
			`CREATE TRIGGER t BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION pass_on()`, `INSERT INTO inbox VALUES (1)`,
		},
		"disguised by a trigger that fires later": {
			`CREATE FUNCTION disguise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := 1; NEW.balance := -1; RETURN NEW; END $$`,
			`CREATE TRIGGER zzz BEFORE INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION disguise()`,
			`SELECT fencing.claim('accounts/77', 1)`, `DELETE FROM accounts WHERE id = 1`, `INSERT INTO accounts VALUES (77)`,
		},
		"in a subtransaction": {`SAVEPOINT a`, `UPDATE accounts SET balance = -1 WHERE id = 1`, `RELEASE a`},
	}
	for name, statements := range forms {
		th.play(name, stale, func(s *stage) error {
			if strings.HasPrefix(name, "merge") && s.version() < 150000 {
				s.t.Skipf("MERGE came with PostgreSQL 15, this is %d", s.version())
			}
			s.claim34()
			s.exec(`SELECT fencing.claim('accounts/9', 34)`)
			tx := s.begin()
			mustExec(s.t, tx, presentMany(33))
			for _, sql := range statements {
				if _, err := tx.Exec(s.t.Context(), sql); err != nil {
					return err
				}
			}
			return tx.Commit(s.t.Context())
		})
	}
}

func (s *stage) version() (v int) {
	s.t.Helper()
	if err := s.admn.QueryRow(s.t.Context(), `SELECT current_setting('server_version_num')::int`).Scan(&v); err != nil {
		s.t.Fatal(err)
	}
	return v
}

// presentMany presents one token for all the resources of a stage.
func presentMany(token int) string {
	return fmt.Sprintf(`SELECT set_config('fencing.token', string_agg(pg_current_xact_id() || ' %d accounts/' || id, E'\n'), true)
		FROM unnest(ARRAY[1, 2, 3, 9]) AS id`, token)
}

func TestCopy(t *testing.T) {
	th := newTheatre(t)
	th.play("copy", stale, func(s *stage) error {
		s.claim34()
		s.exec(`SELECT fencing.claim('accounts/9', 34)`)
		tx := s.begin()
		mustExec(s.t, tx, presentMany(33))
		if _, err := tx.CopyFrom(s.t.Context(), pgx.Identifier{"accounts"}, []string{"id", "balance"}, pgx.CopyFromRows([][]any{{9, -1}})); err != nil {
			return err
		}
		return tx.Commit(s.t.Context())
	})
}

// TestTruncate: it fires no row trigger, and removes rows of every resource.
func TestTruncate(t *testing.T) {
	th := newTheatre(t)
	// Above READ COMMITTED a snapshot may not show all the rows that go.
	refused := []string{pgguard.SQLStateStale, "0A000"}
	th.play("stale", refused, func(s *stage) error {
		s.claim34()
		tx := s.begin()
		mustExec(s.t, tx, presentMany(33))
		if _, err := tx.Exec(s.t.Context(), `TRUNCATE accounts`); err != nil {
			return err
		}
		return tx.Commit(s.t.Context())
	})
	th.play("a token for only some of the rows", []string{pgguard.SQLStateMissing, "0A000"}, func(s *stage) error {
		s.claim34()
		tx := s.begin()
		mustExec(s.t, tx, `SELECT fencing.claim('accounts/1', 35)`)
		if _, err := tx.Exec(s.t.Context(), `TRUNCATE accounts`); err != nil {
			return err
		}
		return tx.Commit(s.t.Context())
	})
	th.play("by cascade", refused, func(s *stage) error {
		s.claim34()
		s.exec(`CREATE TABLE parents (id int PRIMARY KEY)`)
		s.exec(`INSERT INTO parents SELECT id FROM accounts`)
		s.exec(`ALTER TABLE accounts ADD FOREIGN KEY (id) REFERENCES parents`)
		tx := s.begin()
		mustExec(s.t, tx, presentMany(33))
		if _, err := tx.Exec(s.t.Context(), `TRUNCATE parents CASCADE`); err != nil {
			return err
		}
		return tx.Commit(s.t.Context())
	})
}

func TestForeignKeyCascades(t *testing.T) {
	th := newTheatre(t)
	for name, c := range map[string]struct{ action, sql string }{
		"delete": {"ON DELETE CASCADE", `DELETE FROM parents WHERE id = 1`},
		"update": {"ON UPDATE CASCADE", `UPDATE parents SET id = -1 WHERE id = 1`},
	} {
		th.play(name, stale, func(s *stage) error {
			s.claim34()
			s.exec(`CREATE TABLE parents (id bigint PRIMARY KEY)`)
			s.exec(`INSERT INTO parents VALUES (0), (1)`)
			s.exec(`ALTER TABLE accounts ADD COLUMN parent bigint REFERENCES parents ` + c.action)
			s.exec(`ALTER TABLE accounts DISABLE TRIGGER USER`)
			s.exec(`UPDATE accounts SET parent = id WHERE id = 1`)
			s.exec(`ALTER TABLE accounts ENABLE TRIGGER USER`)
			tx := s.begin()
			mustExec(s.t, tx, presentMany(33))
			if _, err := tx.Exec(s.t.Context(), c.sql); err != nil {
				return err
			}
			if !s.protected && name == "update" {
				mustExec(s.t, tx, `UPDATE accounts SET balance = parent WHERE parent = -1`) // make the damage visible
			}
			return tx.Commit(s.t.Context())
		})
	}
}

// TestPartitions covers rows that move between partitions, partitions that are
// written directly, and one that was made after the table was protected.
func TestPartitions(t *testing.T) { movesBetweenPartitions(newTheatre(t).at(usual)) }

func TestPartitionsAtOtherLevels(t *testing.T) {
	testenv.Long(t, "a stale write to a partition that passes at REPEATABLE READ or SERIALIZABLE alone")
	movesBetweenPartitions(newTheatre(t).at(others))
}

func movesBetweenPartitions(th *theatre) {
	th.t.Helper()
	for name, sql := range map[string]string{
		"an update that moves the row":           `UPDATE accounts SET region = 'us', balance = -1 WHERE id = 1`,
		"an update of the partition":             `UPDATE accounts_eu SET balance = -1 WHERE id = 1`,
		"an insert into a later partition":       `INSERT INTO accounts_asia VALUES (9, 'asia', -1)`,
		"an update that moves it to a later one": `UPDATE accounts SET region = 'asia', balance = -1 WHERE id = 1`,
		"a delete through the parent":            `DELETE FROM accounts WHERE id = 1`,
	} {
		th.play(name, stale, func(s *stage) error {
			s.partition()
			s.claim34()
			s.exec(`SELECT fencing.claim('accounts/9', 34)`)
			tx := s.begin()
			mustExec(s.t, tx, presentMany(33))
			if _, err := tx.Exec(s.t.Context(), sql); err != nil {
				return err
			}
			return tx.Commit(s.t.Context())
		})
	}
	th.play("truncate of a partition", []string{pgguard.SQLStateStale, "0A000"}, func(s *stage) error {
		s.partition()
		s.claim34()
		tx := s.begin()
		mustExec(s.t, tx, presentMany(33))
		if _, err := tx.Exec(s.t.Context(), `TRUNCATE accounts_eu`); err != nil {
			return err
		}
		return tx.Commit(s.t.Context())
	})
}

func (s *stage) partition() {
	s.t.Helper()
	s.exec(`DROP TABLE accounts`)
	s.exec(`CREATE TABLE accounts (id int, region text, balance bigint NOT NULL DEFAULT 0) PARTITION BY LIST (region)`)
	s.exec(`CREATE TABLE accounts_eu PARTITION OF accounts FOR VALUES IN ('eu')`)
	s.exec(`CREATE TABLE accounts_us PARTITION OF accounts FOR VALUES IN ('us')`)
	s.exec(`INSERT INTO accounts SELECT generate_series(1, 3), 'eu'`)
	s.protect("accounts", `'accounts/' || id`)
	s.exec(`CREATE TABLE accounts_asia PARTITION OF accounts FOR VALUES IN ('asia')`)
}

// TestNoTokenNoWrite: a writer that forgot about tokens altogether.
func TestNoTokenNoWrite(t *testing.T) { noTokenNoWrite(newTheatre(t).at(usual)) }

func TestNoTokenNoWriteAtOtherLevels(t *testing.T) {
	testenv.Long(t, "a write without a token that passes at REPEATABLE READ or SERIALIZABLE alone")
	noTokenNoWrite(newTheatre(t).at(others))
}

func noTokenNoWrite(th *theatre) {
	th.t.Helper()
	missing := []string{pgguard.SQLStateMissing}
	write := func(s *stage, tx pgx.Tx) error {
		if _, err := tx.Exec(s.t.Context(), `UPDATE accounts SET balance = -1 WHERE id = 1`); err != nil {
			return err
		}
		return tx.Commit(s.t.Context())
	}
	th.play("nothing was ever claimed", missing, func(s *stage) error { return write(s, s.begin()) })
	th.play("somebody else has claimed", missing, func(s *stage) error {
		s.claim34()
		return write(s, s.begin())
	})
	th.play("a token for another resource", missing, func(s *stage) error {
		tx := s.begin()
		mustExec(s.t, tx, `SELECT fencing.claim('accounts/2', 99), fencing.present('accounts/11', 99)`)
		return write(s, tx)
	})
	th.play("a token for where the row goes, not for where it was", missing, func(s *stage) error {
		tx := s.begin()
		mustExec(s.t, tx, `SELECT fencing.claim('accounts/9', 34)`)
		if _, err := tx.Exec(s.t.Context(), `UPDATE accounts SET id = 9, balance = -1 WHERE id = 1`); err != nil {
			return err
		}
		return tx.Commit(s.t.Context())
	})
	th.play("claimed by this connection's last transaction", missing, func(s *stage) error {
		conn := s.connect()
		mustExec(s.t, conn, `SELECT fencing.claim('accounts/1', 34)`)
		tx, err := conn.BeginTx(s.t.Context(), pgx.TxOptions{IsoLevel: s.iso})
		if err != nil {
			s.t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		return write(s, tx)
	})
	for name, local := range map[string]bool{"left over for the session": false, "left over from SET LOCAL": true} {
		th.play(name, missing, func(s *stage) error {
			conn := s.connect()
			mustExec(s.t, conn, `SELECT set_config('fencing.token', pg_current_xact_id() || ' 34 accounts/1', $1)`, local)
			tx, err := conn.BeginTx(s.t.Context(), pgx.TxOptions{IsoLevel: s.iso})
			if err != nil {
				s.t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			return write(s, tx)
		})
	}
	th.play("a claim's note left over for the session", missing, func(s *stage) error {
		conn := s.connect()
		mustExec(s.t, conn, `SELECT fencing.claim('accounts/1', 34), set_config('fencing.claimed', pg_current_xact_id() || ' accounts/1', false)`)
		tx, err := conn.BeginTx(s.t.Context(), pgx.TxOptions{IsoLevel: s.iso})
		if err != nil {
			s.t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		return write(s, tx)
	})
	th.play("a bare number as the session's setting", missing, func(s *stage) error {
		tx := s.begin()
		mustExec(s.t, tx, `SET fencing.token = '34 accounts/1'`)
		return write(s, tx)
	})
	th.play("claimed in a savepoint that was rolled back", missing, func(s *stage) error {
		tx := s.begin()
		mustExec(s.t, tx, `SAVEPOINT a`)
		mustExec(s.t, tx, `SELECT fencing.claim('accounts/1', 33), fencing.present('accounts/1', 33)`)
		mustExec(s.t, tx, `ROLLBACK TO a`)
		return write(s, tx)
	})
	th.play("a row without a resource", []string{pgguard.SQLStateMalformed}, func(s *stage) error {
		s.protect("accounts", `'accounts/' || nullif(id, 9)`)
		tx := s.begin()
		mustExec(s.t, tx, presentMany(34))
		if _, err := tx.Exec(s.t.Context(), `INSERT INTO accounts VALUES (9, -1)`); err != nil {
			return err
		}
		return tx.Commit(s.t.Context())
	})
	th.play("a malformed token", []string{pgguard.SQLStateMalformed}, func(s *stage) error {
		tx := s.begin()
		mustExec(s.t, tx, `SELECT set_config('fencing.token', pg_current_xact_id() || ' 34x accounts/1', true)`)
		return write(s, tx)
	})
}
