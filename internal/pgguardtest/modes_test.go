package pgguardtest_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/storage/pgguard"
)

type status struct {
	Mode, Problem           string
	Mark, Refused, Unfenced int64
	Resource                string
}

func (s *stage) status(kind, name string) status {
	s.t.Helper()
	var st status
	err := s.admn.QueryRow(s.t.Context(), `
		SELECT coalesce(mode, ''), coalesce(problem, ''), coalesce(mark, 0), coalesce(refused, 0), coalesce(unfenced, 0), coalesce(resource_sql, '')
		  FROM fencing.status WHERE kind = $1 AND name = $2`, kind, name).
		Scan(&st.Mode, &st.Problem, &st.Mark, &st.Refused, &st.Unfenced, &st.Resource)
	if err != nil {
		s.t.Fatalf("status of %s %s: %v", kind, name, err)
	}
	return st
}

// fails runs a statement and returns the SQLSTATE of its failure.
func (s *stage) fails(db execer, sql string, args ...any) string {
	s.t.Helper()
	_, err := db.Exec(s.t.Context(), sql, args...)
	if err == nil {
		s.t.Errorf("%s: went through", sql)
	}
	return sqlState(err)
}

func TestMigratingMode(t *testing.T) {
	s := newTheatre(t).newStage(t, false, pgx.ReadCommitted)
	s.exec(`SELECT fencing.protect('accounts', $$'accounts/' || id$$, 'migrating')`)
	s.claim34()
	s.exec(`UPDATE accounts SET balance = 1`)          // 3 rows without a token
	s.exec(`UPDATE accounts SET id = 10 WHERE id = 1`) // 2 resources
	s.exec(`UPDATE accounts SET balance = 2 WHERE id = 2 AND fencing.present('accounts/2', 34) <> ''`)
	if got := s.fails(s.admn, `UPDATE accounts SET balance = -1 WHERE id = 2 AND fencing.present('accounts/2', 33) <> ''`); got != pgguard.SQLStateStale {
		t.Errorf("a stale write in mode migrating gives %s", got)
	}
	if got := s.status("table", "accounts"); got.Mode != "migrating" || got.Unfenced != 5 || got.Refused != 1 || got.Problem != "" {
		t.Errorf("status is %+v, want 5 unfenced and 1 refused", got)
	}
	s.exec(`SELECT fencing.protect('accounts', $$'accounts/' || id$$, 'strict')`)
	if got := s.fails(s.admn, `UPDATE accounts SET balance = 3`); got != pgguard.SQLStateMissing {
		t.Errorf("without a token, mode strict gives %s", got)
	}
	if got := s.status("table", "accounts"); got.Mode != "strict" || got.Unfenced != 6 {
		t.Errorf("status is %+v after the change of mode, want the counts kept and the refusal counted", got)
	}
}

func TestStatus(t *testing.T) {
	s := newTheatre(t).newStage(t, true, pgx.ReadCommitted)
	s.claim34()
	s.exec(`SELECT fencing.try_claim('accounts/1', 33)`)
	s.exec(`SELECT fencing.try_claim('accounts/1', 35)`)
	if got := s.status("resource", "accounts/1"); got.Mark != 35 {
		t.Errorf("status of the resource is %+v", got)
	}
	if got := s.status("table", "accounts"); got.Problem != "" || got.Refused != 1 || got.Resource != `('accounts/'::text || id)` {
		t.Errorf("status of the table is %+v", got)
	}
	s.exec(`ALTER TABLE accounts DISABLE TRIGGER "0_fencing_guard"`)
	if got := s.status("table", "accounts"); !strings.Contains(got.Problem, "0_fencing_guard") {
		t.Errorf("a disabled trigger is not reported: %+v", got)
	}
	s.exec(`ALTER TABLE accounts ENABLE ALWAYS TRIGGER "0_fencing_guard"`)
	if got := s.status("table", "accounts"); got.Problem != "" {
		t.Errorf("an always enabled trigger is reported: %+v", got)
	}

	s.partition()
	if got := s.status("table", "accounts"); !strings.Contains(got.Problem, "accounts_asia has no working trigger 0_fencing_truncate") {
		t.Errorf("a partition made later is not reported: %+v", got)
	}
	s.protect("accounts", `'accounts/' || id`)
	if got := s.status("table", "accounts"); got.Problem != "" {
		t.Errorf("after protecting again: %+v", got)
	}
	if got := s.fails(s.admn, `SELECT fencing.protect('accounts_eu', 'region')`); got != "42809" {
		t.Errorf("protecting a partition of a protected table gives %s", got)
	}
	s.exec(`SELECT fencing.unprotect('accounts')`)
	s.exec(`TRUNCATE accounts_eu, accounts_asia`)

	s.exec(`CREATE TABLE parents (id int)`)
	s.protect("parents", `'parents/' || id`)
	s.exec(`CREATE TABLE children () INHERITS (parents)`)
	if got := s.status("table", "parents"); got.Problem != "app.children inherits from it and is not guarded" {
		t.Errorf("a table that inherits is not reported: %+v", got)
	}
}

