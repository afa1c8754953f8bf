package mysqlguardtest_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/mysqlguard"
)

// newUser is a user of a test, with these rights: what comes before TO.
func newUser(t *testing.T, maria *testenv.Maria, grants ...string) *sql.DB {
	t.Helper()
	name := "user_" + strings.ToLower(rand.Text()[:10])
	admin := maria.Admin()
	t.Cleanup(func() { _, _ = admin.ExecContext(context.Background(), "DROP USER "+name) })
	exec(t, admin, "CREATE USER "+name+" IDENTIFIED BY 'x'")
	for _, grant := range grants {
		exec(t, admin, grant+" TO "+name)
	}
	return maria.Open(url.UserPassword(name, "x"))
}

// newWriter is a user with the rights of an application, and those to temporary tables.
func newWriter(t *testing.T, maria *testenv.Maria, db *sql.DB) *sql.DB {
	t.Helper()
	database := text(t, db, `SELECT DATABASE()`)
	return newUser(t, maria,
		fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s.accounts", database),
		fmt.Sprintf("GRANT EXECUTE ON FUNCTION %s.fencing_claim", database),
		fmt.Sprintf("GRANT CREATE TEMPORARY TABLES ON %s.*", database))
}

// TestNobodyGuessesAClaimer: a session that sets @fencing_claimer, to what a server may have
// made lately, to what it has read of the marks, or to the holder's own, writes nothing.
func TestNobodyGuessesAClaimer(t *testing.T) {
	t.Parallel()
	maria, db := guarded(t, "strict")
	holder, forger := session(t, newWriter(t, maria, db)), session(t, newWriter(t, maria, db))
	exec(t, holder, `BEGIN`, claim("accounts/1", 34), `COMMIT`)
	exec(t, db, claim("accounts/2", 34)) // a transaction of its own
	guesses := []string{
		`NULL`, `''`, `0`, `-1`, `TRUE`, `X''`, `' '`, `1e19`, `18446744073709551615`, `CONNECTION_ID()`, `'nobody'`,
		`'` + text(t, holder, `SELECT @fencing_claimer`) + `'`,
		`X'` + text(t, holder, `SELECT HEX(@fencing_claimer)`) + `'`,
		`CONVERT('` + text(t, holder, `SELECT @fencing_claimer`) + `' USING ucs2)`,
		`UNHEX('` + text(t, db, `SELECT HEX(claimer) FROM fencing_marks WHERE resource = 'accounts/1'`) + `')`,
		`'` + text(t, db, `SELECT HEX(claimer) FROM fencing_marks WHERE resource = 'accounts/1'`) + `'`,
		`CONV('` + text(t, db, `SELECT LEFT(HEX(claimer), 16) FROM fencing_marks WHERE resource = 'accounts/1'`) + `', 16, 10)`,
	}
	for i := range 100 {
		guesses = append(guesses, fmt.Sprintf(`UUID_SHORT() - %d`, i))
	}
	before := dump(t, db)
	exec(t, forger, `BEGIN`)
	for _, guess := range guesses {
		exec(t, forger, `SET @fencing_claimer = `+guess)
		refused(t, forger, missing, `UPDATE accounts SET balance = 0 WHERE id = 1`)
		refused(t, forger, missing, `UPDATE accounts SET balance = 0 WHERE id = 2`)
	}
	exec(t, forger, `COMMIT`)
	if after := dump(t, db); after != before {
		t.Errorf("rows were %s and are %s", before, after)
	}
	// The holder can continue, and a claim counts with whatever is in the variable.
	exec(t, holder, `BEGIN`, `UPDATE accounts SET balance = 1 WHERE id = 1`, `COMMIT`)
	for _, own := range []string{`NULL`, `'mine'`, `7`, `X'00FF'`} {
		exec(t, holder, `SET @fencing_claimer = `+own, `BEGIN`, claim("accounts/1", 34), `UPDATE accounts SET balance = balance + 1 WHERE id = 1`, `COMMIT`)
	}
}

