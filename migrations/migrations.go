// Package migrations holds the SQL of the guard in Postgres: numbered files,
// run in order and in one transaction, everything inside the schema "fencing".
// Each file can be run again over any older version, and every statement works
// on PostgreSQL 13. The number of the last file is the version.
package migrations

import "embed"

// Files are the migrations, named NNNN_what.sql.
//
//go:embed *.sql
var Files embed.FS
