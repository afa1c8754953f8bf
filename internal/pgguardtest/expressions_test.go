package pgguardtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/storage/pgguard"
)

// TestBadExpressions: refused when protecting, with nothing left behind.
func TestBadExpressions(t *testing.T) {
	th := newTheatre(t)
	s := th.newStage(t, false, pgx.ReadCommitted)
	s.exec(`CREATE FUNCTION canary() RETURNS text LANGUAGE plpgsql AS $$ BEGIN DELETE FROM accounts; RETURN 'x'; END $$`)
	for _, expression := range []string{
		``, ` `, `id`, `id, id`, `nope`, `'a' ||`, `(SELECT 'a')`, `max(note)`, `row_number() OVER ()`, `unnest(ARRAY['a'])`, `$1`, `*`, `accounts.*`,
		`DISTINCT note`, `note ORDER BY note`, `note FROM accounts`, `VARIADIC ARRAY[note]`, `note::int`, `now()`,
		`'a') OR fencing.valid_resource('b'`, `'a'], ARRAY['b'`, `'a']; DELETE FROM accounts; SELECT ARRAY['b'`, `'a')); DELETE FROM accounts; --`,
		`'a' /*`, `'a`, `"note`, `$x$ a`, `new.note`, `row_now.note`, `other.note`, `accounts`,
	} {
		if got := s.fails(s.admn, `SELECT fencing.protect('accounts', $1)`, expression); got == "" {
			t.Errorf("expression %q: no SQLSTATE", expression)
		}
	}
	for _, args := range []string{`NULL, 'note'`, `'accounts', NULL`, `'accounts', 'note', 'lax'`, `'accounts', 'note', NULL`, `'no_such_table', 'note'`, `'fencing.marks', 'resource'`, `'pg_class', 'relname'`, `'accounts_pkey', 'id'`} {
		s.fails(s.admn, `SELECT fencing.protect(`+args+`)`)
	}
	s.exec(`CREATE TABLE child () INHERITS (accounts)`)
	s.fails(s.admn, `SELECT fencing.protect('accounts', 'note')`)
	s.exec(`CREATE TEMP TABLE passing (note text)`)
	s.fails(s.admn, `SELECT fencing.protect('passing', 'note')`)

	var left string
	err := s.admn.QueryRow(t.Context(), `SELECT coalesce(string_agg(relname, ' '), '') FROM pg_class WHERE relnamespace = 'fencing'::regnamespace AND relname LIKE '\_probe%'`).Scan(&left)
	if err != nil || left != "" {
		t.Errorf("left behind: %s, %v", left, err)
	}
	s.exec(`UPDATE accounts SET balance = 1`) // nothing is protected
	if s.damaged() {
		t.Error("an expression was run as a statement")
	}
}

// TestGoodExpressions: odd names and odd expressions that must work.
func TestGoodExpressions(t *testing.T) {
	s := newTheatre(t).newStage(t, false, pgx.ReadCommitted)
	s.exec(`CREATE SCHEMA "odd "" schema"`)
	t.Cleanup(func() { _, _ = s.admn.Exec(context.Background(), `DROP SCHEMA "odd "" schema" CASCADE`) })
	s.exec(`CREATE TABLE "odd "" schema"."T'a$$b;--" (id int PRIMARY KEY, "Odd ""col' %s \" text, row_now text, mark int, resource text, at timestamptz DEFAULT '2026-01-01',
		g text GENERATED ALWAYS AS (id::text || '!') STORED)`)
	s.exec(`CREATE FUNCTION label(int) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'no. ' || $1 $$`)
	for expression, resource := range map[string]string{
		`'a/' || id`:                      "a/1",
		`"Odd ""col' %s \"`:               "v'\"\\",
		`$x$it's $$ %s \$x$ || '/' || id`: `it's $$ %s \/1`,
		`E'tab\\' || id`:                  `tab\1`,
		`'a' -- a comment`:                "a",
		`'a' /* ) */ || id`:               "a1",
		`g`:                               "1!",
		`label(id)`:                       "no. 1",
		`app.label(id)`:                   "no. 1",
		`row_now || mark || resource`:     "r2s",
		`CASE WHEN id > 0 THEN 'plus' ELSE 'x' END`: "plus",
		`format('%s/%s', id, mark)`:                 "1/2",
		`'constant'`:                                "constant",
		`id::varchar(5)`:                            "1",
		`to_char(at, 'YYYY')`:                       "2026",
		`'日本/' || id`:                               "日本/1",
	} {
		t.Run(expression, func(t *testing.T) {
			const table = `"odd "" schema"."T'a$$b;--"`
			mustExec(t, s.admn, `SELECT fencing.protect($1::text::regclass, $2)`, table, expression)
			insert := `INSERT INTO ` + table + ` (id, "Odd ""col' %s \", row_now, mark, resource) VALUES (1, 'v''"\', 'r', 2, 's')`
			if got := s.fails(s.admn, insert); got != pgguard.SQLStateMissing {
				t.Errorf("without a token: %s", got)
			}
			tx, err := s.admn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			mustExec(t, tx, `SELECT fencing.claim($1, 1)`, resource)
			mustExec(t, tx, insert)
			mustExec(t, tx, `UPDATE `+table+` SET at = now() WHERE false`)
			mustExec(t, tx, `DELETE FROM `+table)
			mustCommit(t, tx)
		})
	}
}

