package pgguardtest_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

func proofKeys(t *testing.T, text string) *fencing.ProofKeys {
	t.Helper()
	keys, err := fencing.ParseProofKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

const (
	keyOne = "k1 0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20\n"
	keyTwo = "key-2 ff02030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20ff02030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20\n"
)

// newProofs is a database with keys, and the table accounts, which demands proofs.
func newProofs(t *testing.T) (url string, conn *pgx.Conn, keys *fencing.ProofKeys) {
	t.Helper()
	t.Parallel()
	pg := installed(t)
	keys = proofKeys(t, keyOne)
	if err := pgguard.SetProofKeys(t.Context(), pg.OwnerURL(), keys); err != nil {
		t.Fatal(err)
	}
	conn = connectTo(t, pg.OwnerURL())
	mustExec(t, conn, `CREATE SCHEMA app`)
	mustExec(t, conn, `SET search_path = app`)
	mustExec(t, conn, `CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0)`)
	mustExec(t, conn, `INSERT INTO accounts VALUES (1), (2)`)
	mustExec(t, conn, `SELECT fencing.protect('accounts', $$'accounts/' || id$$, proof => true)`)
	return pg.OwnerURL(), conn, keys
}

// tried runs statements in a transaction of their own and gives its error.
func tried(t *testing.T, conn *pgx.Conn, statements ...string) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		for _, statement := range statements {
			if _, err := tx.Exec(t.Context(), statement); err != nil {
				return err
			}
		}
		return nil
	})
}

func claimWith(resource string, token fencing.Token, proof string) string {
	return "SELECT fencing.claim('" + resource + "', " + token.String() + ", '" + proof + "')"
}

const write = `UPDATE accounts SET balance = balance + 1 WHERE id = 1`

