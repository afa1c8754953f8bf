// Package migrations contains the SQL of two schemas in Postgres: of the guard (the schema "fencing", for
// PostgreSQL 13) and, in the folder store, of the lock node (the schema "fencelock", for PostgreSQL 15). The
// files of a schema are numbered, and run in order in one transaction. Each file can be run again over any
// older version. The version of a schema is the number of its last file.
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

// Migrations are the migrations of one schema.
type Migrations struct {
	// Schema is the name of the schema. It contains everything, including its table version.
	Schema string

	folder string
}

// Guard returns the migrations of the guard, NNNN_what.sql.
func Guard() Migrations {
	return Migrations{Schema: "fencing", folder: "."}
}

// Store returns the migrations of the lock node, store/NNNN_what.sql.
func Store() Migrations {
	return Migrations{Schema: "fencelock", folder: "store"}
}

// Names refer to pg_catalog, even if another role has created operators in a schema of the installing role's
// search path.
//
// Only one installation runs at a time. The first installation creates the schema while the others wait;
// later ones lock its table version. Both need rights. (An advisory lock needs none, so every role that can
// log in could hold it.)
const header = `BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
    schema_of record;
    relations text[];
BEGIN
    LOOP
        SELECT oid, nspowner INTO schema_of FROM pg_namespace WHERE nspname = '%[1]s';
        EXIT WHEN FOUND;
        BEGIN
            CREATE SCHEMA %[1]s; -- IF NOT EXISTS would ask for CREATE on the database even where it exists
        EXCEPTION WHEN duplicate_schema OR unique_violation THEN
            NULL; -- another installation has made it
        END;
    END LOOP;
    -- Whoever owns the schema may have put tables and triggers of its own there.
    -- Memberships are read, since a superuser has those of all.
    IF schema_of.nspowner NOT IN (
        WITH RECURSIVE mine (role) AS (
            SELECT oid FROM pg_roles WHERE rolname = current_user
            UNION SELECT roleid FROM pg_auth_members JOIN mine ON member = role)
        SELECT role FROM mine)
    THEN
        RAISE EXCEPTION 'the schema %[1]s belongs to %%, not to %%', schema_of.nspowner::regrole, current_user
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Do this as that role if you trust it. Otherwise rename or drop the schema, or name another database.';
    END IF;
    SELECT array_agg(relname) INTO relations FROM pg_class WHERE relnamespace = schema_of.oid;
    IF NOT 'version' = ANY (relations) THEN
        RAISE EXCEPTION 'the schema %[1]s holds relations of something else'
            USING ERRCODE = 'duplicate_schema', HINT = 'Rename that schema, or name a database of its own.';
    END IF;
    BEGIN
        CREATE TABLE IF NOT EXISTS %[1]s.version (
            version      bigint PRIMARY KEY,
            installed_at timestamptz NOT NULL DEFAULT now()
        );
    EXCEPTION WHEN duplicate_table OR unique_violation THEN
        NULL; -- another installation has made it
    END;
    LOCK TABLE %[1]s.version IN EXCLUSIVE MODE; -- which does not keep servers from reading it
END
$$;
COMMENT ON TABLE %[1]s.version IS 'The versions of the schema that were installed; the largest one is in use.';

`

const footer = `
INSERT INTO %[1]s.version (version) VALUES (%[2]d) ON CONFLICT DO NOTHING;

COMMIT;
`

// Removal drops the schema with everything in it, if it exists, after a running installation has ended. Run
// it in a transaction.
func (m Migrations) Removal() string {
	const removal = `DO $$
BEGIN
    LOCK TABLE %[1]s.version IN EXCLUSIVE MODE;
EXCEPTION WHEN undefined_table OR invalid_schema_name THEN
    NULL; -- there is nothing to wait for
END
$$;
DROP SCHEMA IF EXISTS %[1]s CASCADE`
	return fmt.Sprintf(removal, m.Schema)
}

// Script returns the whole schema as one transaction of plain SQL, which can be run again.
func (m Migrations) Script() (string, error) {
	names, version, err := m.names()
	if err != nil {
		return "", err
	}
	var script strings.Builder
	fmt.Fprintf(&script, header, m.Schema)
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

// Version returns the number of the last file.
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
