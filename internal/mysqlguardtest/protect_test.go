package mysqlguardtest_test

import (
	"fmt"
	"io"
	program "os/exec"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/fencelock/fencelock/storage/mysqlguard"
)

const (
	stale     = mysqlguard.SQLStateStale
	missing   = mysqlguard.SQLStateMissing
	malformed = mysqlguard.SQLStateMalformed
)

// Every statement that changes a row is refused without a claim, and goes through after it.
func TestEveryStatement(t *testing.T) {
	t.Parallel()
	_, db := guarded(t, "strict")
	exec(t, db, `CREATE TABLE plain (id INT PRIMARY KEY)`, `INSERT INTO plain VALUES (1)`,
		`CREATE VIEW seen AS SELECT id, balance FROM accounts`,
		`CREATE TRIGGER spill AFTER UPDATE ON plain FOR EACH ROW UPDATE accounts SET balance = 7 WHERE id = 1`,
		`CREATE PROCEDURE pay() UPDATE accounts SET balance = 8 WHERE id = 1`)
	mysql.RegisterReaderHandler("rows", func() io.Reader { return strings.NewReader("1\t16\n") })
	conn := session(t, db)
	exec(t, conn, `SET SESSION sql_mode = ''`) // the loosest, in which most errors are warnings
	for _, statement := range []string{
		`UPDATE accounts SET balance = 1 WHERE id = 1`,
		`UPDATE IGNORE accounts SET balance = 2 WHERE id = 1`,
		`UPDATE accounts, plain SET balance = 3 WHERE accounts.id = plain.id`,
		`UPDATE IGNORE accounts, plain SET balance = 4 WHERE accounts.id = plain.id`,
		`UPDATE seen SET balance = 5 WHERE id = 1`,
		`UPDATE plain SET id = 1 + (id = 1) WHERE id = 1`,
		`CALL pay()`,
		`INSERT INTO accounts (id) VALUES (1) ON DUPLICATE KEY UPDATE balance = 9`,
		`INSERT IGNORE INTO accounts (id) VALUES (1) ON DUPLICATE KEY UPDATE balance = 10`,
		`REPLACE INTO accounts (id, balance) VALUES (1, 11)`,
		`REPLACE INTO accounts (id, balance) SELECT 1, 12`,
		`DELETE FROM accounts WHERE id = 1`,
		`INSERT INTO accounts (id, balance) VALUES (1, 13)`,
		`DELETE accounts FROM accounts JOIN plain USING (id)`,
		`INSERT INTO accounts (id, balance) SELECT 1, 14`,
		`DELETE IGNORE FROM accounts WHERE id = 1`,
		`INSERT IGNORE INTO accounts (id, balance) VALUES (1, 15)`,
		`LOAD DATA LOCAL INFILE 'Reader::rows' REPLACE INTO TABLE accounts (id, balance)`,
	} {
		exec(t, conn, `BEGIN`)
		refused(t, conn, missing, statement)
		exec(t, conn, `ROLLBACK`)
		refused(t, conn, missing, statement) // autocommit
		before := dump(t, db)
		exec(t, conn, `BEGIN`, claim("accounts/1", 34))
		exec(t, conn, statement)
		exec(t, conn, `COMMIT`, `SET @fencing_claimer = NULL`, `UPDATE plain SET id = 1 WHERE FALSE`)
		if after := dump(t, db); after == before {
			t.Errorf("%s changed nothing after a claim", statement)
		}
		exec(t, db, `DELETE FROM plain`, `INSERT INTO plain VALUES (1)`)
	}
}

func dump(t *testing.T, db queryer) string {
	t.Helper()
	return text(t, db, `SELECT IFNULL(GROUP_CONCAT(CONCAT_WS(' ', id, balance, note) ORDER BY id), '') FROM accounts`)
}

