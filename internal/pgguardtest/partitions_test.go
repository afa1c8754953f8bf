package pgguardtest_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/storage/pgguard"
)

const wrongObject = "42809"

// TestAttachedPartition: a table with its columns in another order becomes a
// partition, is written directly and through its parent, leaves, and comes back.
func TestAttachedPartition(t *testing.T) {
	s := newTheatre(t).newStage(t, true, pgx.ReadCommitted)
	s.partition()
	s.exec(`CREATE TABLE attached (balance bigint NOT NULL DEFAULT 0, gone int, id int, region text)`)
	s.exec(`ALTER TABLE attached DROP COLUMN gone`)
	s.exec(`INSERT INTO attached VALUES (0, 4, 'africa')`)
	attach := func() {
		t.Helper()
		s.exec(`ALTER TABLE accounts ATTACH PARTITION attached FOR VALUES IN ('africa')`)
		for _, sql := range []string{
			`UPDATE attached SET balance = -1`, `INSERT INTO attached VALUES (-1, 4, 'africa')`, `DELETE FROM attached`,
			`INSERT INTO accounts (id, region) VALUES (4, 'africa')`, `UPDATE accounts SET region = 'eu' WHERE id = 4`,
		} {
			if got := s.fails(s.admn, sql); got != pgguard.SQLStateMissing {
				t.Errorf("%s without a token gives %q", sql, got)
			}
		}
		tx := s.begin()
		mustExec(t, tx, `SELECT fencing.claim('accounts/4', 34)`)
		mustExec(t, tx, `UPDATE accounts SET region = 'eu' WHERE id = 4`)
		mustExec(t, tx, `UPDATE accounts SET region = 'africa' WHERE id = 4`)
		mustCommit(t, tx)
	}
	attach()
	s.protect("accounts", `'accounts/' || id`)
	s.exec(`ALTER TABLE accounts DETACH PARTITION attached`)
	s.exec(`UPDATE attached SET balance = 1`) // a table like any other
	if got := s.fails(s.admn, `TRUNCATE attached`); got != pgguard.SQLStateMissing {
		t.Errorf("truncating a partition that was detached gives %q", got)
	}
	if got := s.status("table", "accounts"); got.Problem != "" {
		t.Errorf("after the partition was detached: %s", got.Problem)
	}
	attach()
	s.exec(`ALTER TABLE accounts DETACH PARTITION attached`)
	s.exec(`SELECT fencing.unprotect('attached')`)
	s.exec(`TRUNCATE attached`)
}

// TestPartitionsAreProtectedOnce: with their table or each by itself. Protecting or
// unprotecting one of the two never weakens the other.
func TestPartitionsAreProtectedOnce(t *testing.T) {
	s := newTheatre(t).newStage(t, true, pgx.ReadCommitted)
	s.partition()
	s.protect("accounts", `'accounts/' || id`)
	for _, sql := range []string{`SELECT fencing.protect('accounts_eu', 'region')`, `SELECT fencing.unprotect('accounts_eu')`} {
		if got := s.fails(s.admn, sql); got != wrongObject {
			t.Errorf("%s gives %q", sql, got)
		}
	}
	if got := s.fails(s.admn, `TRUNCATE accounts_eu`); got != pgguard.SQLStateMissing {
		t.Errorf("truncating the partition gives %q", got)
	}
	s.exec(`CREATE TABLE own (id int, region text, balance bigint NOT NULL DEFAULT 0)`)
	s.protect("own", `'own/' || id`)
	exists := "42710" // the trigger of that name
	if s.version() < 140000 {
		exists = "23505" // which PostgreSQL 13 finds out by its catalog's index
	}
	if got := s.fails(s.admn, `ALTER TABLE accounts ATTACH PARTITION own FOR VALUES IN ('own')`); got != exists {
		t.Errorf("attaching a protected table gives %q, want %q", got, exists)
	}

	s.exec(`SELECT fencing.unprotect('accounts')`)
	s.exec(`CREATE TABLE deep (id int, region text, balance bigint NOT NULL DEFAULT 0) PARTITION BY LIST (region)`)
	s.exec(`CREATE TABLE deeper PARTITION OF deep FOR VALUES IN ('deep')`)
	s.exec(`ALTER TABLE accounts ATTACH PARTITION deep FOR VALUES IN ('deep')`)
	s.protect("deep", `'deep/' || id`)
	for _, sql := range []string{`SELECT fencing.protect('accounts', $$'accounts/' || id$$)`, `SELECT fencing.unprotect('accounts')`} {
		if got := s.fails(s.admn, sql); got != wrongObject {
			t.Errorf("%s gives %q", sql, got)
		}
	}
	if got := s.fails(s.admn, `INSERT INTO accounts VALUES (1, 'deep')`); got != pgguard.SQLStateMissing {
		t.Errorf("an insert into the protected partition gives %q", got)
	}
	s.exec(`SELECT fencing.claim('deep/1', 1)`)
	s.exec(`INSERT INTO accounts SELECT 1, 'deep' WHERE fencing.present('deep/1', 1) <> ''`)
	if got := s.fails(s.admn, `TRUNCATE deeper`); got != pgguard.SQLStateMissing {
		t.Errorf("truncating what is below the protected partition gives %q", got)
	}
	if got := s.status("table", "deep"); got.Problem != "" {
		t.Errorf("the protected partition: %s", got.Problem)
	}
	s.exec(`BEGIN`)
	s.exec(`SELECT fencing.unprotect('deep')`)
	s.protect("accounts", `'accounts/' || id`)
	s.exec(`COMMIT`)
	if got := s.status("table", "accounts"); got.Problem != "" {
		t.Errorf("all in one: %s", got.Problem)
	}
}

