package pgguardtest_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// TestTyposShowThemselves: the refusal of a write without a token names what its
// transaction has claimed, and the statement that was missing.
func TestTyposShowThemselves(t *testing.T) {
	s := newTheatre(t).newStage(t, true, pgx.ReadCommitted)
	for name, c := range map[string]struct {
		before  []string
		claimed []string
	}{
		"nothing":                   {nil, []string{}},
		"a typo":                    {[]string{`SELECT fencing.claim('account/1', 34)`}, []string{"account/1"}},
		"a typo among others":       {[]string{`SELECT fencing.claim(r, 34) FROM unnest(ARRAY['account/1', 'accounts/2', 'it''s']) AS r`}, []string{"account/1", "accounts/2", "it's"}},
		"a typo that was presented": {[]string{`SELECT fencing.present('accounts 1', 34)`}, []string{"accounts 1"}},
		"a claim that was undone":   {[]string{`SAVEPOINT s`, `SELECT fencing.claim('accounts/1', 34)`, `ROLLBACK TO s`}, []string{}},
		"a claim before this one":   {[]string{`SELECT fencing.claim('accounts/1', 34)`, `COMMIT`, `BEGIN`}, []string{}},
	} {
		err := tried(t, s.admn, append(c.before, `UPDATE accounts SET balance = -1 WHERE id = 1`)...)
		var d struct {
			Resource string   `json:"resource"`
			Claimed  []string `json:"claimed"`
		}
		if sqlState(err) != pgguard.SQLStateMissing || json.Unmarshal([]byte(detail(err)), &d) != nil {
			t.Errorf("%s: %v %s", name, err, detail(err))
			continue
		}
		if d.Resource != "accounts/1" || !slices.Equal(d.Claimed, c.claimed) {
			t.Errorf("%s: detail %+v, want %q", name, d, c.claimed)
		}
		for _, resource := range c.claimed {
			if !strings.Contains(err.Error(), "'"+strings.ReplaceAll(resource, "'", "''")+"'") {
				t.Errorf("%s: the message does not name %s: %v", name, resource, err)
			}
		}
		if hint(err) == "" || !strings.Contains(hint(err), "SELECT fencing.claim('accounts/1', <fencing_token of your lease>);") {
			t.Errorf("%s: the hint is %q", name, hint(err))
		}
	}
}

// TestLastClaimIsNamedAmongMillions: where the marks are too many to search, the
// refusal names the last claim.
func TestLastClaimIsNamedAmongMillions(t *testing.T) {
	testenv.Long(t, "a refusal that searches more marks than it has time for")
	th := newTheatre(t)
	s := th.newStage(t, true, pgx.ReadCommitted)
	s.exec(`ALTER TABLE fencing.marks SET (fillfactor = 10)`)
	// A page holds a few marks of such length, so this is more than 64 MiB.
	s.exec(`INSERT INTO fencing.marks SELECT rpad('filler/' || i, 250, 'x'), 1, 0, '0', now() FROM generate_series(1, 30000) AS i`)
	err := tried(t, s.admn, `SELECT fencing.claim('first', 34)`, `SELECT fencing.claim('account/1', 34)`, `UPDATE accounts SET balance = -1 WHERE id = 1`)
	if err == nil || !strings.Contains(err.Error(), "has claimed only 'account/1'") || strings.Contains(err.Error(), "first") {
		t.Errorf("the refusal is %v", err)
	}
}

// TestClaimExisting: a backfill claims every row that is there, or those that it is
// about to write, and writes them.
func TestClaimExisting(t *testing.T) {
	th := newTheatre(t)
	keys := proofKeys(t, keyOne)
	if err := pgguard.SetProofKeys(t.Context(), th.url, keys); err != nil {
		t.Fatal(err)
	}
	for _, proof := range []string{"false", "true"} {
		t.Run("proof="+proof, func(t *testing.T) {
			s := th.newStage(t, false, pgx.ReadCommitted)
			s.exec(`TRUNCATE fencing.proven`)
			s.exec(`SELECT fencing.protect('accounts', $$'accounts/' || id$$, proof => ` + proof + `)`)
			claim := func(token fencing.Token) string {
				return claimWith("accounts/1", token, keys.Prove("accounts/1", token))
			}
			s.exec(claim(34))
			if err := tried(t, s.admn, `SELECT fencing.claim_existing('accounts')`, `UPDATE accounts SET note = 'filled'`, `DELETE FROM accounts WHERE id = 3`); err != nil {
				t.Errorf("a backfill: %v", err)
			}
			if err := tried(t, s.admn, `SELECT fencing.claim_existing('accounts', $$id > 1 AND note = 'filled'$$)`, `UPDATE accounts SET note = 'again' WHERE id = 2`); err != nil {
				t.Errorf("a batch: %v", err)
			}
			if err := tried(t, s.admn, `SELECT fencing.claim_existing('accounts', 'id = 2')`, `UPDATE accounts SET note = 'again' WHERE id = 1`); sqlState(err) != pgguard.SQLStateMissing {
				t.Errorf("a row that the batch left out: %v", err)
			}
			if err := tried(t, s.admn, claim(34), `UPDATE accounts SET note = 'held' WHERE id = 1`); err != nil {
				t.Errorf("the holder after a backfill: %v", err)
			}
			if err := tried(t, s.admn, claim(33)); sqlState(err) != pgguard.SQLStateStale {
				t.Errorf("a stale holder after a backfill: %v", err)
			}
		})
	}
	s := th.newStage(t, true, pgx.ReadCommitted)
	var claimed int64
	if err := s.admn.QueryRow(t.Context(), `SELECT fencing.claim_existing('accounts')`).Scan(&claimed); err != nil || claimed != 3 {
		t.Errorf("claimed %d, %v; want 3", claimed, err)
	}
	s.exec(`CREATE TABLE bare (id int)`)
	if got := s.fails(s.admn, `SELECT fencing.claim_existing('bare')`); got != "42809" {
		t.Errorf("a table that is not protected gives %q", got)
	}
}

