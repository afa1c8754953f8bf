package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/migrations"
)

// install creates the schema, or upgrades it to this version, in one transaction. It does nothing if the
// schema is new enough. It then only needs the right to read the version, so a service may run under a role
// that owns nothing.
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

// installedVersion returns the version of the schema, or 0 without one.
func installedVersion(ctx context.Context, pool *pgxpool.Pool) (version int64, err error) {
	var exists bool
	if err := pool.QueryRow(ctx, `SELECT to_regclass('fencelock.version') IS NOT NULL`).Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = pool.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM fencelock.version`).Scan(&version)
	return version, err
}
