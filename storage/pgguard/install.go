package pgguard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/fencelock/fencelock/migrations"
)

const (
	versionTable = "fencing.goose_db_version"

	// installLock is the advisory lock that makes one server at a time install:
	// "fencelock" in letters. Whoever installs by hand takes it too.
	installLock = 0x66656e63656c6f63

	unlockTimeout = 2 * time.Second
)

// Install makes the schema "fencing", or brings it up to this version. It is
// idempotent, and safe to run from many places at once. The role needs CREATE
// on the database the first time, and to own the schema later. It must reach
// Postgres directly, or through a pooler in session mode.
// A schema "fencing" that belongs to a role which the caller's is not, and is no
// member of, is refused: whoever owns it owns the guard.
func Install(ctx context.Context, url string) error {
	return withPool(ctx, url, func(ctx context.Context, pool *pgxpool.Pool) error {
		if _, err := findSchema(ctx, pool); err != nil {
			return err
		}
		return install(ctx, pool)
	})
}

// Uninstall removes the schema "fencing" with everything in it: the marks, the
// guarded records, and the protection of every table. It is idempotent.
func Uninstall(ctx context.Context, url string) error {
	return withPool(ctx, url, func(ctx context.Context, pool *pgxpool.Pool) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(installLock)); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `DROP SCHEMA IF EXISTS fencing CASCADE`)
			return err
		})
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

// install does nothing where the schema is new enough, and then needs no right
// but to read its version: a service may run under a role that owns nothing.
func install(ctx context.Context, pool *pgxpool.Pool) error {
	wanted, err := latestVersion()
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
	return migrate(ctx, pool)
}

// migrate runs goose under an advisory lock, held by a connection of its own.
// goose has a hook for such a lock, but looks at its version table before it,
// and that table's schema has to be made under the lock too.
func migrate(ctx context.Context, pool *pgxpool.Pool) (err error) {
	return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(installLock)); err != nil {
			return fmt.Errorf("wait for other installations: %w", err)
		}
		defer func() { err = errors.Join(err, unlock(ctx, conn)) }()
		if err := createSchema(ctx, conn); err != nil {
			return fmt.Errorf("make the schema fencing: %w", err)
		}
		return runGoose(ctx, pool)
	})
}

// unlock has a time limit of its own: ctx may have ended. A connection that
// fails here is closed by the pool, and the lock with it.
func unlock(ctx context.Context, conn *pgxpool.Conn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, int64(installLock))
	return err
}

// createSchema asks first: IF NOT EXISTS wants CREATE on the database even
// where the schema exists.
func createSchema(ctx context.Context, conn *pgxpool.Conn) error {
	exists, err := findSchema(ctx, conn)
	if err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE SCHEMA fencing`)
	return err
}

// ownerSQL reads memberships, because a superuser counts as a member of all roles.
const ownerSQL = `
WITH RECURSIVE mine (role) AS (
    SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user
    UNION SELECT roleid FROM pg_catalog.pg_auth_members JOIN mine ON member = role)
SELECT pg_catalog.pg_get_userbyid(nspowner), nspowner IN (SELECT role FROM mine), current_user
  FROM pg_catalog.pg_namespace WHERE nspname = 'fencing'`

// findSchema says whether there is a schema, and fails if it is somebody else's:
// what is in it would run with the rights of whoever uses it.
func findSchema(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) (exists bool, err error) {
	var owner, role string
	var own bool
	err = db.QueryRow(ctx, ownerSQL).Scan(&owner, &own, &role)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for the schema fencing: %w", err)
	case !own:
		return true, fmt.Errorf("the schema fencing belongs to %s, not to %s: install as its owner if you trust that role with the guard; else rename or drop the schema first", owner, role)
	}
	return true, nil
}

func runGoose(ctx context.Context, pool *pgxpool.Pool) (err error) {
	db := stdlib.OpenDBFromPool(pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Files,
		goose.WithTableName(versionTable),
		goose.WithDisableGlobalRegistry(true),
		goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("make the schema fencing: %w", err)
	}
	return nil
}

// installedVersion is the version of the schema, 0 if there is none.
func installedVersion(ctx context.Context, pool *pgxpool.Pool) (version int64, err error) {
	var exists bool
	if err := pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, versionTable).Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = pool.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM `+versionTable+` WHERE is_applied`).Scan(&version)
	return version, err
}

// latestVersion is the number of the last migration.
func latestVersion() (int64, error) {
	names, err := fs.Glob(migrations.Files, "*.sql")
	if err != nil || len(names) == 0 {
		return 0, errors.Join(errors.New("no migrations are embedded"), err)
	}
	number, _, _ := strings.Cut(names[len(names)-1], "_") // Glob sorts
	return strconv.ParseInt(number, 10, 64)
}
