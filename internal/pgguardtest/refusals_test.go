package pgguardtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/storage/pgguard"
)

// TestRefusalsAreCounted: whatever way a stale token takes, its transaction is rolled
// back and the count is not.
func TestRefusalsAreCounted(t *testing.T) {
	th := newTheatre(t)
	keys := proofKeys(t, keyOne)
	if err := pgguard.SetProofKeys(t.Context(), th.url, keys); err != nil {
		t.Fatal(err)
	}
	s := th.newStage(t, true, pgx.ReadCommitted)
	s.exec(`CREATE TABLE proven (id int)`)
	s.exec(`SELECT fencing.protect('proven', $$'proven/' || id$$, proof => true)`)
	s.exec(`CREATE TABLE unnamed (name text)`) // its expression begins with no literal
	s.protect("unnamed", `name`)
	s.exec(`CREATE TABLE entries (account int)`) // it shares its resources with accounts
	s.protect("entries", `'accounts/' || account`)
	claim := func(resource string, token int) string {
		return fmt.Sprintf(`SELECT fencing.claim('%s', %d, '%s')`, resource, token, keys.Prove(resource, 34))
	}
	s.claim34()
	s.exec(`SELECT fencing.claim('other', 34)`)
	s.exec(claim("proven/1", 34))
	s.exec(`SELECT fencing.claim('proven/1', 50)`) // without a proof, which tables with proofs ignore
	stale := keys.Prove("proven/1", 33)
	for name, c := range map[string]struct {
		sql    string
		tables string // whose counts rise, too
	}{
		"a claim":                             {`SELECT fencing.claim('accounts/1', 33)`, "accounts entries"},
		"a claim in the statement":            {`UPDATE accounts SET balance = -1 WHERE id = 1 AND (SELECT fencing.claim('accounts/1', 33)) IS NOT NULL`, "accounts entries"},
		"a claim that answers":                {`SELECT fencing.try_claim('accounts/1', 33)`, "accounts entries"},
		"a claim of another resource":         {`SELECT fencing.claim('other', 33)`, ""},
		"a presented token":                   {staleUpdate, "accounts"},
		"a presented token and an insert":     {`INSERT INTO accounts SELECT 9 FROM set_config('fencing.token', concat(pg_current_xact_id(), ' 33 accounts/9'), true)`, "accounts"},
		"a presented token and a truncate":    {presentMany(33) + `; TRUNCATE accounts`, "accounts"},
		"a table without a prefix":            {`INSERT INTO unnamed SELECT 'other' WHERE fencing.present('other', 33) IS NOT NULL`, "unnamed"},
		"a claim with a proof":                {`SELECT fencing.claim('proven/1', 33, '` + stale + `')`, "proven"},
		"a claim with a proof, which answers": {`SELECT fencing.try_claim('proven/1', 33, '` + stale + `')`, "proven"},
	} {
		t.Run(name, func(t *testing.T) {
			s.exec(`INSERT INTO fencing.marks VALUES ('accounts/9', 34, 0, '0', now()) ON CONFLICT DO NOTHING`)
			before := map[string]int64{}
			counted := func(table string) int64 {
				if table == "" {
					return s.status("database", s.admn.Config().Database).Refused - before[table]
				}
				return s.status("table", table).Refused - before[table]
			}
			tables := []string{"", "accounts", "entries", "proven", "unnamed"}
			for _, table := range tables {
				before[table] = counted(table)
			}
			conn := s.connect()
			_, err := conn.Exec(t.Context(), `BEGIN; `+c.sql)
			if state := sqlState(err); err != nil && state != pgguard.SQLStateStale {
				t.Errorf("gives %v", err)
			}
			if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
				t.Fatal(err)
			}
			for _, table := range tables {
				want := int64(0)
				if strings.Contains(c.tables, table) {
					want = 1
				}
				if got := counted(table); got != want {
					t.Errorf("%q counts %d more, want %d", table, got, want)
				}
			}
		})
	}
}

// TestClaimersNeedNoRightToCount: a role that may only claim and write has its
// refusals counted, and neither reads nor steps the counters.
func TestClaimersNeedNoRightToCount(t *testing.T) {
	th := newTheatre(t)
	s := th.newStage(t, true, pgx.ReadCommitted)
	s.claim34()
	super := connectTo(t, th.superURL)
	role := newRole(t, super)
	mustExec(t, super, `GRANT USAGE ON SCHEMA fencing, app TO `+role+`; GRANT SELECT, UPDATE ON app.accounts TO `+role)
	writer := connectTo(t, withUser(t, th.superURL, role, "pw"))
	mustExec(t, writer, `SET search_path = app`)
	for _, sql := range []string{`SELECT fencing.claim('accounts/1', 33)`, staleUpdate} {
		if got := s.fails(writer, sql); got != pgguard.SQLStateStale {
			t.Errorf("%s gives %q", sql, got)
		}
	}
	if got := s.status("table", "accounts").Refused; got != 2 {
		t.Errorf("%d refusals are counted, want 2", got)
	}
	for _, sql := range []string{`SELECT nextval('fencing.refusals')`, `SELECT fencing._count_refusal('accounts/1', 1)`, `SELECT fencing._stale('accounts/1', 1, 2, 1)`} {
		if got := s.fails(writer, sql); got != "42501" {
			t.Errorf("%s gives %q", sql, got)
		}
	}
}
