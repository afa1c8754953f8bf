package mysqlguard

import (
	"context"
	"database/sql"
	"database/sql/driver"
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
// successor from the rows (idle_transaction_timeout; a shorter one of the session stays, and afterwards it is
// what it was). The database's driver is github.com/go-sql-driver/mysql.
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
// paused holder would keep its successor from the rows. A shorter limit of the session stays. A lease without
// a TTL has no limit.
//
// MariaDB has a second and a third limit, for transactions that have written and for those that have not. One that
// is not 0 counts instead of the first, so it is limited, too.
func limitIdle(ctx context.Context, tx *sql.Tx, lease fencing.Lease) error {
	timed, says := lease.(interface{ TTL() time.Duration })
	if !says || timed.TTL() <= 0 {
		return nil
	}
	seconds := int64(math.Ceil(timed.TTL().Seconds()))
	_, err := tx.ExecContext(ctx, fmt.Sprintf(`SET @fencing_idle = @@idle_transaction_timeout,
		@fencing_idle_write = @@idle_write_transaction_timeout, @fencing_idle_read = @@idle_readonly_transaction_timeout,
		SESSION idle_transaction_timeout = IF(@@idle_transaction_timeout BETWEEN 1 AND %[1]d, @@idle_transaction_timeout, %[1]d),
		SESSION idle_write_transaction_timeout = LEAST(@@idle_write_transaction_timeout, %[1]d),
		SESSION idle_readonly_transaction_timeout = LEAST(@@idle_readonly_transaction_timeout, %[1]d)`, seconds))
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

// forgetSQL undoes on a connection what Do has set: the claim, and the limits of limitIdle.
const forgetSQL = `SET @fencing_claimer = NULL, SESSION idle_transaction_timeout = IFNULL(@fencing_idle, @@idle_transaction_timeout),
	SESSION idle_write_transaction_timeout = IFNULL(@fencing_idle_write, @@idle_write_transaction_timeout),
	SESSION idle_readonly_transaction_timeout = IFNULL(@fencing_idle_read, @@idle_readonly_transaction_timeout),
	@fencing_idle = NULL, @fencing_idle_write = NULL, @fencing_idle_read = NULL`

// inTx runs fn in a transaction on a connection that it gives back to the pool as it found it.
func inTx(ctx context.Context, db *sql.DB, fn func(*sql.Tx) error) (err error) {
	conn, tx, err := begin(ctx, db)
	if err != nil {
		return err
	}
	defer func() {
		// Not before the end of the transaction: a holder that is paused between the two would keep the rows for as long
		// as its pause lasts.
		forget(ctx, conn)
		_ = conn.Close()
	}()
	defer func() {
		// After a commit this changes nothing; after an error or a panic of fn the
		// transaction is undone.
		if undo := tx.Rollback(); err != nil && undo != nil && !errors.Is(undo, sql.ErrTxDone) {
			err = errors.Join(err, undo)
		}
		if errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil { // database/sql has undone it because of that
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// begin begins a transaction on a connection that stays its caller's when the transaction ends. Connections of
// the pool that the server has closed in the meantime are thrown away, as DB.BeginTx does.
func begin(ctx context.Context, db *sql.DB) (*sql.Conn, *sql.Tx, error) {
	for {
		conn, err := db.Conn(ctx)
		if err != nil {
			return nil, nil, err
		}
		tx, err := conn.BeginTx(ctx, nil)
		if err == nil {
			return conn, tx, nil
		}
		_ = conn.Close()
		if !errors.Is(err, driver.ErrBadConn) {
			return nil, nil, err
		}
	}
}

// forgetTimeout limits what Do still waits for after the end of its transaction.
const forgetTimeout = 5 * time.Second

// forget clears what Do has set on the connection. If that fails, the pool closes the connection: a later
// user must not have its claim.
func forget(ctx context.Context, conn *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTimeout)
	defer cancel()
	if _, err := conn.ExecContext(ctx, forgetSQL); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
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