// TestNothingIsLeftOfADroppedTable: its functions and counters go when the
// next table is protected, its row of the status is honest until then.
func TestNothingIsLeftOfADroppedTable(t *testing.T) {
	s := newTheatre(t).newStage(t, true, pgx.ReadCommitted)
	s.exec(`CREATE TABLE other (id text)`)
	s.exec(`DROP TABLE accounts`)
	var problem string
	if err := s.admn.QueryRow(t.Context(), `SELECT problem FROM fencing.status WHERE kind = 'table'`).Scan(&problem); err != nil || !strings.Contains(problem, "dropped") {
		t.Errorf("status says %q, %v", problem, err)
	}
	s.protect("other", "id")
	var left int
	err := s.admn.QueryRow(t.Context(), `SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencing'::regnamespace AND proname LIKE 'guard\_%'`).Scan(&left)
	if err != nil || left != 1 {
		t.Errorf("%d guard functions for one table, %v", left, err)
	}
}

func TestUnprotect(t *testing.T) {
	s := newTheatre(t).newStage(t, true, pgx.ReadCommitted)
	s.claim34()
	for _, want := range []bool{true, false} {
		var had bool
		if err := s.admn.QueryRow(t.Context(), `SELECT fencing.unprotect('accounts')`).Scan(&had); err != nil || had != want {
			t.Errorf("unprotect gives %t, %v; want %t", had, err, want)
		}
	}
	s.exec(`UPDATE accounts SET balance = 1`)
	s.protect("accounts", `'accounts/' || id`)
	if got := s.fails(s.admn, `SELECT fencing.claim('accounts/1', 33)`); got != pgguard.SQLStateStale {
		t.Errorf("the mark was lost with the protection: %s", got)
	}
}

var (
	notNames = regexp.MustCompile(`--.*|'[^']*'|OPERATOR\(pg_catalog\.[^)]*\)|pg_catalog\."C"|pg_catalog\.\w+|fencing\.\w+|:=|::|(?:\bSET|,) \w+ =`)
	bareName = regexp.MustCompile(`(?i)[-+*/<>=~!@#%^&|?]+|\b(text|varchar|bool(ean)?|bigint|int8?)\b|\b(IS DISTINCT|CASE|IN|LIKE|BETWEEN)\b|"C"|\b\w+\(`)
)

