package mysqlguardtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/mysqlguard"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func exec(t *testing.T, db executor, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// refused wants an error with that SQLSTATE, and gives its message.
func refused(t *testing.T, db executor, state, statement string) string {
	t.Helper()
	_, err := db.ExecContext(t.Context(), statement)
	failed, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok || string(failed.SQLState[:]) != state {
		t.Errorf("%s gives %v, want SQLSTATE %s", statement, err, state)
		return ""
	}
	return failed.Message
}

// guarded is a database with the guard and a protected table accounts, with the rows 1 and 2.
func guarded(t *testing.T, mode string) (*testenv.Maria, *sql.DB) {
	t.Helper()
	maria := testenv.MariaDB(t)
	if err := mysqlguard.Install(t.Context(), maria.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	db := maria.DB()
	exec(t, db, `CREATE TABLE accounts (id INT AUTO_INCREMENT PRIMARY KEY, balance BIGINT NOT NULL DEFAULT 0, note VARCHAR(100) UNIQUE)`,
		`INSERT INTO accounts (id, balance) VALUES (1, 100), (2, 100)`)
	protect(t, db, "accounts", `CONCAT('accounts/', id)`, mode)
	return maria, db
}

func protect(t *testing.T, db executor, table, resource, mode string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), `CALL fencing_protect(?, ?, ?)`, table, resource, mode); err != nil {
		t.Fatalf("protect %s: %v", table, err)
	}
}

// session is a connection of its own.
func session(t *testing.T, db *sql.DB) *sql.Conn {
	t.Helper()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func claim(resource string, token int) string {
	return fmt.Sprintf(`SELECT fencing_claim('%s', %d)`, resource, token)
}

func balance(t *testing.T, db *sql.DB, id int) (balance int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT balance FROM accounts WHERE id = ?`, id).Scan(&balance); err != nil {
		t.Fatal(err)
	}
	return balance
}

type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// text is the first column of the first row.
func text(t *testing.T, db queryer, query string) (value string) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}
