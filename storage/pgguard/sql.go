package pgguard

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/fencelock/fencelock/migrations"
)

const sqlHeader = `-- The guard of fencelock: what "fencelock guard install" runs, all in the schema
-- "fencing". For your own migrations, run it with psql -v ON_ERROR_STOP=1, or as one
-- migration without a transaction of its own. It can be run again, also over an
-- older version. The trigger functions of protected tables stay as they are until
-- the tables are protected again.
BEGIN;
-- Names mean what is in pg_catalog, whatever operators another role has made in a
-- schema of the installing role's path.
SET LOCAL search_path = pg_catalog, pg_temp;
SELECT pg_advisory_xact_lock(%d);

`

const sqlFooter = `
CREATE TABLE IF NOT EXISTS fencing.version (
    version      bigint PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE fencing.version IS 'The versions of the guard that were installed; the largest one is in use.';
INSERT INTO fencing.version (version) VALUES (%d) ON CONFLICT DO NOTHING;

COMMIT;
`

// SQL is the guard as one script of plain SQL, which can be run again.
func SQL() (string, error) {
	names, err := fs.Glob(migrations.Files, "*.sql")
	if err != nil {
		return "", err
	}
	latest, err := latestVersion()
	if err != nil {
		return "", err
	}
	var script strings.Builder
	fmt.Fprintf(&script, sqlHeader, int64(installLock))
	for _, name := range names { // Glob sorts
		text, err := fs.ReadFile(migrations.Files, name)
		if err != nil {
			return "", err
		}
		script.Write(text)
	}
	fmt.Fprintf(&script, sqlFooter, latest)
	return script.String(), nil
}
