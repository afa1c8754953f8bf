package mysqlguard

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// Do runs fn in a transaction that has claimed the lease's resources with their tokens, and commits it if fn
// returns nil. lease is a *client.Lease, or a fencing.Claim for a token from another source. Everything that
// fn reads is at least as new as the last write of any earlier holder. MariaDB ends a connection whose
// transaction is idle for the lease's TTL, rounded up to seconds, so a paused holder does not keep its
// successor from the rows (idle_transaction_timeout, which Do resets to the server's default afterwards). The
// database's driver is github.com/go-sql-driver/mysql.
//
// Errors: *fencing.StaleTokenError when the token is stale (never retry; acquire the lock
// again), which matches fencing.ErrLeaseLost; ErrNotInstalled; fencing.ErrMalformedResource and fencing.ErrMalformedToken; ErrTokenMissing when
// fn changed a protected row of a resource that it has not claimed; any other error as
// MariaDB, the connection or fn gave it. MayRetry says which of them had no effect. After an
// error of the commit itself the transaction may have taken effect.
func Do(ctx context.Context, db *sql.DB, lease fencing.Lease, fn func(tx *sql.Tx) error) error {
	for _, c := range lease.Claims() {
		if err := c.Check(); err != nil {
			return err
		}
	}
	err := refusal(inTx(ctx, db, func(tx *sql.Tx) error {
		if err := limitIdle(ctx, tx, lease); err != nil {
			return err
		}
		if err := Claim(ctx, tx, lease); err != nil {
			return err
		}
		return fn(tx)
	}))
	return fencing.Suspect(lease, err)
}

// limitIdle makes MariaDB end the connection if its transaction is idle for the lease's TTL. Otherwise a
// paused holder would keep its successor from the rows. A lease without a TTL has no limit.
func limitIdle(ctx context.Context, tx *sql.Tx, lease fencing.Lease) error {
	timed, says := lease.(interface{ TTL() time.Duration })
	if !says || timed.TTL() <= 0 {
		return nil
	}
	seconds := int64(math.Ceil(timed.TTL().Seconds()))
	_, err := tx.ExecContext(ctx, fmt.Sprintf(`SET SESSION idle_transaction_timeout = %d`, seconds))
	return err
}

// Claim claims the resources of another lease in the transaction of Do. Claim several leases in the same order
// everywhere, or two transactions may wait for each other. Errors: those of Do.
func Claim(ctx context.Context, tx *sql.Tx, lease fencing.Lease) error {
	for _, c := range lease.Claims() {
		if err := claim(ctx, tx, c); err != nil {
			return err
		}
	}
	return nil
}

func claim(ctx context.Context, tx *sql.Tx, c fencing.Claim) error {
	if err := c.Check(); err != nil {
		return err
	}
	// Arguments would cost two more round trips, and digits need no quotes.
	// (DO would hide the error.)
	var previous int64
	claim := fmt.Sprintf(`SELECT fencing_claim(CONVERT(X'%s' USING utf8mb4), %d)`, hex.EncodeToString([]byte(c.Resource)), c.Token) //nolint:gosec // hexadecimal digits and a number
	err := tx.QueryRowContext(ctx, claim).Scan(&previous)
	if number(err) == noSuchRoutine {
		return fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	return refusal(err)
}

// forget clears the session variables that Do and limitIdle set on the connection, because the pool reuses it.
const forget = `SET @fencing_claimer = NULL, SESSION idle_transaction_timeout = DEFAULT`

func inTx(ctx context.Context, db *sql.DB, fn func(*sql.Tx) error) (err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		// After a commit this changes nothing; after an error or a panic of fn the
		// transaction is undone.
		_, _ = tx.ExecContext(context.WithoutCancel(ctx), forget)
		if undo := tx.Rollback(); err != nil && undo != nil && !errors.Is(undo, sql.ErrTxDone) {
			err = errors.Join(err, undo)
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, forget); err != nil {
		return err
	}
	return tx.Commit()
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
	case SQLStateMalformed:
		return fmt.Errorf("%w: %w", fencing.ErrMalformedToken, err)
	}
	return err
}
