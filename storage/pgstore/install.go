package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/migrations"
)

// install makes the schema, or brings it up to this version, in one transaction. It
// does nothing where the schema is new enough, and then needs no right but to read its
// version: a service may run under a role that owns nothing.
func install(ctx context.Context, pool *pgxpool.Pool) error {
	wanted, err := migrations.Store().Version()
	if err != nil {
		return err
	}
	installed, err := installedVersion(ctx, pool)
	if err != nil || installed >= wanted {
		return err
	}
	script, err := migrations.Store().Script()
	if err == nil {
		_, err = pool.Exec(ctx, script)
	}
	return err
}

// installedVersion is the version of the schema, 0 if there is none.
func installedVersion(ctx context.Context, pool *pgxpool.Pool) (version int64, err error) {
	var exists bool
	if err := pool.QueryRow(ctx, `SELECT to_regclass('fencelock.version') IS NOT NULL`).Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = pool.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM fencelock.version`).Scan(&version)
	return version, err
}
