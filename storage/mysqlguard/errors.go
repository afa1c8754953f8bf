package mysqlguard

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/go-sql-driver/mysql"

	"github.com/fencelock/fencelock/fencing"
)

// The SQLSTATEs of the guard's own errors. Many drivers do not show the SQLSTATE, so each also has an error
// number: 31001, 31002 and 31003. (PyMySQL reads numbers above 32767 as negative.)
const (
	SQLStateStale     = "LK001" // the token is below the mark; never retry with it
	SQLStateMissing   = "LK002" // a protected row was changed without a token for its resource
	SQLStateMalformed = "LK003" // a token or resource out of bounds
)

// ErrTokenMissing says that a protected row was changed by a transaction that has not
// claimed the row's resource.
var ErrTokenMissing = errors.New("no fencing token for a protected row")

// ErrNotInstalled says that the database has no guard.
var ErrNotInstalled = errors.New(`the database has no guard: run "fencelock guard install"`)

// MariaDB's error numbers that this package handles.
const (
	lockWaitTimeout = 1205
	deadlock        = 1213
	snapshotTooOld  = 1020 // ER_CHECKREAD: the row is newer than the transaction's snapshot
	noSuchTable     = 1146
	noSuchRoutine   = 1305
	noSuchDatabase  = 1049
)

// MayRetry says that the transaction had no effect and may be run again while the lease
// is held: it was chosen to end a deadlock (1213), had read before it claimed (1020), or
// waited too long for a lock (1205).
func MayRetry(err error) bool {
	switch number(err) {
	case lockWaitTimeout, deadlock, snapshotTooOld:
		return true
	}
	return false
}

func number(err error) uint16 {
	if failed, ok := asType[*mysql.MySQLError](err); ok {
		return failed.Number
	}
	return 0
}

func sqlState(err error) string {
	if failed, ok := asType[*mysql.MySQLError](err); ok {
		return string(failed.SQLState[:])
	}
	return ""
}

// schemaGone reports that somebody removed the guard, or restored a database without it.
func schemaGone(err error) bool {
	switch number(err) {
	case noSuchTable, noSuchRoutine, noSuchDatabase:
		return true
	}
	return false
}

// explain converts an error of MariaDB to an error that fencing.Guard lists.
func explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", fencing.ErrGuardUnavailable, err)
}

// MariaDB's errors have no fields for details, so the tokens are in the message.
var staleMessage = regexp.MustCompile(`(?s)^stale fencing token for '(.*)': presented (\d+), highest seen (\d+)$`)

// staleToken reads a refusal (LK001). ok is false for a message of another form.
func staleToken(err error) (stale *fencing.StaleTokenError, ok bool) {
	failed, _ := asType[*mysql.MySQLError](err)
	parts := staleMessage.FindStringSubmatch(failed.Message)
	if parts == nil {
		return nil, false
	}
	presented, _ := fencing.ParseToken(parts[2])
	highest, _ := fencing.ParseToken(parts[3])
	return &fencing.StaleTokenError{Resource: parts[1], Presented: presented, Highest: highest}, true
}

// asType is errors.AsType of Go 1.26. This module still supports Go 1.25.
func asType[E error](err error) (E, bool) {
	var target E
	ok := errors.As(err, &target)
	return target, ok
}
