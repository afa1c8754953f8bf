// Package migrations holds the SQL of the guard in Postgres, inside the schema
// "fencing" and for PostgreSQL 13, and in store that of the lock node, inside the
// schema "fencelock" and for PostgreSQL 15. Both are numbered files, run in order and
// in one transaction. Each file can be run again over any older version. The number of
// the last file is the version.
package migrations

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

//go:embed *.sql store/*.sql
var files embed.FS

// Migrations are those of one schema.
type Migrations struct {
	// Schema is the schema that everything is in, its table version included.
	Schema string
	// Lock is the advisory lock of the transaction, so that one server at a time installs.
	Lock int64

	folder string
}

// Guard are the migrations of the guard, NNNN_what.sql.
func Guard() Migrations {
	return Migrations{Schema: "fencing", Lock: 0x66656e63656c6f63, folder: "."} // "fencelock" in letters
}

// Store are those of the lock node, store/NNNN_what.sql.
func Store() Migrations {
	return Migrations{Schema: "fencelock", Lock: 0x6c6f636b696e7374, folder: "store"} // "lockinst" in letters
}

// Names mean what is in pg_catalog, whatever operators another role has made in a
// schema of the installing role's path.
const header = `BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SELECT pg_advisory_xact_lock(%d);

`

const footer = `
CREATE TABLE IF NOT EXISTS %[1]s.version (
    version      bigint PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE %[1]s.version IS 'The versions of the schema that were installed; the largest one is in use.';
INSERT INTO %[1]s.version (version) VALUES (%[2]d) ON CONFLICT DO NOTHING;

COMMIT;
`

// Script is the whole schema as one transaction of plain SQL, which can be run again.
func (m Migrations) Script() (string, error) {
	names, version, err := m.names()
	if err != nil {
		return "", err
	}
	var script strings.Builder
	fmt.Fprintf(&script, header, m.Lock)
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return "", err
		}
		script.Write(text)
	}
	fmt.Fprintf(&script, footer, m.Schema, version)
	return script.String(), nil
}

// Version is the number of the last file.
func (m Migrations) Version() (int64, error) {
	_, version, err := m.names()
	return version, err
}

func (m Migrations) names() (names []string, version int64, err error) {
	names, err = fs.Glob(files, path.Join(m.folder, "*.sql")) // sorted
	if err != nil || len(names) == 0 {
		return nil, 0, errors.Join(errors.New("no migrations are embedded"), err)
	}
	number, _, _ := strings.Cut(path.Base(names[len(names)-1]), "_")
	version, err = strconv.ParseInt(number, 10, 64)
	return names, version, err
}
