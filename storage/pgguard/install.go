package pgguard

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/migrations"
)

// Install creates the schema "fencing", or upgrades it to this version, in one transaction. It is idempotent,
// and safe to run from many places at once. The role needs CREATE on the database the first time, and must own
// the schema later. The owner of the schema owns the guard, so Install refuses an existing schema "fencing"
// unless the caller's role is a member of the role that owns it.
func Install(ctx context.Context, url string) error {
	script, err := SQL()
	if err != nil {
		return err
	}
	return withPool(ctx, url, func(ctx context.Context, pool *pgxpool.Pool) error {
		return runScript(ctx, pool, script)
	})
}

// Uninstall removes the schema "fencing" with everything in it: the marks, the
// guarded records, and the protection of every table. It is idempotent.
func Uninstall(ctx context.Context, url string) error {
	return withPool(ctx, url, func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, migrations.Guard().Removal())
		return err
	})
}

func withPool(ctx context.Context, url string, do func(context.Context, *pgxpool.Pool) error) error {
	opts, err := Options{MaxConns: minConns}.withDefaults()
	if err != nil {
		return err
	}
	config, err := poolConfig(url, opts)
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(ctx, pool)
}

// install does nothing if the schema is new enough. It then only needs the right to read the version, so a
// service may run under a role that owns nothing.
func install(ctx context.Context, pool *pgxpool.Pool) error {
	wanted, err := SchemaVersion()
	if err != nil {
		return err
	}
	installed, err := installedVersion(ctx, pool)
	if err != nil {
		return fmt.Errorf("read the version of the schema fencing: %w", err)
	}
	if installed >= wanted {
		return nil
	}
	script, err := SQL()
	if err != nil {
		return err
	}
	return runScript(ctx, pool, script)
}

// runScript runs the script, which is a transaction. After a failure the pool closes the connection.
func runScript(ctx context.Context, pool *pgxpool.Pool, script string) error {
	_, err := pool.Exec(ctx, script)
	if refused, ok := asType[*pgconn.PgError](err); ok && refused.Hint != "" {
		return fmt.Errorf("make the schema fencing: %w: %s", err, refused.Hint)
	}
	if err != nil {
		return fmt.Errorf("make the schema fencing: %w", err)
	}
	return nil
}

// installedVersion returns the version of the schema, or 0 without one.
func installedVersion(ctx context.Context, pool *pgxpool.Pool) (version int64, err error) {
	var exists bool
	if err := pool.QueryRow(ctx, `SELECT to_regclass('fencing.version') IS NOT NULL`).Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = pool.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM fencing.version`).Scan(&version)
	return version, err
}

// SchemaVersion returns the version of the schema that Install creates.
func SchemaVersion() (int64, error) { return migrations.Guard().Version() }
