package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// rights are all the rights that a server's role needs after the schema was created: the grant, without the
// role's name, and an expression that is true if the role has it. docs/how-to/postgres.md lists them.
var rights = []struct{ grant, has string }{
	{"GRANT USAGE ON SCHEMA fencelock", `has_schema_privilege('fencelock', 'USAGE')`},
	{"GRANT SELECT ON fencelock.version", `has_table_privilege('fencelock.version', 'SELECT')`},
	{"GRANT SELECT, INSERT, UPDATE, DELETE ON fencelock.rows", `has_table_privilege('fencelock.rows', 'SELECT') AND has_table_privilege('fencelock.rows', 'INSERT') AND has_table_privilege('fencelock.rows', 'UPDATE') AND has_table_privilege('fencelock.rows', 'DELETE')`},
	{"GRANT USAGE, SELECT ON fencelock.writes", `has_sequence_privilege('fencelock.writes', 'USAGE') AND has_sequence_privilege('fencelock.writes', 'SELECT')`},
	{"GRANT UPDATE ON fencelock.turn", `has_table_privilege('fencelock.turn', 'UPDATE')`},
}

// Rights are the grants that a server's role needs once the schema is there, each without "TO" and
// the role.
func Rights() (grants []string) {
	for _, r := range rights {
		grants = append(grants, r.grant)
	}
	return grants
}

// MissingRights are those of Rights that the connection's role does not have, in a database with
// the schema. An error is one of the connection or of Postgres; it changes nothing.
func MissingRights(ctx context.Context, tx pgx.Tx) (grants []string, err error) {
	for i, r := range rights {
		var has bool
		if err := tx.QueryRow(ctx, `SELECT `+r.has).Scan(&has); err != nil {
			return grants, fmt.Errorf("the rights on the schema fencelock: %w", err)
		}
		if !has {
			grants = append(grants, r.grant)
		}
		if !has && i == 0 { // without it no table's name can be looked up
			return Rights(), nil
		}
	}
	return grants, nil
}