func TestStaleAndForeignTokens(t *testing.T) {
	t.Parallel()
	_, db := guarded(t, "strict")
	conn := session(t, db)
	exec(t, conn, `BEGIN`, claim("accounts/1", 34), `UPDATE accounts SET balance = 90 WHERE id = 1`, `COMMIT`)
	exec(t, conn, `BEGIN`)
	if said := refused(t, conn, stale, claim("accounts/1", 33)); said != "stale fencing token for 'accounts/1': presented 33, highest seen 34" {
		t.Errorf("the message is %q", said)
	}
	exec(t, conn, `ROLLBACK`, `BEGIN`, claim("account/1", 40))
	if said := refused(t, conn, missing, `UPDATE accounts SET balance = 1 WHERE id = 2`); !strings.Contains(said, "no fencing token for 'accounts/2': this connection has last claimed 'account/1'") {
		t.Errorf("the message is %q", said)
	}
	exec(t, conn, `ROLLBACK`, `BEGIN`, claim("accounts/1", 34))
	// A row that moves needs both resources, and a statement that is refused halfway changes no row.
	refused(t, conn, missing, `UPDATE accounts SET id = 5 WHERE id = 1`)
	refused(t, conn, missing, `UPDATE accounts SET balance = balance + 1`)
	exec(t, conn, claim("accounts/5", 1), `UPDATE accounts SET id = 5 WHERE id = 1`, `COMMIT`)
	if rows := dump(t, db); rows != "2 100,5 90" {
		t.Errorf("rows are %s", rows)
	}
	for _, bad := range []string{`SELECT fencing_claim('accounts/1', 0)`, `SELECT fencing_claim('accounts/1', 9007199254740992)`, `SELECT fencing_claim('accounts/1', NULL)`,
		`SELECT fencing_claim('', 1)`, `SELECT fencing_claim(NULL, 1)`, `SELECT fencing_claim(REPEAT('x', 257), 1)`, `SELECT fencing_claim('a\nb', 1)`, `SELECT fencing_claim('a\0b', 1)`} {
		refused(t, conn, malformed, bad)
	}
}

// What a transaction claimed counts for it alone.
func TestClaimsEndWithTheirTransaction(t *testing.T) {
	t.Parallel()
	_, db := guarded(t, "strict")
	update := `UPDATE accounts SET balance = balance - 1 WHERE id = 1`
	conn, other := session(t, db), session(t, db)

	exec(t, conn, claim("accounts/1", 1)) // a transaction of its own
	exec(t, conn, `BEGIN`)
	refused(t, conn, missing, update)
	exec(t, conn, `ROLLBACK`)

	exec(t, conn, `BEGIN`, claim("accounts/1", 2), `ROLLBACK`, `BEGIN`)
	refused(t, conn, missing, update)
	exec(t, conn, `ROLLBACK`)

	exec(t, conn, `BEGIN`, `SAVEPOINT s`, claim("accounts/1", 3), `ROLLBACK TO s`)
	refused(t, conn, missing, update)
	exec(t, conn, `ROLLBACK`)

	exec(t, conn, `BEGIN`, claim("accounts/1", 4), update, `COMMIT`)
	refused(t, conn, missing, update) // autocommit

	// Statements that commit without saying so.
	exec(t, conn, `BEGIN`, claim("accounts/1", 5), `CREATE OR REPLACE TABLE made (id INT)`)
	refused(t, conn, missing, update)

	// What is left on the connection counts no more once another has claimed.
	exec(t, conn, `BEGIN`, claim("accounts/1", 6), update, `COMMIT`)
	exec(t, other, `BEGIN`, claim("accounts/1", 6), update, `COMMIT`)
	exec(t, conn, `BEGIN`)
	refused(t, conn, missing, update)
	exec(t, conn, `ROLLBACK`)

	// Without autocommit every transaction begins by itself.
	exec(t, conn, `SET autocommit = 0`, claim("accounts/1", 7), update, `COMMIT`, `SET @fencing_claimer = NULL`)
	refused(t, conn, missing, update)
	exec(t, conn, `ROLLBACK`, `SET autocommit = 1`)
	if left := balance(t, db, 1); left != 96 {
		t.Errorf("the balance is %d, want 96", left)
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	maria, db := guarded(t, "inserts")
	exec(t, db, `INSERT INTO accounts (id) VALUES (3)`, `INSERT INTO accounts (note) VALUES ('numbered')`)
	exec(t, db, `DELETE FROM fencing_marks WHERE resource = 'accounts/2'`)
	refused(t, db, missing, `UPDATE accounts SET balance = 1 WHERE id = 2`)
	refused(t, db, missing, `UPDATE accounts SET balance = 1 WHERE id = 3`)
	conn := session(t, db)
	exec(t, conn, `BEGIN`, claim("accounts/3", 1), `DELETE FROM accounts WHERE id = 3`, `COMMIT`, `SET @fencing_claimer = NULL`)
	refused(t, conn, missing, `INSERT INTO accounts (id) VALUES (3)`)
	exec(t, conn, `BEGIN`, `INSERT INTO accounts (id) VALUES (9)`, `UPDATE accounts SET balance = 9 WHERE id = 9`, `COMMIT`)

	protect(t, db, "accounts", `CONCAT('accounts/', id)`, "migrating")
	exec(t, db, `UPDATE accounts SET balance = 1 WHERE id = 2`)
	exec(t, conn, `BEGIN`)
	refused(t, conn, stale, claim("accounts/8", 1)+`, fencing_claim('accounts/4', 5), fencing_claim('accounts/4', 4)`)
	exec(t, conn, `ROLLBACK`)

	status, err := mysqlguard.ReadStatus(t.Context(), maria.OwnerURL())
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Tables) != 1 || status.Tables[0].Mode != "migrating" || status.Tables[0].Unfenced != 4 || status.Tables[0].Problem != "" || status.Refused != 1 {
		t.Errorf("status is %+v", status)
	}
}