// TestTemporaryTablesHideNothing: a temporary table hides the real one of its name, also from
// triggers and routines that run as another user. With one of the guard's names nothing is
// written.
func TestTemporaryTablesHideNothing(t *testing.T) {
	t.Parallel()
	maria, db := guarded(t, "inserts")
	exec(t, db, claim("accounts/1", 34), claim("accounts/2", 34))
	const marks = `CREATE TEMPORARY TABLE fencing_marks (resource VARCHAR(256) PRIMARY KEY, mark BIGINT, previous BIGINT, claims BIGINT, claimer BINARY(16), claimed_at DATETIME(6))`
	const logged = `CREATE TEMPORARY TABLE fencing_unguarded_log (id BIGINT UNSIGNED, thread BIGINT UNSIGNED, at DATETIME(6), role VARCHAR(400), reason VARCHAR(1000), ended DATETIME(6))`
	before := dump(t, db)
	// The guard relies on this.
	if _, err := newWriter(t, maria, db).ExecContext(t.Context(), marks+` PARTITION BY KEY (resource) (PARTITION base)`); err == nil {
		t.Fatal("this MariaDB makes temporary tables with partitions")
	}
	for name, hides := range map[string][]string{
		"nothing":         {marks},
		"a claim":         {marks, `SET @fencing_claimer = 'x'`, `INSERT INTO fencing_marks SELECT CONCAT('accounts/', id), 1, 1, 1, LEFT(UNHEX(SHA2(CONCAT(CONNECTION_ID(), ' ', @fencing_claimer), 256)), 16), NOW(6) FROM accounts`},
		"another engine":  {strings.Replace(marks, "VARCHAR(256)", "VARCHAR(200)", 1) + ` ENGINE = MyISAM`},
		"a sequence":      {`CREATE TEMPORARY SEQUENCE fencing_marks`},
		"the log":         {logged, `INSERT INTO fencing_unguarded_log VALUES (1, CONNECTION_ID(), NOW(6), 'x', 'x', NULL)`, `SET @fencing_unguarded = 1`},
		"marks and a log": {marks, logged, `INSERT INTO fencing_unguarded_log VALUES (1, CONNECTION_ID(), NOW(6), 'x', 'x', NULL)`, `SET @fencing_unguarded = 1`},
		"the counters":    {`CREATE TEMPORARY SEQUENCE fencing_refusals`, `CREATE TEMPORARY SEQUENCE fencing_unfenced_1`},
		"the tables":      {`CREATE TEMPORARY TABLE fencing_protected (id INT)`, `CREATE TEMPORARY TABLE fencing_version (version INT)`, `CREATE TEMPORARY TABLE fencing_turn (name INT)`},
	} {
		forger := session(t, newWriter(t, maria, db))
		exec(t, forger, hides...)
		exec(t, forger, `BEGIN`)
		for _, statement := range []string{
			claim("accounts/1", 1),
			`UPDATE accounts SET balance = 0 WHERE id = 1`,
			`UPDATE IGNORE accounts SET balance = 0`,
			`DELETE IGNORE FROM accounts WHERE id = 2`,
			`REPLACE INTO accounts (id, balance) VALUES (1, 0)`,
			`INSERT INTO accounts (id) VALUES (1) ON DUPLICATE KEY UPDATE balance = 0`,
		} {
			if _, err := forger.ExecContext(t.Context(), statement); err == nil {
				t.Errorf("%s is hidden: %s went through", name, statement)
			}
		}
		exec(t, forger, `COMMIT`)
		if after := dump(t, db); after != before {
			t.Errorf("%s is hidden: rows were %s and are %s", name, before, after)
		}
	}
	if mark := text(t, db, `SELECT mark FROM fencing_marks WHERE resource = 'accounts/1'`); mark != "34" {
		t.Errorf("the mark is %s", mark)
	}
}