// TestBackfillWaitsForTheHolder, who is in the middle of a transaction, and the next
// holder waits for the backfill.
func TestBackfillWaitsForTheHolder(t *testing.T) {
	s := newTheatre(t).newStage(t, true, pgx.ReadCommitted)
	holder := s.begin()
	mustExec(t, holder, `SELECT fencing.claim('accounts/1', 34)`)
	mustExec(t, holder, `UPDATE accounts SET balance = balance + 10 WHERE id = 1`)
	backfill := s.begin()
	done := async(t, backfill, `SELECT fencing.claim_existing('accounts')`)
	if waited, err := s.waits(done); !waited {
		t.Fatalf("the backfill did not wait for the holder: %v", err)
	}
	mustCommit(t, holder)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mustExec(t, backfill, `UPDATE accounts SET balance = balance * 2`)
	next := s.begin()
	done = async(t, next, `SELECT fencing.claim('accounts/1', 35)`)
	if waited, err := s.waits(done); !waited {
		t.Fatalf("the next holder did not wait for the backfill: %v", err)
	}
	mustCommit(t, backfill)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var balance int
	if err := next.QueryRow(t.Context(), `SELECT balance FROM accounts WHERE id = 1`).Scan(&balance); err != nil || balance != 20 {
		t.Errorf("the next holder reads %d, %v; want 20", balance, err)
	}
}