func TestUnguardedAndBackfill(t *testing.T) {
	t.Parallel()
	maria, db := guarded(t, "strict")
	conn := session(t, db)
	exec(t, conn, `CALL fencing_unguarded('fixtures')`, `UPDATE accounts SET balance = 5`, `BEGIN`, `INSERT INTO accounts (id, balance) VALUES (3, 5)`, `COMMIT`, `CALL fencing_guarded()`)
	refused(t, conn, missing, `UPDATE accounts SET balance = 6`)
	refused(t, db, missing, `UPDATE accounts SET balance = 6`)
	refused(t, conn, "42000", `CALL fencing_unguarded('')`)
	forged := session(t, db)
	exec(t, forged, `SET @fencing_unguarded = (SELECT MAX(id) FROM fencing_unguarded_log)`)
	refused(t, forged, missing, `UPDATE accounts SET balance = 6`)

	refused(t, conn, "42000", `CALL fencing_claim_existing('accounts', 'TRUE')`)
	exec(t, conn, `BEGIN`, `CALL fencing_claim_existing('accounts', 'id < 3')`, `UPDATE accounts SET balance = 7 WHERE id < 3`)
	refused(t, conn, missing, `UPDATE accounts SET balance = 7 WHERE id = 3`)
	exec(t, conn, `COMMIT`)
	if rows := dump(t, db); rows != "1 7,2 7,3 5" {
		t.Errorf("rows are %s", rows)
	}
	status, err := mysqlguard.ReadStatus(t.Context(), maria.OwnerURL())
	if err != nil || len(status.Roles) != 1 || status.Roles[0].Times != 1 {
		t.Errorf("status is %+v, %v", status, err)
	}
}

