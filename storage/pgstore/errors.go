package pgstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// unfitError says why a server cannot keep a store, and what to change.
type unfitError struct{ reason string }

func (e *unfitError) Error() string { return e.reason }

// hinted adds advice to an error of the server.
func hinted(err error) error {
	const rightsMissing = "42501"
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && refused.Hint != "":
		return fmt.Errorf("%w: %s", err, refused.Hint)
	case ok && refused.Code == rightsMissing:
		return fmt.Errorf("%w: start the first server as a role that may create a schema, or grant this one what docs/how-to/postgres.md lists", err)
	}
	return err
}

// idled is the SQLSTATE after a server was idle in a transaction for too long: PostgreSQL ended the
// transaction before it read the next statement, even if that was the commit.
const idled = "25P03"

// passing tells failures of a transaction that had no effect and may not happen again:
// the connection broke before the commit, the server restarts, or another transaction
// was in the way.
func passing(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil, errors.As(err, new(*unfitError)), errors.Is(err, errMalformed):
		return false
	case ok && refused.Code == idled:
		return true
	case errors.As(err, new(*commitError)):
		return false
	case !ok:
		return true
	}
	for _, class := range []string{
		"08",    // the connection
		"40",    // a conflict
		"53300", // too many connections
		"57P",   // the server stops, starts or was killed
	} {
		if strings.HasPrefix(refused.Code, class) {
			return true
		}
	}
	return false
}
