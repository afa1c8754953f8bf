package peer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgPool is the number of connections of a Postgres peer. Three peers and a guard share the
// server's 200 connections. If there are more workers, they queue for a connection, as they would
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
	ttl      time.Duration
}

const (
	takeRow = `INSERT INTO bench_leases AS l VALUES ($1, $2, 1, clock_timestamp() + $3)
		ON CONFLICT (resource) DO UPDATE SET owner = excluded.owner, token = l.token + 1, expires = excluded.expires
		WHERE l.expires < clock_timestamp() RETURNING token`
	extendRow  = `UPDATE bench_leases SET expires = clock_timestamp() + $3 WHERE resource = $1 AND owner = $2`
	releaseRow = `UPDATE bench_leases SET expires = '-infinity' WHERE resource = $1 AND owner = $2`
)

func (s *rowSession) Acquire(ctx context.Context, c Claim) error {
	var token int64
	err := s.pool.QueryRow(ctx, takeRow, c.Resource, s.owner, c.TTL).Scan(&token)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrBusy
	}
	s.resource, s.ttl = c.Resource, c.TTL
	return err
}

func (s *rowSession) Use(ctx context.Context) error {
	return s.one(ctx, extendRow, s.resource, s.owner, s.ttl)
}

func (s *rowSession) Release(ctx context.Context) error {
	return s.one(ctx, releaseRow, s.resource, s.owner)
}

func (s *rowSession) one(ctx context.Context, statement string, args ...any) error {
	tag, err := s.pool.Exec(ctx, statement, args...)
	if err == nil && tag.RowsAffected() != 1 {
		err = errors.New("lease is gone")
	}
	return err
}

func (*rowSession) Close() error { return nil }

// Unguarded locks with another peer and writes an unprotected row in Postgres. It is the baseline
// of guarded writes.
type Unguarded struct {
	Peer
	pool *pgxpool.Pool
}

// NewUnguarded creates the table. The caller still has to close lock.
func NewUnguarded(ctx context.Context, lock Peer, url string) (*Unguarded, error) {
	pool, err := openPool(ctx, url)
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS bench_records (resource text PRIMARY KEY, value jsonb NOT NULL) WITH (fillfactor = 50)`)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &Unguarded{Peer: lock, pool: pool}, nil
}

// Name returns the name in tables.
func (u *Unguarded) Name() string { return u.Peer.Name() + "-unguarded" }

// Open makes a session.
func (u *Unguarded) Open(ctx context.Context) (Session, error) {
	lock, err := u.Peer.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &unguardedSession{Session: lock, pool: u.pool}, nil
}

// Close closes the connections to Postgres only.
func (u *Unguarded) Close() error {
	u.pool.Close()
	return nil
}

type unguardedSession struct {
	Session
	pool     *pgxpool.Pool
	resource string
}

func (s *unguardedSession) Acquire(ctx context.Context, c Claim) error {
	s.resource = c.Resource
	return s.Session.Acquire(ctx, c)
}

// Use reads the row and writes it.
func (s *unguardedSession) Use(ctx context.Context) error {
	var value string
	err := s.pool.QueryRow(ctx, `SELECT value::text FROM bench_records WHERE resource = $1`, s.resource).Scan(&value)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("read: %w", err)
	}
	_, err = s.pool.Exec(ctx, `INSERT INTO bench_records VALUES ($1, $2)
		ON CONFLICT (resource) DO UPDATE SET value = excluded.value`, s.resource, `{"balance":1}`)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