// marks describes every mark there is, of both kinds.
func marks(t *testing.T, conn *pgx.Conn) (all string) {
	t.Helper()
	err := conn.QueryRow(t.Context(), `SELECT coalesce(string_agg(m, ' ' ORDER BY m), '') FROM (
		SELECT 'plain:' || resource || '=' || mark AS m FROM fencing.marks UNION ALL SELECT 'proven:' || resource || '=' || mark FROM fencing.proven) AS m`).Scan(&all)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestForgedTokensAreRefused(t *testing.T) {
	_, conn, keys := newProofs(t)
	proof := keys.Prove("accounts/1", 34)
	if err := tried(t, conn, claimWith("accounts/1", 34, proof), write); err != nil {
		t.Fatal(err)
	}
	before := marks(t, conn)
	if before != "plain:accounts/1=34 proven:accounts/1=34" {
		t.Fatalf("marks %s", before)
	}
	big := fencing.MaxToken
	for name, statement := range map[string]string{
		"a big number under another's proof": claimWith("accounts/1", big, proof),
		"a proof of another resource":        claimWith("accounts/1", 35, keys.Prove("accounts/2", 35)),
		"a proof of another token":           claimWith("accounts/1", 35, proof),
		"a proof by an unknown key":          claimWith("accounts/1", 35, proofKeys(t, keyTwo).Prove("accounts/1", 35)),
		"a known id with another key":        claimWith("accounts/1", 35, strings.Replace(proofKeys(t, keyTwo).Prove("accounts/1", 35), "key-2", "k1", 1)),
		"an id alone":                        claimWith("accounts/1", 35, "k1."),
		"nonsense":                           claimWith("accounts/1", 35, "nonsense"),
		"padding":                            claimWith("accounts/1", 34, proof+"="),
		"nothing":                            claimWith("accounts/1", 35, ""),
		"NULL":                               "SELECT fencing.claim('accounts/1', 35, NULL)",
		"try_claim":                          "SELECT fencing.try_claim('accounts/1', 35, '" + proof + "')",
	} {
		err := tried(t, conn, statement)
		var d struct {
			Resource  string `json:"resource"`
			Presented int64  `json:"presented"`
			Highest   int64  `json:"highest"`
			Missing   bool   `json:"missing"`
		}
		if sqlState(err) != pgguard.SQLStateUnproven || json.Unmarshal([]byte(detail(err)), &d) != nil {
			t.Errorf("%s: %v %s", name, err, detail(err))
			continue
		}
		if d.Resource != "accounts/1" || d.Presented < 34 || d.Highest != 34 || d.Missing != (name == "nothing" || name == "NULL") {
			t.Errorf("%s: detail %+v", name, d)
		}
		if after := marks(t, conn); after != before {
			t.Errorf("%s: marks were %s and are %s", name, before, after)
		}
	}
}

// TestAnUnprovenMarkCountsForNothing: without a proof anybody may still raise the
// ordinary mark; the holder with a proof continues writing, and nobody else does.
func TestAnUnprovenMarkCountsForNothing(t *testing.T) {
	_, conn, keys := newProofs(t)
	claim := claimWith("accounts/1", 34, keys.Prove("accounts/1", 34))
	if err := tried(t, conn, claim, write); err != nil {
		t.Fatal(err)
	}
	const forged = `SELECT fencing.claim('accounts/1', 9007199254740991)`
	if err := tried(t, conn, forged); err != nil {
		t.Fatal(err)
	}
	if err := tried(t, conn, claim, write); err != nil {
		t.Errorf("the holder is locked out by a number that somebody made up: %v", err)
	}
	for name, statements := range map[string][]string{
		"claimed without a proof": {forged, write},
		"the mark, known to all":  {`SELECT fencing.claim('accounts/1', 34)`, write},
		"presented":               {`UPDATE accounts SET balance = 7 WHERE id = 1 AND fencing.present('accounts/1', 9007199254740991) <> ''`},
		"the mark presented":      {`UPDATE accounts SET balance = 7 WHERE id = 1 AND fencing.present('accounts/1', 34) <> ''`},
		"a delete":                {forged, `DELETE FROM accounts WHERE id = 1`},
		"moved away":              {forged, `SELECT fencing.claim('accounts/9', 1)`, `UPDATE accounts SET id = 9 WHERE id = 1`},
		"truncated":               {forged, `TRUNCATE accounts`},
	} {
		wanted := pgguard.SQLStateUnproven
		if name == "the mark, known to all" { // which is not the largest any more
			wanted = pgguard.SQLStateStale
		}
		if err := tried(t, conn, statements...); sqlState(err) != wanted {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, statements := range map[string][]string{
		"no token":                {write},
		"a setting of ours":       {`SELECT set_config('fencing.claimed', pg_current_xact_id() || ' accounts/1', true)`, write},
		"a claim of another":      {claimWith("accounts/2", 1, keys.Prove("accounts/2", 1)), write},
		"a claim that was undone": {`SAVEPOINT s`, claim, `ROLLBACK TO s`, write},
	} {
		if err := tried(t, conn, statements...); sqlState(err) != pgguard.SQLStateMissing {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := tried(t, conn, `INSERT INTO accounts VALUES (3)`); sqlState(err) != pgguard.SQLStateMissing {
		t.Errorf("an insert: %v", err)
	}
	if err := tried(t, conn, claimWith("accounts/1", 33, keys.Prove("accounts/1", 33)), write); sqlState(err) != pgguard.SQLStateStale {
		t.Errorf("a stale token with its proof: %v", err)
	}
	all := []string{claim, claimWith("accounts/2", 5, keys.Prove("accounts/2", 5)), claimWith("accounts/9", 6, keys.Prove("accounts/9", 6))}
	if err := tried(t, conn, append(all, `UPDATE accounts SET id = 9 WHERE id = 2`, `TRUNCATE accounts`, `INSERT INTO accounts VALUES (1)`)...); err != nil {
		t.Errorf("with a proof for each: %v", err)
	}
}

func TestDoWithProof(t *testing.T) {
	url, _, keys := newProofs(t)
	pool := openPool(t, url)
	bump := func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `UPDATE app.accounts SET balance = balance + 1 WHERE id = 1`)
		return err
	}
	do := func(token fencing.Token, proof string) error {
		return pgguard.Do(t.Context(), pool, fencing.Claim{Resource: "accounts/1", Token: token, Proof: proof}, bump)
	}
	if err := do(34, keys.Prove("accounts/1", 34)); err != nil {
		t.Fatal(err)
	}
	var refused *fencing.ProofError
	if err := do(35, keys.Prove("accounts/1", 34)); !errors.As(err, &refused) || refused.Missing || refused.Presented != 35 || refused.Resource != "accounts/1" {
		t.Errorf("a wrong proof: %v", err)
	}
	if err := do(35, ""); !errors.Is(err, fencing.ErrNoProof) { // the ordinary claim passes, the write does not
		t.Errorf("no proof: %v", err)
	}
	if err := do(33, keys.Prove("accounts/1", 33)); !errors.Is(err, fencing.ErrStaleToken) {
		t.Errorf("a stale token: %v", err)
	}
	var counted int64
	if err := pool.QueryRow(t.Context(), `SELECT refused FROM fencing.status WHERE kind = 'table'`).Scan(&counted); err != nil || counted != 1 {
		t.Errorf("%d refusals are counted, %v", counted, err)
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	proven := fencing.Claim{Resource: "accounts/1", Token: 36, Proof: keys.Prove("accounts/1", 36)}
	err := pgguard.DoSQL(t.Context(), db, proven, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE app.accounts SET balance = balance + 1 WHERE id = 1`)
		return err
	})
	if err != nil {
		t.Errorf("database/sql: %v", err)
	}
}

func TestProofKeysAreRotated(t *testing.T) {
	url, conn, one := newProofs(t)
	two := proofKeys(t, keyTwo)
	works := func(keys *fencing.ProofKeys, token fencing.Token) bool {
		return tried(t, conn, claimWith("accounts/1", token, keys.Prove("accounts/1", token)), write) == nil
	}
	set := func(text string) {
		t.Helper()
		if err := pgguard.SetProofKeys(t.Context(), url, proofKeys(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	if !works(one, 1) || works(two, 2) {
		t.Error("the first key")
	}
	set(keyOne + keyTwo)
	if !works(one, 2) || !works(two, 3) {
		t.Error("both keys")
	}
	set(keyTwo)
	if works(one, 4) || !works(two, 4) {
		t.Error("the second key alone")
	}
}

// TestProofKeysAreTheOwners: a role with the rights that docs/reference/guard.md lists for
// a service, and every table granted besides, neither reads a key nor sets one.
func TestProofKeysAreTheOwners(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	if err := errors.Join(pgguard.Install(t.Context(), pg.OwnerURL()), pgguard.SetProofKeys(t.Context(), pg.OwnerURL(), proofKeys(t, keyOne))); err != nil {
		t.Fatal(err)
	}
	super := connectTo(t, pg.URL())
	name := newRole(t, super)
	for _, grant := range serviceGrants(t) {
		if !strings.Contains(grant, "ALL TABLES") {
			mustExec(t, super, strings.ReplaceAll(grant, " TO service", " TO "+name))
		}
	}
	conn := connectTo(t, withUser(t, pg.URL(), name, "pw"))
	if _, err := conn.Exec(t.Context(), `SELECT * FROM fencing.proof_keys`); sqlState(err) != "42501" {
		t.Errorf("the keys: %v", err)
	}
	mustExec(t, super, `GRANT SELECT ON ALL TABLES IN SCHEMA fencing TO `+name)
	var seen int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM fencing.proof_keys`).Scan(&seen); err != nil || seen != 0 {
		t.Errorf("%d keys are seen where tables are granted, %v", seen, err)
	}
	if _, err := conn.Exec(t.Context(), `SELECT fencing.set_proof_key('x', '\x0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20')`); sqlState(err) != "42501" {
		t.Errorf("a key is set: %v", err)
	}
	mustExec(t, conn, claimWith("r", 1, proofKeys(t, keyOne).Prove("r", 1))) // and yet its claims are verified
}

func TestProtectingWithProofs(t *testing.T) {
	url, conn, keys := newProofs(t)
	demands := func(table string) (proof bool) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), `SELECT proof FROM fencing.protected WHERE relation = $1::text::regclass`, table).Scan(&proof); err != nil {
			t.Fatal(err)
		}
		return proof
	}
	mustExec(t, conn, `SELECT fencing.protect('accounts', $$'accounts/' || id$$)`)
	if !demands("accounts") || sqlState(tried(t, conn, `SELECT fencing.claim('accounts/1', 1)`, write)) != pgguard.SQLStateUnproven {
		t.Error("protecting again drops the demand")
	}
	mustExec(t, conn, `SELECT fencing.protect('accounts', $$'accounts/' || id$$, mode => 'migrating', proof => true)`)
	if err := tried(t, conn, write); err != nil {
		t.Errorf("migrating: %v", err)
	}
	mustExec(t, conn, `SELECT fencing.protect('accounts', $$'accounts/' || id$$, proof => false)`)
	if err := tried(t, conn, `SELECT fencing.claim('accounts/1', 5)`, write); err != nil || demands("accounts") {
		t.Errorf("a demand that was taken back: %v", err)
	}
	if err := tried(t, conn, claimWith("accounts/1", 6, keys.Prove("accounts/1", 6)), write); err != nil {
		t.Errorf("a proof that nobody demands: %v", err)
	}

	// What was claimed before proofs were demanded counts, so an old holder with a
	// proof does not come back.
	mustExec(t, conn, `CREATE TABLE orders (id int PRIMARY KEY)`)
	mustExec(t, conn, `SELECT fencing.protect('orders', $$'orders/' || id$$)`)
	mustExec(t, conn, `SELECT fencing.claim('orders/1', 40)`)
	mustExec(t, conn, `SELECT fencing.protect('orders', $$'orders/' || id$$, true)`)
	if err := tried(t, conn, claimWith("orders/1", 39, keys.Prove("orders/1", 39))); sqlState(err) != pgguard.SQLStateStale {
		t.Errorf("a token from before the demand: %v", err)
	}
	if err := tried(t, conn, claimWith("orders/1", 40, keys.Prove("orders/1", 40)), `INSERT INTO orders VALUES (1)`); err != nil {
		t.Errorf("the holder: %v", err)
	}
	mustExec(t, conn, `DELETE FROM fencing.proof_keys`)
	mustExec(t, conn, `CREATE TABLE carts (id int)`)
	if err := tried(t, conn, `SELECT fencing.protect('carts', $$'carts/' || id$$, proof => true)`); err == nil || !strings.Contains(err.Error(), "no key") {
		t.Errorf("without a key: %v", err)
	}
	script, err := pgguard.SQL()
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, conn, script) // which leaves a demand as it is
	if !demands("orders") || sqlState(tried(t, conn, `SELECT fencing.claim('orders/1', 41)`, `DELETE FROM orders`)) != pgguard.SQLStateUnproven {
		t.Error("running the script again drops the demand")
	}
	mustExec(t, conn, `SELECT fencing.unprotect('orders')`)
	mustExec(t, conn, `DELETE FROM orders`)
	if err := pgguard.Uninstall(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	mustExec(t, conn, `INSERT INTO accounts VALUES (77)`)
}

// TestStaleProofsUnderConcurrency: a holder that waits for the next one's claim
// is refused, as it is without proofs, at every isolation level.
func TestStaleProofsUnderConcurrency(t *testing.T) {
	url, conn, keys := newProofs(t)
	other := connectTo(t, url)
	mustExec(t, other, `SET search_path = app`)
	for i, iso := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		old, next := fencing.Token(10*i+1), fencing.Token(10*i+2)
		if err := tried(t, conn, claimWith("accounts/1", old, keys.Prove("accounts/1", old)), write); err != nil {
			t.Fatal(err)
		}
		stale, err := other.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: iso})
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, stale, `SELECT * FROM accounts`) // its snapshot
		if err := tried(t, conn, claimWith("accounts/1", next, keys.Prove("accounts/1", next)), write); err != nil {
			t.Fatal(err)
		}
		_, err = stale.Exec(t.Context(), claimWith("accounts/1", old, keys.Prove("accounts/1", old)))
		if state := sqlState(err); state != pgguard.SQLStateStale && state != "40001" {
			t.Errorf("%s: a stale claim: %v", iso, err)
		}
		_ = stale.Rollback(t.Context())
	}
}