// evil is what somebody may put in front of a writer's search_path. Whatever
// of it the guard looked up would let through what must be refused.
var evil = []string{
	`CREATE SCHEMA evil`,
	`SET search_path = pg_catalog`,
	`CREATE FUNCTION evil.glue(text, int) RETURNS text LANGUAGE sql AS $$ SELECT 'accounts/66'::text $$`,
	`CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = int, FUNCTION = evil.glue)`,
	`CREATE FUNCTION evil.yes(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$`,
	`CREATE FUNCTION evil.no(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$`,
	`CREATE FUNCTION evil.yes(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$`,
	`CREATE FUNCTION evil.no(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$`,
	`CREATE FUNCTION evil.yes(xid8, xid8) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$`,
	`CREATE FUNCTION evil.yes(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$`,
	`CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.yes)`,
	`CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.no)`,
	`CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.yes)`,
	`CREATE OPERATOR evil.<= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.yes)`,
	`CREATE OPERATOR evil.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.no)`,
	`CREATE OPERATOR evil.= (LEFTARG = xid8, RIGHTARG = xid8, FUNCTION = evil.yes)`,
	`CREATE OPERATOR evil.<> (LEFTARG = xid8, RIGHTARG = xid8, FUNCTION = evil.yes)`,
	`CREATE OPERATOR evil.= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = evil.yes)`,
	`CREATE FUNCTION evil.int8eq(int, int) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$`,
	`CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'x'::text $$`,
	`CREATE FUNCTION evil.concat(xid8, text, text) RETURNS text LANGUAGE sql AS $$ SELECT 'x'::text $$`,
	`CREATE FUNCTION evil.concat(xid8, text, bigint, text, text) RETURNS text LANGUAGE sql AS $$ SELECT 'x'::text $$`,
	`CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'x'::text $$`,
	`CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '2000-01-01'::timestamptz $$`,
	`CREATE FUNCTION evil.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '1'::xid8 $$`,
	`CREATE TEMP TABLE marks (resource text, mark bigint)`,
	`CREATE DOMAIN pg_temp.int8 AS int`,
	`CREATE DOMAIN pg_temp.text AS int`,
	`SET search_path = evil, pg_catalog, app, pg_temp`,
}

// TestExpressionMeansWhatItMeant: a writer with names of its own in front of
// its search_path changes neither what the expression means nor the check.
// Expressions that can be written in full do without a SET search_path, which
// would cost each guarded update a tenth.
func TestExpressionMeansWhatItMeant(t *testing.T) {
	th := newTheatre(t)
	for expression, sets := range map[string]bool{
		`'accounts/' || id`:                false,
		`id || ''`:                         false,
		`lower('accounts/' || id)`:         true,
		`E'accounts\\' || id`:              true,
		`('accounts/' || id)::varchar(99)`: true,
	} {
		t.Run(expression, func(t *testing.T) {
			s := th.newStage(t, false, pgx.ReadCommitted)
			s.exec(`ALTER TABLE accounts DROP CONSTRAINT accounts_pkey`)
			s.exec(`SELECT fencing.protect('accounts', $1)`, expression)
			var has bool
			var resource string
			err := s.admn.QueryRow(t.Context(), `SELECT `+expression+`, proconfig IS NOT NULL FROM accounts,
				pg_proc WHERE id = 1 AND pronamespace = 'fencing'::regnamespace AND proname LIKE 'guard\_%'`).Scan(&resource, &has)
			if err != nil || has != sets {
				t.Errorf("the function sets search_path: %t, %v; want %t", has, err, sets)
			}
			s.exec(`SELECT fencing.claim($1, 34), fencing.claim('accounts/66', 1)`, resource)
			s.exec(`DROP SCHEMA IF EXISTS evil CASCADE`)
			for _, sql := range evil {
				s.exec(sql)
			}
			t.Cleanup(func() { _, _ = s.admn.Exec(context.Background(), `DROP SCHEMA evil CASCADE`) })
			literal := `'` + resource + `'`
			const update = `UPDATE accounts SET balance = -1 WHERE id OPERATOR(pg_catalog.=) 1`
			for _, c := range []struct{ before, sql, want string }{
				{``, update + ` AND fencing.present(` + literal + `, 33) IS NOT NULL`, pgguard.SQLStateStale},
				{``, update + ` AND fencing.present('accounts/66', 1) IS NOT NULL`, pgguard.SQLStateMissing},
				{``, update, pgguard.SQLStateMissing},
				{`SELECT fencing.claim('accounts/66', 1)`, update, pgguard.SQLStateMissing},
				{`SELECT fencing.claim(` + literal + `, 34)`, `UPDATE accounts SET id = 1 WHERE id OPERATOR(pg_catalog.=) 2`, pgguard.SQLStateMissing},
				{``, `SELECT fencing.claim(` + literal + `, 33)`, pgguard.SQLStateStale},
				{`SELECT fencing.claim(` + literal + `, 34)`, update, ""},
				{``, update + ` AND fencing.present(` + literal + `, 34) IS NOT NULL`, ""},
			} {
				tx, err := s.admn.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if c.before != "" {
					mustExec(t, tx, c.before)
				}
				_, err = tx.Exec(t.Context(), c.sql)
				if got := sqlState(err); got != c.want || err != nil && got == "" {
					t.Errorf("%s; %s gives %v, want %q", c.before, c.sql, err, c.want)
				}
				_ = tx.Rollback(t.Context())
			}
		})
	}
}
