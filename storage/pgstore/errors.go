package pgstore

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// passing tells failures of a transaction that had no effect and may not happen again:
// the connection broke before the commit, the server restarts, or another transaction
// was in the way.
func passing(err error) bool {
	if err == nil || errors.As(err, new(*commitError)) || errors.As(err, new(*fnError)) || errors.Is(err, errMalformed) {
		return false
	}
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return true
	}
	for _, class := range []string{
		"08",    // the connection
		"25P03", // this server was idle in a transaction for too long
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