// TestAStrangerDelaysNoChange: a user that may log in and nothing else holds locks by GET_LOCK,
// which needs no right.
func TestAStrangerDelaysNoChange(t *testing.T) {
	t.Parallel()
	maria := testenv.MariaDB(t)
	db := maria.DB()
	database := text(t, db, `SELECT DATABASE()`)
	stranger := session(t, newUser(t, maria, fmt.Sprintf("GRANT CREATE TEMPORARY TABLES ON %s.*", database)))
	for _, name := range []string{`CONCAT('fencing.', MD5('` + database + `'))`, `'fencing'`, `'fencing.'`, `'fencing_turn'`, `'` + database + `'`, `'` + database + `.fencing_turn'`} {
		exec(t, stranger, `DO GET_LOCK(`+name+`, 0)`)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	exec(t, db, `CREATE TABLE accounts (id INT PRIMARY KEY)`)
	if err := mysqlguard.Install(ctx, maria.OwnerURL()); err != nil {
		t.Fatalf("the first installation: %v", err)
	}
	if _, err := db.ExecContext(ctx, `CALL fencing_protect('accounts', "CONCAT('a/', id)", 'strict')`); err != nil {
		t.Errorf("a protection: %v", err)
	}
	if err := mysqlguard.Install(ctx, maria.OwnerURL()); err != nil {
		t.Errorf("an upgrade: %v", err)
	}
	if _, err := stranger.ExecContext(t.Context(), `SELECT * FROM fencing_turn`); err == nil {
		t.Error("a stranger reads the name of the lock")
	}
	// It is one lock for all who change something.
	holder := session(t, db)
	// An installation holds it until the server has seen that its connection is closed.
	if got := text(t, holder, `SELECT GET_LOCK((SELECT name FROM fencing_turn), 20)`); got != "1" {
		t.Fatalf("the lock was not taken: %s", got)
	}
	short, end := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer end()
	if err := mysqlguard.Install(short, maria.OwnerURL()); err == nil {
		t.Error("two installations run at once")
	}
	exec(t, holder, `DO RELEASE_LOCK((SELECT name FROM fencing_turn))`)
	if err := mysqlguard.Uninstall(ctx, maria.OwnerURL()); err != nil {
		t.Errorf("a removal: %v", err)
	}
	if err := mysqlguard.Uninstall(ctx, maria.OwnerURL()); err != nil {
		t.Errorf("a removal of nothing: %v", err)
	}
}

// TestUpgradeOfTheGuard: version 1 had other marks, and triggers that believed the variable.
func TestUpgradeOfTheGuard(t *testing.T) {
	t.Parallel()
	maria, db := guarded(t, "strict")
	exec(t, db, `CREATE TABLE renamed (id INT PRIMARY KEY)`)
	protect(t, db, "renamed", `CONCAT('r/', id)`, "strict")
	for _, undo := range []string{
		`DELETE FROM fencing_version`, `INSERT INTO fencing_version VALUES (1, NOW(6))`, `DROP TABLE fencing_turn`,
		`ALTER TABLE fencing_unguarded_log REMOVE PARTITIONING`, `ALTER TABLE fencing_marks REMOVE PARTITIONING`,
		`ALTER TABLE fencing_marks MODIFY claimer BIGINT UNSIGNED NOT NULL`,
		`INSERT INTO fencing_marks VALUES ('accounts/1', 34, 33, 2, 18446744073709551615, NOW(6)), ('accounts/2', 1, 0, 1, 7, NOW(6))`,
		`CREATE OR REPLACE TRIGGER fencing_1_update AFTER UPDATE ON accounts FOR EACH ROW
			IF NOT EXISTS (SELECT 1 FROM fencing_marks WHERE claimer = @fencing_claimer) THEN SIGNAL SQLSTATE 'LK002'; END IF`,
		`UPDATE fencing_protected SET triggers = fencing_triggers('accounts', 1) WHERE id = 1`,
		`ALTER TABLE renamed CHANGE id number INT`,
	} {
		exec(t, db, undo)
	}
	forger := session(t, db)
	exec(t, forger, `SET @fencing_claimer = 7`, `UPDATE accounts SET balance = 1`, `SET @fencing_claimer = 18446744073709551615`)

	guard := openGuard(t, maria.OwnerURL(), mysqlguard.Options{CallTimeout: 20 * time.Second})
	if highest, err := guard.HighestMark(t.Context()); err != nil || highest != 34 {
		t.Fatalf("the highest mark is %d, %v", highest, err)
	}
	for _, guess := range []string{`7`, `'7'`, `18446744073709551615`, `'18446744073709551615'`} {
		exec(t, forger, `SET @fencing_claimer = `+guess, `BEGIN`)
		refused(t, forger, missing, `UPDATE accounts SET balance = 2`)
		exec(t, forger, `ROLLBACK`)
	}
	refused(t, forger, stale, claim("accounts/1", 33))
	exec(t, forger, `BEGIN`, claim("accounts/1", 34), `UPDATE accounts SET balance = 3 WHERE id = 1`, `COMMIT`)
	status, err := mysqlguard.ReadStatus(t.Context(), maria.OwnerURL())
	if err != nil || len(status.Tables) != 2 {
		t.Fatalf("%+v, %v", status, err)
	}
	for _, table := range status.Tables {
		if wrong := strings.Contains(table.Problem, "protect the table again"); wrong != (table.Name == "renamed") {
			t.Errorf("%s: %q", table.Name, table.Problem)
		}
	}
}