// TestNamesInFull reads the functions that run with the owner's rights and a
// writer's search_path: nothing in them may be left to that path.
func TestNamesInFull(t *testing.T) {
	th := newTheatre(t)
	s := th.newStage(t, false, pgx.ReadCommitted)
	s.exec(`CREATE DOMAIN whole AS int`)
	s.exec(`CREATE TABLE odd (a smallint, b int, c bigint, d uuid, e text, f varchar, "G ' || h" char(3), h numeric, i bool, j text COLLATE "C", k whole)`)
	for expression, stays := range map[string]string{
		`a || '/' || b || c || d`: `pg_catalog.int8eq(row_now.a, row_was.a) AND pg_catalog.int8eq(row_now.b, row_was.b) AND pg_catalog.int8eq(row_now.c, row_was.c) AND pg_catalog.uuid_eq(row_now.d, row_was.d) THEN`,
		`'row_now.b' || e || f`:   `pg_catalog.texteq(row_now.e COLLATE pg_catalog."C", row_was.e) AND pg_catalog.texteq(row_now.f COLLATE pg_catalog."C", row_was.f) THEN`,
		`'i' || i || j`:           `pg_catalog.booleq(row_now.i, row_was.i) AND pg_catalog.texteq(row_now.j COLLATE pg_catalog."C", row_was.j) THEN`,
		`'it''s || ::text'`:       ` AND true THEN`,
		// These types are not compared to the letter, or may be changed to what depends on settings.
		`'h' || h || b`: "",
		`"G ' || h"`:    "",
		`'k' || k`:      "",
	} {
		s.exec(`SELECT fencing.protect('odd', $1)`, expression)
		rows, err := s.admn.Query(t.Context(), `SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'fencing'::regnamespace AND prosecdef AND proconfig IS NULL`)
		if err != nil {
			t.Fatal(err)
		}
		sources, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Name, Source string }])
		want := 2 // claim and the guard's
		if stays == "" {
			want = 1
		}
		if err != nil || len(sources) != want {
			t.Fatalf("%s: %d functions without SET, %v; want %d", expression, len(sources), err, want)
		}
		for _, f := range sources {
			rest := notNames.ReplaceAllString(f.Source, "")
			if bare := bareName.FindAllString(rest, -1); bare != nil {
				t.Errorf("%s, in %s: %q not in full", expression, f.Name, bare)
			}
			if strings.HasPrefix(f.Name, "guard_") && !strings.Contains(f.Source, stays) {
				t.Errorf("%s: the row is not seen to stay by %s in\n%s", expression, stays, f.Source)
			}
		}
	}
}

