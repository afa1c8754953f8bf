package pgguard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/fencing"
)

const (
	claimSQL       = `SELECT fencing.claim($1, $2)`
	claimProvenSQL = `SELECT fencing.claim($1, $2, $3)`
)

// Option tunes Do and DoSQL.
type Option func(*claim)

// WithProof claims with the fence_proof of the lease, which tables that were
// protected with proof => true demand. It works for all tables.
func WithProof(proof string) Option { return func(c *claim) { c.proof, c.proven = proof, true } }

// claim is what Do claims with.
type claim struct {
	resource string
	token    fencing.Token
	proof    string
	proven   bool
}

func newClaim(resource string, token fencing.Token, opts []Option) (claim, error) {
	c := claim{resource: resource, token: token}
	for _, opt := range opts {
		opt(&c)
	}
	return c, fencing.CheckClaim(resource, token)
}

// sql is the statement that claims, with its arguments.
func (c claim) sql() (string, []any) {
	if c.proven {
		return claimProvenSQL, []any{c.resource, int64(c.token), c.proof}
	}
	return claimSQL, []any{c.resource, int64(c.token)}
}

// Beginner starts transactions: a *pgxpool.Pool or a *pgx.Conn.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Do runs fn in a transaction that has claimed resource with token, and
// commits it if fn returns nil. Everything that fn reads is at least as new as
// the last write of any earlier holder; everything it writes to protected
// tables is undone if the token is stale by then.
//
// Errors: *fencing.StaleTokenError when the token is stale, from the claim or
// from a statement of fn (never retry; acquire the lock again);
// *fencing.ProofError when a proof is missing or wrong (see WithProof);
// fencing.ErrMalformedResource and fencing.ErrMalformedToken; ErrTokenMissing
// when fn changed a protected row of a resource that it has no token for; any
// other error as Postgres, the connection or fn gave it. SQLSTATE 40001 and
// 40P01 are safe to retry while the lease is held. After an error of the
// commit itself the transaction may have taken effect.
func Do(ctx context.Context, db Beginner, resource string, token fencing.Token, fn func(tx pgx.Tx) error, opts ...Option) error {
	c, err := newClaim(resource, token, opts)
	if err != nil {
		return err
	}
	return refusal(pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		sql, args := c.sql()
		if _, err := tx.Exec(ctx, sql, args...); err != nil {
			return err
		}
		return fn(tx)
	}))
}

// DoSQL is Do for database/sql, with any driver whose errors tell the SQLSTATE.
func DoSQL(ctx context.Context, db *sql.DB, resource string, token fencing.Token, fn func(tx *sql.Tx) error, opts ...Option) error {
	c, err := newClaim(resource, token, opts)
	if err != nil {
		return err
	}
	return refusal(inSQLTx(ctx, db, func(tx *sql.Tx) error {
		text, args := c.sql()
		if _, err := tx.ExecContext(ctx, text, args...); err != nil {
			return err
		}
		return fn(tx)
	}))
}

func inSQLTx(ctx context.Context, db *sql.DB, fn func(*sql.Tx) error) (err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		// After a commit this changes nothing; after an error or a panic of fn
		// the transaction is undone.
		if undo := tx.Rollback(); err != nil && undo != nil && !errors.Is(undo, sql.ErrTxDone) {
			err = errors.Join(err, undo)
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// refusal gives the guard's own SQLSTATEs their Go errors.
func refusal(err error) error {
	switch sqlState(err) {
	case SQLStateStale:
		if stale, ok := staleToken(err); ok {
			return stale
		}
	case SQLStateMissing:
		return fmt.Errorf("%w: %w", ErrTokenMissing, err)
	case SQLStateUnproven:
		return unproven(err)
	case SQLStateMalformed:
		return fmt.Errorf("%w: %w", fencing.ErrMalformedToken, err)
	}
	return err
}