// What cannot be protected is refused, with the reason.
func TestWhatCannotBeProtected(t *testing.T) {
	t.Parallel()
	_, db := guarded(t, "strict")
	exec(t, db, `CREATE TABLE aria (id INT PRIMARY KEY) ENGINE = Aria`, `CREATE VIEW v AS SELECT 1 AS id`,
		`CREATE TABLE parent (id INT PRIMARY KEY)`,
		`CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)`,
		`CREATE TABLE odd (id INT PRIMARY KEY, made TIMESTAMP NULL, raw VARBINARY(10), n FLOAT)`)
	for _, c := range []struct{ table, resource, mode, want string }{
		{"aria", `'a'`, "strict", "engine Aria"},
		{"v", `'a'`, "strict", "no table v"},
		{"nowhere", `'a'`, "strict", "no table nowhere"},
		{"child", `CONCAT('c/', id)`, "strict", "cascades fire no triggers"},
		{"fencing_marks", `resource`, "strict", "belongs to the guard"},
		{"odd", `CONCAT('o/', id)`, "loose", "the mode must be"},
		{"odd", `id`, "strict", "of type int"},
		{"odd", `raw`, "strict", "of type varbinary"},
		{"odd", `CONCAT('o/', made)`, "strict", "time_zone"},
		{"odd", `CONCAT('o/', id / 3)`, "strict", "DIV"},
		{"odd", `CONCAT('o/', NOW())`, "strict", "cannot be used"},
		{"odd", `CONCAT('o/', @x)`, "strict", "cannot be used"},
		{"odd", `CONCAT('o/', (SELECT 1))`, "strict", "cannot be used"},
		{"odd", `CONCAT('o/', CONNECTION_ID())`, "strict", "cannot be used"},
		{"odd", `fencing_quote(id)`, "strict", "cannot be used"},
		{"odd", `CONCAT('o/', nowhere)`, "strict", "Unknown column"},
		{"odd", `CONCAT('o/'`, "strict", "syntax"},
	} {
		_, err := db.ExecContext(t.Context(), `CALL fencing_protect(?, ?, ?)`, c.table, c.resource, c.mode)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("protecting %s by %s gives %v, want %q", c.table, c.resource, err, c.want)
		}
	}
	exec(t, db, `UPDATE odd SET id = 1`) // nothing was protected halfway
	if left := text(t, db, `SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE '%probe%'`); left != "0" {
		t.Errorf("%s tables of probes are left", left)
	}
}

// A resource has one text, whatever the expression's form and the writer's settings.
func TestResourceExpressions(t *testing.T) {
	t.Parallel()
	_, db := guarded(t, "strict")
	exec(t, db, "CREATE TABLE odd (`a``b` INT, `order` VARCHAR(20), l VARCHAR(20) CHARACTER SET latin1, d DATE, f DOUBLE, made TIMESTAMP NULL, g INT AS (`a``b` + 1), e ENUM('x', 'y'))")
	for resource, want := range map[string]string{
		"CONCAT('o/', `a``b`)":                            "o/7",
		"'o/' || `a``b` || '/' || `order`":                "o/7/two words",
		"CONCAT('it''s `order` ', \"q\", '\\\\', `l`)":    `it's ` + "`order`" + ` q\é`,
		"CONCAT(d, ' ', f)":                               "2026-11-20 0.1",
		"CONCAT('u/', UNIX_TIMESTAMP(made))":              "u/86400",
		"CONCAT('g/', g, e)":                              "g/8y",
		"CASE WHEN `a``b` > 3 THEN 'many' ELSE 'few' END": "many",
		"LOWER(HEX(`order`))":                             "74776f20776f726473",
		"'all of it'":                                     "all of it",
	} {
		protect(t, db, "odd", resource, "strict")
		conn := session(t, db)
		exec(t, conn, `SET SESSION sql_mode = 'ANSI', time_zone = '-07:00', lc_time_names = 'de_DE', SQL_BIG_SELECTS = 1`)
		insert := `INSERT INTO odd VALUES (7, 'two words', 'é', '2026-11-20', 0.1, FROM_UNIXTIME(86400), DEFAULT, 'y')`
		if said := refused(t, conn, missing, insert); !strings.Contains(said, fmt.Sprintf("no fencing token for '%s':", want)) {
			t.Errorf("%s gives %q, want the resource %q", resource, said, want)
		}
		exec(t, conn, `SET SESSION sql_mode = ''`, `BEGIN`)
		if _, err := conn.ExecContext(t.Context(), `SELECT fencing_claim(?, 1)`, want); err != nil {
			t.Fatal(err)
		}
		exec(t, conn, insert, `ROLLBACK`)
	}
	protect(t, db, "odd", "CONCAT('o/', `order`)", "strict")
	refused(t, db, malformed, `INSERT INTO odd (d) VALUES ('2026-11-20')`)
	refused(t, db, malformed, "INSERT INTO odd (`order`) VALUES ('a\tb')")
}

