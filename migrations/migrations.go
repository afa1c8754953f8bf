// Package migrations holds the SQL of the guard in Postgres, inside the schema
// "fencing" and for PostgreSQL 13, and in store that of the lock node, inside the
// schema "fencelock" and for PostgreSQL 15. Both are numbered files, run in order and
// in one transaction. Each file can be run again over any older version. The number of
// the last file is the version.
package migrations

import "embed"

// Files are the migrations of the guard, named NNNN_what.sql.
//
//go:embed *.sql
var Files embed.FS

// Store are those of the lock node, named store/NNNN_what.sql.
//
//go:embed store/*.sql
var Store embed.FS