// TestSwitchingProofsOn: every mark of that moment counts as proven, also where
// there is a smaller one that was proven before.
func TestSwitchingProofsOn(t *testing.T) {
	_, conn, keys := newProofs(t)
	old := claimWith("accounts/1", 34, keys.Prove("accounts/1", 34))
	mustExec(t, conn, old)
	mustExec(t, conn, `SELECT fencing.protect('accounts', $$'accounts/' || id$$, proof => false)`)
	mustExec(t, conn, `SELECT fencing.claim('accounts/1', 35)`)
	mustExec(t, conn, `SELECT fencing.protect('accounts', $$'accounts/' || id$$, proof => true)`)
	if err := tried(t, conn, old, write); sqlState(err) != pgguard.SQLStateStale {
		t.Errorf("a token that is older than the mark: %v", err)
	}
	if err := tried(t, conn, claimWith("accounts/1", 35, keys.Prove("accounts/1", 35)), write); err != nil {
		t.Errorf("the holder: %v", err)
	}
}

// TestProofsAreSwitchedOnAtReadCommitted: a snapshot from before might lack a mark.
func TestProofsAreSwitchedOnAtReadCommitted(t *testing.T) {
	url, conn, keys := newProofs(t)
	other := connectTo(t, url)
	for _, iso := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		mustExec(t, conn, `SELECT fencing.protect('accounts', $$'accounts/' || id$$, proof => false)`)
		tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: iso})
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, tx, `SELECT * FROM fencing.marks`) // its snapshot
		mustExec(t, other, `SELECT fencing.claim('accounts/7', 35)`)
		if _, err := tx.Exec(t.Context(), `SELECT fencing.protect('accounts', $$'accounts/' || id$$, proof => true)`); sqlState(err) != "0A000" {
			t.Errorf("%s: %v", iso, err)
		}
		_ = tx.Rollback(t.Context())
		mustExec(t, conn, `SELECT fencing.protect('accounts', $$'accounts/' || id$$, proof => true)`)
		if err := tried(t, conn, claimWith("accounts/7", 34, keys.Prove("accounts/7", 34))); sqlState(err) != pgguard.SQLStateStale {
			t.Errorf("%s: a token from before: %v", iso, err)
		}
	}
}