// TestForeignPartitions: PostgreSQL has no constraint triggers on foreign tables,
// so a protected table has no such partition, and gets none.
func TestForeignPartitions(t *testing.T) {
	th := newTheatre(t)
	s := th.newStage(t, true, pgx.ReadCommitted)
	super := connectTo(t, th.superURL)
	mustExec(t, super, `CREATE FOREIGN DATA WRAPPER none`)
	mustExec(t, super, `CREATE SERVER elsewhere FOREIGN DATA WRAPPER none`)
	mustExec(t, super, `GRANT USAGE ON FOREIGN SERVER elsewhere TO PUBLIC`)
	s.partition()
	s.exec(`CREATE FOREIGN TABLE distant (id int, region text, balance bigint NOT NULL DEFAULT 0) SERVER elsewhere`)
	s.exec(`CREATE TABLE other (id int, region text) PARTITION BY LIST (region)`)
	s.exec(`CREATE FOREIGN TABLE other_distant PARTITION OF other FOR VALUES IN ('x') SERVER elsewhere`)
	for _, sql := range []string{
		`CREATE FOREIGN TABLE accounts_distant PARTITION OF accounts FOR VALUES IN ('x') SERVER elsewhere`,
		`ALTER TABLE accounts ATTACH PARTITION distant FOR VALUES IN ('x')`,
		`SELECT fencing.protect('other', $$'other/' || id$$)`,
		`SELECT fencing.protect('distant', $$'distant/' || id$$)`,
	} {
		if got := s.fails(s.admn, sql); got != wrongObject {
			t.Errorf("%s gives %q", sql, got)
		}
	}
}

// TestInheritance: triggers are not inherited, so each table of a family is
// protected by itself, and the status names one that is not.
func TestInheritance(t *testing.T) {
	s := newTheatre(t).newStage(t, true, pgx.ReadCommitted)
	s.exec(`CREATE TABLE children () INHERITS (accounts)`)
	s.exec(`INSERT INTO children VALUES (1)`)
	const unguarded = "app.children inherits from it and is not guarded"
	if got := s.status("table", "accounts"); got.Problem != unguarded {
		t.Errorf("with a child: %q", got.Problem)
	}
	if _, err := s.admn.Exec(t.Context(), `SELECT fencing.protect('accounts', $$'accounts/' || id$$)`); err == nil || !strings.Contains(err.Error(), unguarded) {
		t.Errorf("protecting it again: %v", err)
	}
	s.protect("children", `'accounts/' || id`)
	s.protect("accounts", `'accounts/' || id`)
	for _, table := range []string{"accounts", "children"} {
		if got := s.status("table", table); got.Problem != "" {
			t.Errorf("%s: %s", table, got.Problem)
		}
	}
	for _, sql := range []string{
		`UPDATE accounts SET balance = -1 WHERE tableoid = 'children'::regclass`, `UPDATE children SET balance = -1`, `INSERT INTO children VALUES (9)`,
		`UPDATE ONLY accounts SET balance = -1`, `DELETE FROM accounts`, `TRUNCATE accounts`, `TRUNCATE ONLY accounts`, `TRUNCATE children`,
	} {
		if got := s.fails(s.admn, sql); got != pgguard.SQLStateMissing {
			t.Errorf("%s without a token gives %q", sql, got)
		}
	}
	tx := s.begin()
	mustExec(t, tx, `SELECT fencing.claim('accounts/1', 34)`)
	mustExec(t, tx, `UPDATE accounts SET balance = 1 WHERE id = 1`)
	mustCommit(t, tx)
	s.exec(`CREATE TABLE grandchildren () INHERITS (children)`)
	if got := s.status("table", "children"); got.Problem != "app.grandchildren inherits from it and is not guarded" {
		t.Errorf("with a grandchild: %q", got.Problem)
	}
}