// TestUnguarded: a role that was granted it writes without tokens, in the transaction
// that says so, and both the right and the use can be seen.
func TestUnguarded(t *testing.T) {
	th := newTheatre(t)
	s := th.newStage(t, true, pgx.ReadCommitted)
	s.claim34()
	super := connectTo(t, th.superURL)
	role := newRole(t, super)
	mustExec(t, super, `GRANT USAGE ON SCHEMA fencing, app TO `+role+`; GRANT ALL ON app.accounts TO `+role)
	conn := connectTo(t, withUser(t, th.superURL, role, "pw"))
	mustExec(t, conn, `SET search_path = app`)
	const unguarded = `SELECT fencing.unguarded('fixtures')`
	for _, sql := range []string{unguarded, `SELECT fencing.claim_existing('accounts')`, `SELECT fencing._claim_existing('accounts', '{accounts/1}')`, `INSERT INTO fencing.unguarded VALUES (pg_current_xact_id(), now(), 'x', 'x')`} {
		if got := s.fails(conn, sql); got != "42501" {
			t.Errorf("without the right, %s gives %q", sql, got)
		}
	}
	s.exec(`GRANT EXECUTE ON FUNCTION fencing.unguarded(text) TO ` + role)
	if got := s.status("role", role); got.Mode != "unguarded" || got.Unfenced != 0 {
		t.Errorf("the status of the role is %+v", got)
	}
	writes := []string{`INSERT INTO accounts VALUES (9, 9)`, `UPDATE accounts SET balance = 1`, `DELETE FROM accounts WHERE id = 9`, `TRUNCATE accounts`}
	if err := tried(t, conn, append([]string{unguarded}, writes...)...); err != nil {
		t.Errorf("with the right: %v", err)
	}
	mustExec(t, s.admn, `BEGIN; SELECT fencing.claim('accounts/1', 34); INSERT INTO accounts VALUES (1); COMMIT`)
	for name, statements := range map[string][]string{
		"the next transaction": {`UPDATE accounts SET balance = 2`},
		"a savepoint, undone":  {`SAVEPOINT s`, unguarded, `ROLLBACK TO s`, `UPDATE accounts SET balance = 2`},
	} {
		if err := tried(t, conn, statements...); sqlState(err) != pgguard.SQLStateMissing {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := tried(t, conn, unguarded, staleUpdate); sqlState(err) != pgguard.SQLStateStale {
		t.Errorf("a stale token that is presented: %v", err)
	}
	if err := tried(t, conn, `SELECT fencing.unguarded('')`); sqlState(err) != "22023" {
		t.Errorf("without a reason: %v", err)
	}
	if got := s.status("role", role); got.Unfenced != 1 {
		t.Errorf("the status of the role is %+v, want 1 transaction", got)
	}
	var by, reason string
	if err := s.admn.QueryRow(t.Context(), `SELECT role, reason FROM fencing.unguarded`).Scan(&by, &reason); err != nil || by != role || reason != "fixtures" {
		t.Errorf("kept are %q, %q, %v", by, reason, err)
	}
}

// TestInserts: in the mode inserts a row that is new to everybody needs no token, and
// nothing else does without one.
func TestInserts(t *testing.T) {
	th := newTheatre(t)
	if err := pgguard.SetProofKeys(t.Context(), th.url, proofKeys(t, keyOne)); err != nil {
		t.Fatal(err)
	}
	for _, proof := range []string{"false", "true"} {
		t.Run("proof="+proof, func(t *testing.T) {
			s := th.newStage(t, false, pgx.ReadCommitted)
			s.exec(`TRUNCATE fencing.proven`)
			s.exec(`SELECT fencing.protect('accounts', $$'accounts/' || nullif(id, 0)$$, mode => 'inserts', proof => ` + proof + `)`)
			s.exec(`INSERT INTO accounts VALUES (10), (11)`)
			s.exec(`INSERT INTO accounts VALUES (11) ON CONFLICT DO NOTHING`)
			for _, sql := range []string{
				`UPDATE accounts SET balance = -1 WHERE id = 10`, `DELETE FROM accounts WHERE id = 10`, `UPDATE accounts SET id = 12 WHERE id = 1`,
				`INSERT INTO accounts VALUES (11) ON CONFLICT (id) DO UPDATE SET balance = -1`,
			} {
				if got := s.fails(s.admn, sql); got != pgguard.SQLStateMissing {
					t.Errorf("%s gives %q", sql, got)
				}
			}
			if got := s.fails(s.admn, `INSERT INTO accounts VALUES (0)`); got != pgguard.SQLStateMalformed {
				t.Errorf("a row without a resource gives %q", got)
			}
			if err := tried(t, s.admn, `SELECT fencing.unguarded('the row goes, its mark stays')`, `DELETE FROM accounts WHERE id = 10`); err != nil {
				t.Fatal(err)
			}
			if got := s.fails(s.admn, `INSERT INTO accounts VALUES (10)`); got != pgguard.SQLStateMissing {
				t.Errorf("a row that was there before gives %q", got)
			}
		})
	}
}

// TestInsertAgainstTheFirstClaim: whoever has claimed never sees the row come later.
func TestInsertAgainstTheFirstClaim(t *testing.T) {
	th := newTheatre(t)
	for _, iso := range isolations {
		start := func(t *testing.T) (*stage, pgx.Tx, pgx.Tx) {
			t.Helper()
			s := th.newStage(t, false, iso)
			s.exec(`SELECT fencing.protect('accounts', $$'accounts/' || id$$, 'inserts')`)
			insert, holder := s.begin(), s.begin()
			mustExec(t, insert, `SELECT 1`)
			mustExec(t, holder, `SELECT 1`)
			return s, insert, holder
		}
		t.Run("insert first/"+string(iso), func(t *testing.T) {
			s, insert, holder := start(t)
			mustExec(t, insert, `INSERT INTO accounts VALUES (9)`)
			done := async(t, holder, `SELECT fencing.claim('accounts/9', 34)`)
			if waited, err := s.waits(done); !waited {
				t.Fatalf("the claim did not wait for the insert: %v", err)
			}
			mustCommit(t, insert)
			if err := <-done; sqlState(err) != serializationAbove(iso) {
				t.Errorf("the claim gives %v", err)
			}
		})
		t.Run("claim first/"+string(iso), func(t *testing.T) {
			s, insert, holder := start(t)
			mustExec(t, holder, `SELECT fencing.claim('accounts/9', 34)`)
			done := async(t, insert, `INSERT INTO accounts VALUES (9)`)
			if waited, err := s.waits(done); !waited {
				t.Fatalf("the insert did not wait for the claim: %v", err)
			}
			mustCommit(t, holder)
			want := []string{pgguard.SQLStateMissing}
			if iso != pgx.ReadCommitted {
				want = []string{"40001"}
			}
			if err := <-done; !slices.Contains(want, sqlState(err)) {
				t.Errorf("the insert gives %v, want %v", err, want)
			}
			_ = insert.Rollback(context.Background())
		})
	}
}
