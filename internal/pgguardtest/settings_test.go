package pgguardtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// otherTexts are values whose text is another one under another setting.
var otherTexts = map[string]struct {
	column, value, resource string // the type, a value, and its resource, which does not change
	setting, other          string // a writer's setting, and what the resource would be under it
}{
	"date":        {"date", `2026-11-20`, `r/2026-11-20`, `datestyle = 'German'`, `r/20.11.2026`},
	"timestamptz": {"timestamptz", `2026-11-20 10:00+00`, `r/2026-11-20 10:00:00+00`, `timezone = 'Europe/Berlin'`, `r/2026-11-20 11:00:00+01`},
	"interval":    {"interval", `1 day 2 hours`, `r/1 day 02:00:00`, `intervalstyle = 'iso_8601'`, `r/P1DT2H`},
	"float8":      {"float8", `0.30000000000000004`, `r/0.30000000000000004`, `extra_float_digits = 0`, `r/0.3`},
	"bytea":       {"bytea", `\x61`, `r/\x61`, `bytea_output = 'escape'`, `r/a`},
	"regclass":    {"regclass", `app.accounts`, `r/app.accounts`, `search_path = app, fencing`, `r/accounts`},
	"quoted":      {"regclass", `app.accounts`, `r/app.accounts`, `quote_all_identifiers = on`, `r/"app"."accounts"`},
	"an array":    {"date[]", `{2026-11-20}`, `r/{2026-11-20}`, `datestyle = 'SQL'`, `r/{11/20/2026}`},
	"a domain":    {"day", `2026-11-20`, `r/2026-11-20`, `datestyle = 'SQL'`, `r/11/20/2026`},
}

// expressionOver joins a text with a column; for some types || is another operator.
func expressionOver(column string) string {
	if column == "bytea" || strings.HasSuffix(column, "[]") {
		return `'r/' || thing::text`
	}
	return `'r/' || thing`
}

// TestSettingsDoNotChangeAResource: a row has one resource, whatever the settings
// of who writes it. If it had two, a stale token for the other would pass.
func TestSettingsDoNotChangeAResource(t *testing.T) { settingsDoNotChangeAResource(t, true) }

func TestSettingsDoNotChangeAResourceWithoutProofs(t *testing.T) {
	testenv.Long(t, "a setting that changes the resource of a row in a table without proofs alone")
	settingsDoNotChangeAResource(t, false)
}

func settingsDoNotChangeAResource(t *testing.T, proof bool) {
	t.Helper()
	th := newTheatre(t)
	keys := proofKeys(t, keyOne)
	if err := pgguard.SetProofKeys(t.Context(), th.url, keys); err != nil {
		t.Fatal(err)
	}
	for name, c := range otherTexts {
		t.Run(fmt.Sprintf("%s/proof=%t", name, proof), func(t *testing.T) {
			s := th.newStage(t, false, pgx.ReadCommitted)
			s.exec(`TRUNCATE fencing.proven`)
			s.exec(`CREATE DOMAIN day AS date`)
			s.exec(`CREATE TABLE things (thing ` + c.column + `, note text)`)
			s.exec(`INSERT INTO things VALUES ('` + c.value + `')`)
			s.exec(`SET ` + c.setting) // who protects has it as well
			s.exec(`SELECT fencing.protect('app.things', $1, $2::boolean)`, expressionOver(c.column), proof)
			s.exec(`RESET ALL`)
			claim := func(resource string, token int) string {
				if !proof {
					return fmt.Sprintf(`SELECT fencing.claim('%s', %d)`, resource, token)
				}
				return fmt.Sprintf(`SELECT fencing.claim('%s', %d, '%s')`, resource, token, keys.Prove(resource, 34))
			}
			for _, set := range []string{`RESET ALL`, `SET ` + c.setting} {
				s.exec(set)
				for _, sql := range []string{`UPDATE app.things SET note = 'x'`, `DELETE FROM app.things`, `TRUNCATE app.things`, `INSERT INTO app.things VALUES ('` + c.value + `')`} {
					if err := tried(t, s.admn, claim(c.resource, 34), sql, `ROLLBACK`); err != nil && !strings.Contains(err.Error(), "commit") {
						t.Errorf("%s; %s under %s: %v", set, sql, c.resource, err)
					}
					if err := tried(t, s.admn, claim(c.other, 34), sql); sqlState(err) != pgguard.SQLStateMissing {
						t.Errorf("%s; %s under %s: %v, want %s", set, sql, c.other, err, pgguard.SQLStateMissing)
					}
				}
			}
			s.exec(`RESET ALL`)
		})
	}
}

// TestLiteralsAreReadWhereTheyWereWritten: in the settings of who protects, and
// kept in a form that no setting changes.
func TestLiteralsAreReadWhereTheyWereWritten(t *testing.T) {
	literalsAreReadWhereTheyWereWritten(t, true)
}

func TestLiteralsAreReadWhereTheyWereWrittenWithoutProofs(t *testing.T) {
	testenv.Long(t, "a literal that a setting changes in a table without proofs alone")
	literalsAreReadWhereTheyWereWritten(t, false)
}