func TestProblems(t *testing.T) {
	t.Parallel()
	maria, db := guarded(t, "strict")
	exec(t, db, `CREATE TABLE parent (id INT PRIMARY KEY)`, `INSERT INTO parent VALUES (1), (2)`)
	problem := func() string {
		t.Helper()
		status, err := mysqlguard.ReadStatus(t.Context(), maria.OwnerURL())
		if err != nil || len(status.Tables) != 1 {
			t.Fatalf("%+v, %v", status, err)
		}
		return status.Tables[0].Problem
	}
	again := func() { protect(t, db, "accounts", `CONCAT('accounts/', id)`, "strict") }
	for _, c := range []struct{ statement, want string }{
		{`DROP TRIGGER fencing_1_update`, "triggers are missing or were changed"},
		{`CREATE OR REPLACE TRIGGER fencing_1_delete AFTER DELETE ON accounts FOR EACH ROW SET @x = 1`, "triggers are missing or were changed"},
		{`ALTER TABLE accounts ADD FOREIGN KEY (id) REFERENCES parent (id) ON DELETE CASCADE`, "cascades fire no triggers"},
	} {
		if p := problem(); p != "" {
			t.Errorf("a problem before: %s", p)
		}
		exec(t, db, c.statement)
		if p := problem(); !strings.Contains(p, c.want) {
			t.Errorf("after %s: %q, want %q", c.statement, p, c.want)
		}
		if !strings.Contains(c.want, "cascade") {
			again()
		}
	}
	exec(t, db, `ALTER TABLE accounts DROP FOREIGN KEY accounts_ibfk_1`, `ALTER TABLE accounts RENAME ledger`)
	if p := problem(); !strings.Contains(p, "the table is gone") {
		t.Errorf("after a rename: %q", p)
	}
	exec(t, db, `ALTER TABLE ledger RENAME accounts`, `CALL fencing_unprotect('accounts')`, `UPDATE accounts SET balance = 1`, `CALL fencing_unprotect('accounts')`)
}

// The limits that the documentation states are as it says.
func TestStatedLimits(t *testing.T) {
	t.Parallel()
	_, db := guarded(t, "strict")
	conn := session(t, db)
	exec(t, conn, `BEGIN`, claim("accounts/1", 1), `COMMIT`,
		// Nobody else has claimed since on any connection, so nothing that this reads can be stale.
		`BEGIN`, `UPDATE accounts SET balance = 1 WHERE id = 1`, `COMMIT`,
		`TRUNCATE accounts`)
}

// A dump has the guard with the tables, and a restored database refuses what was stale.
func TestBackup(t *testing.T) {
	t.Parallel()
	maria, db := guarded(t, "strict")
	exec(t, db, claim("accounts/1", 34))
	dump := pipe(t, "", "mariadb-dump", append([]string{"--no-defaults", "--single-transaction", "--routines", "--triggers"}, maria.ClientArgs()...))
	for _, statement := range []string{`CALL fencing_unprotect('accounts')`, `DROP TABLE accounts`} {
		exec(t, db, statement)
	}
	if err := mysqlguard.Uninstall(t.Context(), maria.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	pipe(t, dump, "mariadb", append([]string{"--no-defaults"}, maria.ClientArgs()...))
	refused(t, db, stale, claim("accounts/1", 33))
	refused(t, db, missing, `UPDATE accounts SET balance = 1 WHERE id = 1`)
	conn := session(t, db)
	exec(t, conn, `BEGIN`, claim("accounts/1", 34), `UPDATE accounts SET balance = 1 WHERE id = 1`, `COMMIT`)
	status, err := mysqlguard.ReadStatus(t.Context(), maria.OwnerURL())
	if err != nil || len(status.Tables) != 1 || status.Tables[0].Problem != "" {
		t.Errorf("status is %+v, %v", status, err)
	}
}

// pipe runs a program and gives what it printed.
func pipe(t *testing.T, stdin, name string, args []string) string {
	t.Helper()
	cmd := program.CommandContext(t.Context(), name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(out)
}
