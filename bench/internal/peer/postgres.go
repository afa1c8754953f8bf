package peer

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgPool is the number of connections of a Postgres peer. It shares the server's 200 connections
// with fencelock. If there are more workers, they queue for a connection, as they would
// in an application.
const pgPool = 48

// openPool opens a pool and all its connections, so that no round includes connecting.
func openPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = pgPool, pgPool
	return pgxpool.NewWithConfig(ctx, config)
}

// Rows is a table of leases in Postgres, with an expiry and a token in each row: the usual
// handwritten lock.
type Rows struct{ pool *pgxpool.Pool }

const rowsSchema = `CREATE TABLE IF NOT EXISTS bench_leases (
	resource text PRIMARY KEY, owner text NOT NULL, token bigint NOT NULL, expires timestamptz NOT NULL
) WITH (fillfactor = 50)`

// NewRows connects and creates the table.
func NewRows(ctx context.Context, url string) (*Rows, error) {
	pool, err := openPool(ctx, url)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, rowsSchema); err != nil {
		pool.Close()
		return nil, err
	}
	return &Rows{pool: pool}, nil
}

// Name returns the name in tables.
func (*Rows) Name() string { return "pg-row" }

// Open makes a session.
func (r *Rows) Open(context.Context) (Session, error) {
	return &rowSession{pool: r.pool, owner: rand.Text()}, nil
}

// Close closes the connections.
func (r *Rows) Close() error {
	r.pool.Close()
	return nil
}

type rowSession struct {
	pool     *pgxpool.Pool
	owner    string
	resource string
}

const (
	takeRow = `INSERT INTO bench_leases AS l VALUES ($1, $2, 1, clock_timestamp() + $3)
		ON CONFLICT (resource) DO UPDATE SET owner = excluded.owner, token = l.token + 1, expires = excluded.expires
		WHERE l.expires < clock_timestamp() RETURNING token`
	releaseRow = `UPDATE bench_leases SET expires = '-infinity' WHERE resource = $1 AND owner = $2`
)

func (s *rowSession) Acquire(ctx context.Context, c Claim) error {
	var token int64
	err := s.pool.QueryRow(ctx, takeRow, c.Resource, s.owner, c.TTL).Scan(&token)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrBusy
	}
	s.resource = c.Resource
	return err
}

func (s *rowSession) Release(ctx context.Context) error {
	tag, err := s.pool.Exec(ctx, releaseRow, s.resource, s.owner)
	if err == nil && tag.RowsAffected() != 1 {
		err = errGone
	}
	return err
}

func (*rowSession) Close() error { return nil }
