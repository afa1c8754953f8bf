package pgguard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/fencing"
)

// The SQLSTATEs of the guard's own errors. Each has a DETAIL that is a JSON
// object with the keys resource, presented and highest.
const (
	SQLStateStale     = "LK001" // the token is below the mark; never retry with it
	SQLStateMissing   = "LK002" // a protected row was changed without a token for its resource
	SQLStateMalformed = "LK003" // a token or resource out of bounds
	SQLStateUnproven  = "LK004" // the proof of a token is missing or wrong; the DETAIL also has the key "missing"
)

// ErrTokenMissing says that a protected row was changed by a transaction that
// neither claimed the row's resource nor presented a token for it.
var ErrTokenMissing = errors.New("no fencing token for a protected row")

// ErrNotInstalled says that the database has no guard.
var ErrNotInstalled = errors.New(`the database has no guard: run "fencelock guard install"`)

// SQLSTATEs of Postgres that this package handles.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	undefinedTable       = "42P01"
	undefinedFunction    = "42883"
	invalidSchemaName    = "3F000"

	classDataException = "22"
)

// sqlState returns the SQLSTATE of an error of pgx, lib/pq or any other driver that reports it.
func sqlState(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// hadNoEffect reports failures after which the same statement may be run again.
func hadNoEffect(err error) bool {
	switch sqlState(err) {
	case serializationFailure, deadlockDetected:
		return true
	}
	return err != nil && pgconn.SafeToRetry(err)
}

// schemaGone reports that somebody dropped the schema, or restored a database without it.
func schemaGone(err error) bool {
	switch sqlState(err) {
	case undefinedTable, undefinedFunction, invalidSchemaName:
		return true
	}
	return false
}

// explain converts an error of Postgres to an error that fencing.Guard lists.
func explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case strings.HasPrefix(sqlState(err), classDataException):
		return fmt.Errorf("%w: %w", fencing.ErrMalformedValue, err)
	}
	return fmt.Errorf("%w: %w", fencing.ErrGuardUnavailable, notConnected(err))
}

// notConnected shortens the error of a failed connection attempt: pgx lists every step and every address.
func notConnected(err error) error {
	var connect *pgconn.ConnectError
	if !errors.As(err, &connect) {
		return err
	}
	var refused *pgconn.PgError
	var call syscall.Errno
	switch {
	case errors.As(err, &refused):
		err = refused
	case errors.As(err, &call):
		err = call
	default:
		return err
	}
	address := net.JoinHostPort(connect.Config.Host, strconv.FormatUint(uint64(connect.Config.Port), 10))
	return fmt.Errorf("no connection to Postgres at %s as user %s: %w", address, connect.Config.User, err)
}

// staleToken reads a refusal (LK001) out of its DETAIL. ok is false for any other error, and for one without
// such a detail; then ignore the result.
func staleToken(err error) (stale *fencing.StaleTokenError, ok bool) {
	var detail struct {
		Resource  string        `json:"resource"`
		Presented fencing.Token `json:"presented"`
		Highest   fencing.Token `json:"highest"`
	}
	ok = sqlState(err) == SQLStateStale && json.Unmarshal([]byte(detailOf(err)), &detail) == nil
	return &fencing.StaleTokenError{Resource: detail.Resource, Presented: detail.Presented, Highest: detail.Highest}, ok
}

// unproven reads a refusal (LK004) out of its DETAIL.
func unproven(err error) *fencing.ProofError {
	var detail struct {
		Resource  string        `json:"resource"`
		Presented fencing.Token `json:"presented"`
		Missing   bool          `json:"missing"`
	}
	_ = json.Unmarshal([]byte(detailOf(err)), &detail) // a driver may omit the detail
	return &fencing.ProofError{Resource: detail.Resource, Presented: detail.Presented, Missing: detail.Missing}
}

// detailOf returns the DETAIL of an error of pgx or, through its Get method, of lib/pq.
func detailOf(err error) string {
	if pgxError, ok := asType[*pgconn.PgError](err); ok {
		return pgxError.Detail
	}
	var pqError interface{ Get(field byte) string }
	if errors.As(err, &pqError) {
		return pqError.Get('D')
	}
	return ""
}

// asType is errors.AsType of Go 1.26. This module still supports Go 1.25.
func asType[E error](err error) (E, bool) {
	var target E
	ok := errors.As(err, &target)
	return target, ok
}
