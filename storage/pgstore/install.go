package pgstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/migrations"
)

// installLock is the advisory lock that makes one server at a time install: "lockinst"
// in letters.
const installLock = 0x6c6f636b696e7374

const header = `BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SELECT pg_advisory_xact_lock(%d);
`

const footer = `
CREATE TABLE IF NOT EXISTS fencelock.version (
    version      bigint PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE fencelock.version IS 'The versions of the schema that were installed; the largest one is in use.';
INSERT INTO fencelock.version (version) VALUES (%d) ON CONFLICT DO NOTHING;
COMMIT;
`

// script is the schema as one script of plain SQL, which can be run again, and its
// version: the number of the last file.
func script() (text string, version int64, err error) {
	names, err := fs.Glob(migrations.Store, "store/*.sql") // sorted
	if err != nil || len(names) == 0 {
		return "", 0, errors.Join(errors.New("no migrations are embedded"), err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, header, int64(installLock))
	for _, name := range names {
		part, err := fs.ReadFile(migrations.Store, name)
		if err != nil {
			return "", 0, err
		}
		b.Write(part)
	}
	number, _, _ := strings.Cut(path.Base(names[len(names)-1]), "_")
	if version, err = strconv.ParseInt(number, 10, 64); err != nil {
		return "", 0, err
	}
	fmt.Fprintf(&b, footer, version)
	return b.String(), version, nil
}

// install makes the schema, or brings it up to this version, in one transaction. It
// does nothing where the schema is new enough, and then needs no right but to read its
// version: a service may run under a role that owns nothing.
func install(ctx context.Context, pool *pgxpool.Pool) error {
	text, wanted, err := script()
	if err != nil {
		return err
	}
	installed, err := installedVersion(ctx, pool)
	if err != nil || installed >= wanted {
		return err
	}
	_, err = pool.Exec(ctx, text)
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
