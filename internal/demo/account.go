package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"
)

// account is storage of one balance.
type account interface {
	// Read returns the balance. Storage that checks tokens claims it first.
	Read(ctx context.Context, token int64) (int64, error)
	// Write sets the balance. Storage that checks tokens returns a *staleError
	// if it has seen a larger one.
	Write(ctx context.Context, token, balance int64) error
	// ChecksTokens says whether the storage looks at the token.
	ChecksTokens() bool
	Close(ctx context.Context) error
}

// staleError is the refusal of a token.
type staleError struct{ presented, highest int64 }

func (e *staleError) Error() string {
	return fmt.Sprintf("token %d is stale: %d was seen", e.presented, e.highest)
}

// balance is what is stored, in a file as in a guarded record.
type balance struct {
	Balance int64 `json:"balance"`
}

// AccountConfig names an account's storage: exactly one of its fields is set.
type AccountConfig struct {
	File     string       `json:"file,omitempty"`
	Table    *TableConfig `json:"table,omitempty"`
	Resource string       `json:"resource,omitempty"` // a guarded record
}

// TableConfig names a plain table in Postgres.
type TableConfig struct {
	DatabaseURL string `json:"database_url"`
	Schema      string `json:"schema"`
}

func (c AccountConfig) open(ctx context.Context, s *server) (account, error) {
	switch {
	case c.File != "":
		return fileAccount(c.File), nil
	case c.Table != nil:
		return openTable(ctx, *c.Table)
	default:
		return &guardedAccount{server: s, resource: c.Resource}, nil
	}
}

// fileAccount is a JSON file. It takes every write, as files do.
type fileAccount string

func (f fileAccount) Read(context.Context, int64) (int64, error) {
	text, err := os.ReadFile(string(f))
	if err != nil {
		return 0, err
	}
	var b balance
	err = json.Unmarshal(text, &b)
	return b.Balance, err
}

func (f fileAccount) Write(_ context.Context, _, amount int64) error {
	text, err := json.Marshal(balance{amount})
	if err != nil {
		return err
	}
	return os.WriteFile(string(f), append(text, '\n'), 0o600)
}

func (fileAccount) ChecksTokens() bool          { return false }
func (fileAccount) Close(context.Context) error { return nil }

// tableAccount is a row in a plain table. It takes every write, as tables do.
type tableAccount struct {
	conn *pgx.Conn
	name string // of the table, quoted
}

func openTable(ctx context.Context, c TableConfig) (*tableAccount, error) {
	conn, err := pgx.Connect(ctx, c.DatabaseURL)
	if err != nil {
		return nil, err
	}
	return &tableAccount{conn: conn, name: pgx.Identifier{c.Schema, "accounts"}.Sanitize()}, nil
}

// create makes the table in a schema of its own.
func (t *tableAccount) create(ctx context.Context, schema string) error {
	_, err := t.conn.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize()+
		"; CREATE TABLE "+t.name+" (owner text PRIMARY KEY, balance bigint NOT NULL); INSERT INTO "+t.name+" VALUES ('alice', 0)")
	return err
}

// drop removes the table and its schema.
func (t *tableAccount) drop(ctx context.Context, schema string) error {
	_, err := t.conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
	return err
}

func (t *tableAccount) Read(ctx context.Context, _ int64) (amount int64, err error) {
	err = t.conn.QueryRow(ctx, "SELECT balance FROM "+t.name+" WHERE owner = 'alice'").Scan(&amount)
	return amount, err
}

func (t *tableAccount) Write(ctx context.Context, _, amount int64) error {
	_, err := t.conn.Exec(ctx, "UPDATE "+t.name+" SET balance = $1 WHERE owner = 'alice'", amount)
	return err
}

func (*tableAccount) ChecksTokens() bool                { return false }
func (t *tableAccount) Close(ctx context.Context) error { return t.conn.Close(ctx) }

// guardedAccount is a guarded record of the service.
type guardedAccount struct {
	server   *server
	resource string
}

func (g *guardedAccount) Read(ctx context.Context, token int64) (int64, error) {
	record, err := g.server.read(ctx, g.resource, token)
	if err != nil {
		return 0, stale(err)
	}
	var b balance
	err = json.Unmarshal(record.Value, &b)
	return b.Balance, err
}

func (g *guardedAccount) Write(ctx context.Context, token, amount int64) error {
	return stale(g.server.write(ctx, g.resource, token, balance{amount}))
}

func (*guardedAccount) ChecksTokens() bool          { return true }
func (*guardedAccount) Close(context.Context) error { return nil }

// stale makes a *staleError of a 412.
func stale(err error) error {
	if r, ok := refused(err, http.StatusPreconditionFailed); ok && r.StaleDetails != nil {
		return &staleError{presented: r.Presented, highest: r.Highest}
	}
	return err
}