func literalsAreReadWhereTheyWereWritten(t *testing.T, proof bool) {
	t.Helper()
	th := newTheatre(t)
	keys := proofKeys(t, keyOne)
	if err := pgguard.SetProofKeys(t.Context(), th.url, keys); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ setting, expression, row, resource string }{
		{`datestyle = 'SQL, DMY'`, `CASE WHEN day < '02/03/2026'::date THEN 'old' ELSE 'new' END`, `'2026-02-10'`, `old`},
		{`datestyle = 'SQL, MDY'`, `CASE WHEN day < '02/03/2026'::date THEN 'old' ELSE 'new' END`, `'2026-02-10'`, `new`},
		{`intervalstyle = 'sql_standard'`, `('-1 2:00:00'::interval)::text`, `NULL`, `-1 days -02:00:00`},
		{`standard_conforming_strings = on`, `'a\' || (day IS NULL)`, `NULL`, `a\true`},
		{`standard_conforming_strings = off`, `'a\\' || (day IS NULL)`, `NULL`, `a\true`},
		{`quote_all_identifiers = on`, `'a' || id`, `NULL`, `a1`},
	} {
		t.Run(fmt.Sprintf("%s/proof=%t", c.setting, proof), func(t *testing.T) {
			s := th.newStage(t, false, pgx.ReadCommitted)
			s.exec(`CREATE TABLE days (day date, id int DEFAULT 1)`)
			s.exec(`SET ` + c.setting)
			s.exec(`SELECT fencing.protect('days', $1, $2::boolean)`, c.expression, proof)
			s.exec(`RESET ALL`)
			for _, set := range []string{`RESET ALL`, `SET datestyle = 'SQL, DMY'`, `SET standard_conforming_strings = off`} {
				conn := s.connect() // a function is read once a session
				mustExec(t, conn, set)
				for _, sql := range []string{`INSERT INTO app.days VALUES (` + c.row + `)`, `UPDATE app.days SET day = day`, `TRUNCATE app.days`} {
					tx, err := conn.Begin(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					mustExec(t, tx, `SELECT fencing.claim($1, 34, $2)`, c.resource, keys.Prove(c.resource, 34))
					mustExec(t, tx, sql)
					mustCommit(t, tx)
				}
			}
		})
	}
}

// TestOneListOfSettings: the lists that are written out are the one that is generated.
func TestOneListOfSettings(t *testing.T) {
	th := newTheatre(t)
	s := th.newStage(t, false, pgx.ReadCommitted)
	s.exec(`SELECT fencing.protect('accounts', 'lower(note)')`)
	var lists, functions int
	err := s.admn.QueryRow(t.Context(), `
		SELECT count(DISTINCT settings), count(DISTINCT name) FROM (
			SELECT proname AS name, string_agg(setting, ' ' ORDER BY setting) AS settings FROM pg_proc, unnest(proconfig) AS setting
			 WHERE pronamespace = 'fencing'::regnamespace AND (proname IN ('_print', '_demand') OR proname ~ '^(guard|truncate)_[0-9]+$')
			   AND setting NOT LIKE 'row_security=%' AND setting NOT LIKE 'client_min_messages=%'
			 GROUP BY oid, proname) AS f`).Scan(&lists, &functions)
	if err != nil || lists != 1 || functions != 4 {
		t.Errorf("%d lists of settings in %d functions, %v; want 1 in 4", lists, functions, err)
	}
}

// TestCastsOfOthers: a cast in somebody's SQL looks up names under the path of
// whoever writes. It must find nothing of the writer's, or it would run with the
// rights of the schema's owner.
func TestCastsOfOthers(t *testing.T) {
	th := newTheatre(t)
	for name, c := range map[string]struct{ before, expression, value string }{
		"a cast of the table's owner": {`
			CREATE FUNCTION app.status_text(app.status) RETURNS text LANGUAGE sql AS $$ SELECT concat($1) || '!' $$;
			CREATE CAST (app.status AS text) WITH FUNCTION app.status_text(app.status)`, `'r/' || status`, `open`},
		"a cast that is spelled out": {`
			CREATE FUNCTION app.status_text(app.status) RETURNS text LANGUAGE sql AS $$ SELECT concat($1) || '!' $$;
			CREATE CAST (app.status AS text) WITH FUNCTION app.status_text(app.status)`, `'r/' || status::text`, `open`},
		"a cast of a superuser": {`
			CREATE FUNCTION app.int_text(int) RETURNS text LANGUAGE sql AS $$ SELECT concat($1) || '!' $$;
			CREATE CAST (int AS text) WITH FUNCTION app.int_text(int)`, `'r/' || id`, `open`},
		"how PostgreSQL 13 joins text and other types": {`
			CREATE OR REPLACE FUNCTION pg_catalog.textanycat(text, anynonarray) RETURNS text LANGUAGE sql STABLE STRICT AS 'SELECT $1 || $2::pg_catalog.text'`,
			`'r/' || id`, `open`},
	} {
		t.Run(name, func(t *testing.T) {
			s := th.newStage(t, false, pgx.ReadCommitted)
			super := connectTo(t, th.superURL)
			mustExec(t, super, `DROP CAST IF EXISTS (int AS text)`)
			mustExec(t, super, `DROP SCHEMA IF EXISTS mal CASCADE`)
			s.exec(`CREATE TYPE status AS ENUM ('open')`)
			mustExec(t, super, c.before)
			s.exec(`CREATE TABLE things (id int, status status)`)
			s.exec(`SELECT fencing.protect('things', $1)`, c.expression)
			mustExec(t, super, `CREATE SCHEMA mal; GRANT ALL ON SCHEMA mal TO PUBLIC;
				CREATE FUNCTION mal.cat(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked, as %', current_user USING ERRCODE = 'XX999'; END $$;
				CREATE OPERATOR mal.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = mal.cat)`)
			s.exec(`SET search_path = mal, pg_catalog, app`)
			if got := s.fails(s.admn, `INSERT INTO things VALUES (1, 'open')`); got != pgguard.SQLStateMissing {
				t.Errorf("a write without a token gives %s, want %s", got, pgguard.SQLStateMissing)
			}
		})
	}
}
