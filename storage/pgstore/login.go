package pgstore

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// logIn gives a connection in the making the credentials of the moment.
func (o Options) logIn(_ context.Context, config *pgx.ConnConfig) error {
	if o.Credentials != nil {
		user, password := o.Credentials()
		config.User, config.Password = cmp.Or(user, config.User), cmp.Or(password, config.Password)
	}
	return nil
}

// invalidAuthorization is the class of SQLSTATE for a user that the server does not let in.
const invalidAuthorization = "28"

// Admits returns the error of a server that does not let the URL's user in. It returns nil for one
// that cannot be reached, and never shows the URL.
func Admits(ctx context.Context, url string) error {
	config, err := poolConfig(url, Options{}.withDefaults())
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err == nil {
		return conn.Close(ctx)
	}
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(refused.Code, invalidAuthorization) {
		return refused
	}
	return nil
}