// TestEqualIsToTheLetter: a column whose collation holds different texts to be
// equal does not make one resource of two.
func TestEqualIsToTheLetter(t *testing.T) {
	th := newTheatre(t)
	for _, expression := range []string{`name`, `'names/' || name`, `lower(upper(name)) || name`} {
		t.Run(expression, func(t *testing.T) {
			s := th.newStage(t, false, pgx.ReadCommitted)
			s.exec(`CREATE COLLATION careless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
			s.exec(`CREATE TABLE names (id int, name text COLLATE careless)`)
			s.exec(`INSERT INTO names VALUES (1, 'a'), (2, 'A')`)
			var small, capital string
			err := s.admn.QueryRow(t.Context(), `SELECT min(r) FILTER (WHERE id = 1), min(r) FILTER (WHERE id = 2) FROM (SELECT id, `+expression+` COLLATE "C" AS r FROM names) AS x`).Scan(&small, &capital)
			if err != nil {
				t.Fatal(err)
			}
			s.exec(`SELECT fencing.protect('names', $1)`, expression)
			for _, state := range []string{
				`SELECT fencing.claim($1, 34)`,
				`SELECT fencing.present($1, 34)`,
			} {
				for _, c := range []struct{ resource, sql, want string }{
					{small, `UPDATE names SET id = 1 WHERE id = 1`, ""},
					{small, `UPDATE names SET id = 2 WHERE id = 2`, pgguard.SQLStateMissing},
					{small, `UPDATE names SET name = 'a' WHERE id = 2`, pgguard.SQLStateMissing},
					{small, `UPDATE names SET name = 'A' WHERE id = 1`, pgguard.SQLStateMissing},
					{small, `TRUNCATE names`, pgguard.SQLStateMissing},
					{capital, `TRUNCATE names`, pgguard.SQLStateMissing},
				} {
					tx := s.begin()
					mustExec(t, tx, state, c.resource)
					if _, err := tx.Exec(t.Context(), c.sql); sqlState(err) != c.want {
						t.Errorf("%s of %s; %s gives %v, want %q", state, c.resource, c.sql, err, c.want)
					}
					_ = tx.Rollback(t.Context())
				}
			}
		})
	}
}

// TestEveryColumnCounts: a row leaves its resource by any column of the expression.
func TestEveryColumnCounts(t *testing.T) {
	th := newTheatre(t)
	for kind, values := range map[string][2]string{
		"int":     {"1", "2"},
		"text":    {"a", "b"},
		"uuid":    {"11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"},
		"numeric": {"1.0", "1.00"},
	} {
		t.Run(kind, func(t *testing.T) {
			s := th.newStage(t, false, pgx.ReadCommitted)
			s.exec(`CREATE TABLE pairs (id int, kind ` + kind + `, note text)`)
			s.exec(`INSERT INTO pairs VALUES (1, '` + values[0] + `')`)
			s.exec(`SELECT fencing.protect('pairs', $$id || '/' || kind$$)`)
			was := "1/" + values[0]
			for set, now := range map[string]string{
				`id = 2`:                     "2/" + values[0],
				`kind = '` + values[1] + `'`: "1/" + values[1],
				`note = 'x'`:                 was,
			} {
				for _, state := range []string{`SELECT fencing.claim($1, 34)`, `SELECT fencing.present($1, 34)`} {
					for _, resource := range []string{was, now} {
						want := pgguard.SQLStateMissing
						if was == now {
							want = ""
						}
						tx := s.begin()
						mustExec(t, tx, state, resource)
						if _, err := tx.Exec(t.Context(), `UPDATE pairs SET `+set); sqlState(err) != want {
							t.Errorf("%s of %s; SET %s gives %v, want %q", state, resource, set, err, want)
						}
						_ = tx.Rollback(t.Context())
					}
				}
			}
		})
	}
}

// TestChangedColumns: a column that gets another type continues working where the
// comparison of old and new row stays exact, and where it does not, writes fail.
func TestChangedColumns(t *testing.T) {
	th := newTheatre(t)
	for to, works := range map[string]bool{"bigint": true, "numeric": false, "text": false} {
		t.Run(to, func(t *testing.T) {
			s := th.newStage(t, true, pgx.ReadCommitted)
			s.claim34()
			const update = `UPDATE accounts SET balance = 1 WHERE note IS NULL AND id::text = '1' AND fencing.present('accounts/1', 34) <> ''`
			s.exec(update)
			s.exec(`ALTER TABLE accounts ALTER id TYPE ` + to)
			// PL/pgSQL itself wants a new session after such a change.
			if _, err := s.connect().Exec(t.Context(), update); (err == nil) != works {
				t.Errorf("after the change: %v", err)
			}
			s.protect("accounts", `'accounts/' || id`)
			mustExec(t, s.connect(), update)
		})
	}
}

// TestWriterWithoutRights: a role that may write the table, and has no right
// at all in the schema fencing, is guarded, and can state its token.
func TestWriterWithoutRights(t *testing.T) {
	th := newTheatre(t)
	s := th.newStage(t, true, pgx.ReadCommitted)
	s.claim34()
	super := connectTo(t, th.superURL)
	role := newRole(t, super)
	mustExec(t, super, fmt.Sprintf(`GRANT USAGE ON SCHEMA app TO %[1]s; GRANT SELECT, INSERT, UPDATE, DELETE ON app.accounts TO %[1]s`, role))
	writer := connectTo(t, withUser(t, th.superURL, role, "pw"))

	const stating = ` AND set_config('fencing.token', pg_current_xact_id() || ' %d accounts/1', true) <> ''`
	update := `UPDATE app.accounts SET balance = 1 WHERE id = 1`
	mustExec(t, writer, update+fmt.Sprintf(stating, 34))
	if got := s.fails(writer, update+fmt.Sprintf(stating, 33)); got != pgguard.SQLStateStale {
		t.Errorf("a stale write gives %s", got)
	}
	if got := s.fails(writer, update); got != pgguard.SQLStateMissing {
		t.Errorf("a write without a token gives %s", got)
	}
	for _, sql := range []string{
		`UPDATE fencing.marks SET mark = 1`, `SELECT * FROM fencing.marks`, `SELECT fencing.claim('accounts/1', 99)`,
		`SELECT fencing.unprotect('app.accounts')`, `ALTER TABLE app.accounts DISABLE TRIGGER ALL`,
	} {
		if got := s.fails(writer, sql); got != "42501" {
			t.Errorf("%s: %s, want a lack of rights", sql, got)
		}
	}
	mustExec(t, super, fmt.Sprintf(`GRANT USAGE ON SCHEMA fencing TO %s`, role))
	mustExec(t, writer, `SELECT fencing.claim('accounts/1', 35)`)
	for _, sql := range []string{
		`UPDATE fencing.marks SET mark = 1`, `SELECT fencing.protect('app.accounts', 'note')`, `SELECT fencing._raise('x', 1)`,
		`SELECT fencing._attempt('x', 1, 'write', '1', 1)`, `SELECT nextval('fencing.refusals')`,
	} {
		if got := s.fails(writer, sql); got != "42501" {
			t.Errorf("with USAGE on the schema, %s: %s, want a lack of rights", sql, got)
		}
	}
}

// TestErrorDetails: what a program in any language can read off an error.
func TestErrorDetails(t *testing.T) {
	s := newTheatre(t).newStage(t, true, pgx.ReadCommitted)
	s.claim34()
	for sql, want := range map[string]string{
		`SELECT fencing.claim('accounts/1', 33)`:                                        `LK001 {"resource" : "accounts/1", "presented" : 33, "highest" : 34}`,
		`DELETE FROM accounts WHERE id = 1 AND fencing.present('accounts/1', 33) <> ''`: `LK001 {"resource" : "accounts/1", "presented" : 33, "highest" : 34}`,
		`DELETE FROM accounts WHERE id = 1`:                                             `LK002 {"resource" : "accounts/1", "presented" : null, "highest" : 34, "claimed" : []}`,
		`SELECT fencing.claim('accounts/1', 0)`:                                         `LK003 {"resource" : "accounts/1", "presented" : 0, "highest" : null}`,
		`SELECT fencing.claim('accounts/1', NULL)`:                                      `LK003 {"resource" : "accounts/1", "presented" : null, "highest" : null}`,
		`SELECT fencing.claim('accounts/1', 9007199254740992)`:                          `LK003 {"resource" : "accounts/1", "presented" : 9007199254740992, "highest" : null}`,
		`SELECT fencing.claim(E'a\nb', 1)`:                                              `LK003 {"resource" : "a\nb", "presented" : 1, "highest" : null}`,
		`SELECT fencing.claim(NULL, 1)`:                                                 `LK003 {"resource" : null, "presented" : 1, "highest" : null}`,
		`DELETE FROM accounts WHERE id = 1 AND set_config('fencing.token', pg_current_xact_id() || ' 034 accounts/1', true) <> ''`: `LK003 {"resource" : "accounts/1", "presented" : "034", "highest" : null}`,
	} {
		_, err := s.admn.Exec(t.Context(), sql)
		if got := sqlState(err) + " " + detail(err); got != want {
			t.Errorf("%s\n gives %s\n want  %s", sql, got, want)
		}
	}
	var previous [3]int64
	err := s.admn.QueryRow(t.Context(), `SELECT fencing.claim('new', 5), fencing.claim('new', 5), fencing.claim('new', 9)`).Scan(&previous[0], &previous[1], &previous[2])
	if err != nil || previous != [3]int64{0, 5, 5} {
		t.Errorf("claims return %v, %v; want the previous marks 0, 5, 5", previous, err)
	}
}

// TestRaisedMarksAreSynced: a claimant relies on the mark that it raised, so
// the commit is synced even where commits are not; one that raised nothing
// leaves the setting alone.
func TestRaisedMarksAreSynced(t *testing.T) {
	s := newTheatre(t).newStage(t, true, pgx.ReadCommitted)
	s.exec(`SET synchronous_commit = off`)
	setting := func(tx pgx.Tx, want string) {
		t.Helper()
		var got string
		if err := tx.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&got); err != nil || got != want {
			t.Errorf("synchronous_commit is %s, %v; want %s", got, err, want)
		}
	}
	for _, step := range []struct{ claim, want string }{
		{`SELECT fencing.claim('accounts/1', 34)`, "on"}, // the first claim
		{`SELECT fencing.claim('accounts/1', 34)`, "off"},
		{`SELECT fencing.claim('accounts/1', 35)`, "on"},
		{`SELECT fencing.try_claim('accounts/1', 36)`, "on"},
		{`SELECT 1`, "off"},
	} {
		tx, err := s.admn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, tx, step.claim)
		setting(tx, step.want)
		mustCommit(t, tx)
	}
}

// TestTriggersCannotBeReplaced by a role that has every right on the table, but
// does not own it; where PostgreSQL allows it, the status tells.
func TestTriggersCannotBeReplaced(t *testing.T) {
	th := newTheatre(t)
	s := th.newStage(t, true, pgx.ReadCommitted)
	super := connectTo(t, th.superURL)
	role := newRole(t, super)
	s.partition()
	s.exec(`CREATE TABLE attached (id int, region text, balance bigint NOT NULL DEFAULT 0)`)
	s.exec(`ALTER TABLE accounts ATTACH PARTITION attached FOR VALUES IN ('africa')`)
	s.protect("accounts", `'accounts/' || id`)
	s.exec(`CREATE TABLE plain (id int)`)
	s.protect("plain", `'plain/' || id`)
	mustExec(t, super, fmt.Sprintf(`GRANT ALL ON SCHEMA app TO %[1]s; GRANT ALL ON ALL TABLES IN SCHEMA app TO %[1]s`, role))
	writer := connectTo(t, withUser(t, th.superURL, role, "pw"))
	mustExec(t, writer, `CREATE FUNCTION app.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)

	tables := []string{"accounts", "accounts_eu", "accounts_asia", "attached", "plain"}
	if s.version() >= 140000 { // which has OR REPLACE
		for _, table := range tables {
			for _, kind := range []string{`OR REPLACE`, `OR REPLACE CONSTRAINT`} {
				s.fails(writer, fmt.Sprintf(`CREATE %s TRIGGER "0_fencing_guard" AFTER INSERT OR UPDATE OR DELETE ON app.%s FOR EACH ROW EXECUTE FUNCTION app.nothing()`, kind, table))
			}
		}
	}
	const insert = `INSERT INTO app.%s (id%s) VALUES (1%s)`
	for _, c := range []struct{ table, column, value string }{
		{"accounts", ", region", ", 'eu'"}, {"accounts_eu", ", region", ", 'eu'"}, {"accounts_asia", ", region", ", 'asia'"}, {"attached", ", region", ", 'africa'"}, {"plain", "", ""},
	} {
		tx, err := writer.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, tx, `SET CONSTRAINTS ALL DEFERRED`)
		if got := s.fails(tx, fmt.Sprintf(insert, c.table, c.column, c.value)); got != pgguard.SQLStateMissing {
			t.Errorf("an insert into %s without a token gives %s", c.table, got)
		}
		_ = tx.Rollback(t.Context())
	}
	for _, table := range []string{"accounts", "plain"} {
		if got := s.status("table", table); got.Problem != "" {
			t.Errorf("%s: %s", table, got.Problem)
		}
	}

	// The owner can do as it likes, and that is seen.
	for _, c := range []struct{ undo, sql, name string }{
		{`DROP TRIGGER "0_fencing_guard" ON plain`, `CREATE TRIGGER "0_fencing_guard" AFTER INSERT OR UPDATE OR DELETE ON plain FOR EACH ROW EXECUTE FUNCTION nothing()`, "0_fencing_guard"},
		{`DROP TRIGGER "0_fencing_guard" ON plain`, `CREATE TRIGGER "0_fencing_guard" AFTER INSERT ON plain FOR EACH ROW EXECUTE FUNCTION fencing.guard_%d()`, "0_fencing_guard"},
		{`DROP TRIGGER "0_fencing_guard" ON plain`, `CREATE TRIGGER "0_fencing_guard" AFTER INSERT OR UPDATE OR DELETE ON plain FOR EACH ROW WHEN (false) EXECUTE FUNCTION fencing.guard_%d()`, "0_fencing_guard"},
		{`DROP TRIGGER "0_fencing_truncate" ON plain`, `CREATE TRIGGER "0_fencing_truncate" BEFORE TRUNCATE ON plain FOR EACH STATEMENT EXECUTE FUNCTION nothing()`, "0_fencing_truncate"},
		{`DROP TRIGGER "0_fencing_truncate" ON plain`, `CREATE TRIGGER "0_fencing_truncate" AFTER TRUNCATE ON plain FOR EACH STATEMENT EXECUTE FUNCTION fencing.truncate_%d()`, "0_fencing_truncate"},
	} {
		var id int64
		if err := s.admn.QueryRow(t.Context(), `SELECT id FROM fencing.protected WHERE relation = 'plain'::regclass`).Scan(&id); err != nil {
			t.Fatal(err)
		}
		s.exec(c.undo)
		s.exec(strings.ReplaceAll(c.sql, "%d", fmt.Sprint(id)))
		if got := s.status("table", "plain"); got.Problem != "app.plain has no working trigger "+c.name {
			t.Errorf("%s: the status says %q", c.sql, got.Problem)
		}
		s.protect("plain", `'plain/' || id`)
	}
}

// TestArgumentsOfAnyCollation: a resource that comes out of a column, or of two
// whose collations conflict, is compared to the letter all the same.
func TestArgumentsOfAnyCollation(t *testing.T) {
	th := newTheatre(t)
	keys := proofKeys(t, keyOne)
	if err := pgguard.SetProofKeys(t.Context(), th.url, keys); err != nil {
		t.Fatal(err)
	}
	s := th.newStage(t, false, pgx.ReadCommitted)
	s.exec(`CREATE COLLATION careless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	s.exec(`CREATE TABLE names (a text COLLATE careless, b text COLLATE "POSIX", proof text COLLATE careless)`)
	s.exec(`INSERT INTO names VALUES ('n', 'x', $1)`, keys.Prove("nx", 36))
	for _, claim := range []struct{ sql, want string }{
		{`fencing.claim(a, 34)`, ""}, {`fencing.claim(a || b, 34)`, ""}, {`fencing.claim(upper(a), 1)`, ""},
		{`fencing.claim(a, 33)`, pgguard.SQLStateStale}, {`fencing.claim(a || b, 33)`, pgguard.SQLStateStale},
		{`fencing.try_claim(a, 33)`, ""}, {`fencing.try_claim(a || b, 35)`, ""}, {`fencing.try_claim(a || b, 33)`, ""},
		{`fencing.present(a || b, 35)`, ""},
		{`fencing.claim(a || b, 36, proof)`, ""}, {`fencing.claim('nx', 36, proof)`, ""}, {`fencing.try_claim(a || b, 36, proof)`, ""},
		{`fencing.claim(a || b, 37, proof)`, pgguard.SQLStateUnproven}, {`fencing.claim(a || b, 37, left(proof, 0) || b)`, pgguard.SQLStateUnproven},
		{`fencing.claim(a || b, 0)`, pgguard.SQLStateMalformed},
	} {
		if _, err := s.admn.Exec(t.Context(), `SELECT `+claim.sql+` FROM names`); sqlState(err) != claim.want {
			t.Errorf("%s: %v, want %q", claim.sql, err, claim.want)
		}
	}
	for resource, mark := range map[string]int64{"n": 34, "N": 1, "nx": 36} {
		if got := s.status("resource", resource); got.Mark != mark {
			t.Errorf("%s has mark %d, want %d", resource, got.Mark, mark)
		}
	}
}

// TestPresentStatesOneToken: a resource with a newline in it is no way to state another.
func TestPresentStatesOneToken(t *testing.T) {
	th := newTheatre(t)
	th.newStage(t, true, pgx.ReadCommitted)
	super := connectTo(t, th.superURL)
	role := newRole(t, super)
	mustExec(t, super, fmt.Sprintf(`GRANT USAGE ON SCHEMA fencing, app TO %[1]s; GRANT ALL ON app.accounts TO %[1]s`, role))
	conn := connectTo(t, withUser(t, th.superURL, role, "pw"))
	err := tried(t, conn, `SELECT fencing.present('accounts/2' || E'\n' || pg_current_xact_id() || ' 99 accounts/1', 33)`,
		`UPDATE app.accounts SET balance = -1 WHERE id = 1`)
	if sqlState(err) != pgguard.SQLStateMalformed {
		t.Errorf("a resource with a newline: %v", err)
	}
	if err := tried(t, conn, `SELECT fencing.present('accounts/1', 33)`, `UPDATE app.accounts SET balance = 1 WHERE id = 1`); err != nil {
		t.Errorf("one without: %v", err)
	}
}
