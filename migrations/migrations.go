// Package migrations holds the SQL of the guard in Postgres: numbered files,
// applied in order, everything inside the schema "fencing". Each file can be
// run again without harm, and every statement works on PostgreSQL 13.
package migrations

import "embed"

// Files are the migrations, named NNNN_what.sql, annotated for goose.
//
//go:embed *.sql
var Files embed.FS
