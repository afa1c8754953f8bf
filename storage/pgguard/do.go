package pgguard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/fencing"
)

const (
	claimSQL       = `SELECT fencing.claim($1, $2)`
	claimProvenSQL = `SELECT fencing.claim($1, $2, $3)`
	idleSQL        = `, set_config('idle_in_transaction_session_timeout', `
)

// timed is a lease that knows its TTL, like *client.Lease.
type timed interface{ TTL() time.Duration }

// claimSQLOf returns the claim statement and its arguments. If the lease knows its TTL, Postgres ends the
// session when its transaction is idle for that long. Otherwise a frozen process would keep later holders from
// the guard's row, although its own lease has ended.
func claimSQLOf(c fencing.Claim, lease fencing.Lease) (string, []any) {
	sql, args := claimSQL, []any{c.Resource, int64(c.Token)}
	if c.Proof != "" {
		sql, args = claimProvenSQL, append(args, c.Proof)
	}
	if l, ok := lease.(timed); ok && l.TTL() > 0 {
		args = append(args, strconv.FormatInt(max(1, l.TTL().Milliseconds()), 10))
		sql += fmt.Sprintf("%s$%d, true)", idleSQL, len(args))
	}
	return sql, args
}

// claimsOf returns the claims of a lease, after checking them.
func claimsOf(lease fencing.Lease) ([]fencing.Claim, error) {
	claims := lease.Claims()
	for _, c := range claims {
		if err := c.Check(); err != nil {
			return nil, err
		}
	}
	return claims, nil
}

// Beginner starts transactions: a *pgxpool.Pool or a *pgx.Conn.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Do runs fn in a transaction that has claimed the lease's resources with their tokens, and commits it if fn
// returns nil. lease is a *client.Lease, or a fencing.Claim for a token from another source. Under a
// *client.Lease, Postgres ends the session if its transaction is idle for the lease's TTL
// (idle_in_transaction_session_timeout). Everything that fn reads is at least as new as the last write of any
// earlier holder. If the token is stale by the time of the commit, all writes to protected tables are undone.
//
// Errors: *fencing.StaleTokenError when the token is stale, from the claim or
// from a statement of fn (never retry; acquire the lock again), which matches
// fencing.ErrLeaseLost; ErrNotInstalled; *fencing.ProofError when a proof is missing or wrong;
// fencing.ErrMalformedResource and fencing.ErrMalformedToken; ErrTokenMissing
// when fn changed a protected row of a resource that it has no token for; any
// other error as Postgres, the connection or fn gave it. SQLSTATE 40001 and
// 40P01 are safe to retry while the lease is held. After an error of the
// commit itself the transaction may have taken effect.
func Do(ctx context.Context, db Beginner, lease fencing.Lease, fn func(tx pgx.Tx) error) error {
	claims, err := claimsOf(lease)
	if err != nil {
		return err
	}
	err = refusal(pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		for _, c := range claims {
			sql, args := claimSQLOf(c, lease)
			if _, err := tx.Exec(ctx, sql, args...); err != nil {
				return installed(err)
			}
		}
		return fn(tx)
	}))
	return fencing.Suspect(lease, err)
}

// DoSQL is Do for database/sql, with any driver whose errors contain the SQLSTATE.
func DoSQL(ctx context.Context, db *sql.DB, lease fencing.Lease, fn func(tx *sql.Tx) error) error {
	claims, err := claimsOf(lease)
	if err != nil {
		return err
	}
	err = refusal(inSQLTx(ctx, db, func(tx *sql.Tx) error {
		for _, c := range claims {
			text, args := claimSQLOf(c, lease)
			if _, err := tx.ExecContext(ctx, text, args...); err != nil {
				return installed(err)
			}
		}
		return fn(tx)
	}))
	return fencing.Suspect(lease, err)
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

// installed converts a failed claim to ErrNotInstalled if the database has no guard.
func installed(err error) error {
	switch sqlState(err) {
	case invalidSchemaName, undefinedFunction:
		return fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	return err
}

// refusal converts the guard's own SQLSTATEs to Go errors.
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
