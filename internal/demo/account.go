package demo

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	"github.com/jackc/pgx/v5"
)

// account is storage of one balance. Storage that checks tokens claims the
// record before a read, and returns a *staleError where it has seen a larger one.
type account interface {
	read(ctx context.Context, token int64) (int64, error)
	write(ctx context.Context, token, amount int64) error
}

// AccountConfig names an account's storage: a file, a schema of a database, or
// a guarded record of the service.
type AccountConfig struct {
	File        string `json:"file,omitempty"`
	DatabaseURL string `json:"database_url,omitempty"`
	Schema      string `json:"schema,omitempty"`
	Resource    string `json:"resource,omitempty"`
}

// name says in words what holds the account.
func (c AccountConfig) name(guard string) string {
	switch {
	case c.File != "":
		return "a plain JSON file"
	case c.Schema != "":
		return "a plain table in Postgres"
	default:
		return "a guarded record in " + guard
	}
}

func (c AccountConfig) open(server string) account {
	switch {
	case c.File != "":
		return fileAccount(c.File)
	case c.Schema != "":
		return table{url: c.DatabaseURL, schema: c.Schema}
	default:
		return guardedRecord(server + "/guarded/" + c.Resource)
	}
}

// balance is what is stored, in a file as in a guarded record.
type balance struct {
	Balance int64 `json:"balance"`
}

// fileAccount is a JSON file. It takes every write, as files do.
type fileAccount string

func (f fileAccount) read(context.Context, int64) (int64, error) {
	var b balance
	text, err := os.ReadFile(string(f))
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	return b.Balance, err
}

func (f fileAccount) write(_ context.Context, _, amount int64) error {
	text, err := json.Marshal(balance{amount})
	return errors.Join(err, os.WriteFile(string(f), text, 0o600))
}

// table is a plain table in a schema of its own. It takes every write, as tables do.
type table struct{ url, schema string }

func (t table) read(ctx context.Context, _ int64) (amount int64, err error) {
	err = t.do(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT balance FROM "+t.schema+".accounts").Scan(&amount)
	})
	return amount, err
}

func (t table) write(ctx context.Context, _, amount int64) error {
	return t.exec(ctx, "UPDATE "+t.schema+".accounts SET balance = $1", amount)
}

func (t table) create(ctx context.Context) error {
	return errors.Join(t.exec(ctx, "CREATE SCHEMA "+t.schema),
		t.exec(ctx, "CREATE TABLE "+t.schema+".accounts AS SELECT 0::bigint AS balance"))
}

func (t table) drop(ctx context.Context) error {
	return t.exec(ctx, "DROP SCHEMA IF EXISTS "+t.schema+" CASCADE")
}

func (t table) exec(ctx context.Context, sql string, args ...any) error {
	return t.do(ctx, func(c *pgx.Conn) error { _, err := c.Exec(ctx, sql, args...); return err })
}

// do uses a connection of its own: the demonstration is in no hurry.
func (t table) do(ctx context.Context, use func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, t.url)
	if err != nil {
		return err
	}
	return errors.Join(use(conn), conn.Close(ctx))
}
