package mysqlguard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/fencelock/fencelock/fencing"
)

// Status is the state of the guard in a database.
type Status struct {
	Refused   int64         `json:"refused"`   // stale claims, over all resources
	Resources int64         `json:"resources"` // number of resources that have a mark
	Highest   fencing.Token `json:"highest"`   // the largest mark; 0 if there is none
	Tables    []TableStatus `json:"tables"`
	Roles     []RoleStatus  `json:"roles"`
}

// TableStatus is one protected table.
type TableStatus struct {
	Name     string `json:"name"`
	Mode     string `json:"mode"`
	Resource string `json:"resource_sql"`
	Unfenced int64  `json:"unfenced"`          // writes without a token
	Problem  string `json:"problem,omitempty"` // what is missing from the protection
}

// RoleStatus is a user that has written without tokens.
type RoleStatus struct {
	Name  string `json:"name"`
	Times int64  `json:"times"`
}

const (
	refusedSQL = `SELECT next_not_cached_value - 1 FROM fencing_refusals`
	totalsSQL  = `SELECT (` + refusedSQL + `), COUNT(*), IFNULL(MAX(mark), 0) FROM fencing_marks`
	rolesSQL   = `SELECT role, COUNT(*) FROM fencing_unguarded_log GROUP BY role ORDER BY role`
)

// ReadStatus reads the status of the guard. The user needs SELECT on its tables, EXECUTE,
// and the right to see the protected tables' triggers.
func ReadStatus(ctx context.Context, url string) (s Status, err error) {
	err = withDB(url, func(db *sql.DB) error {
		if err := db.QueryRowContext(ctx, totalsSQL).Scan(&s.Refused, &s.Resources, &s.Highest); err != nil {
			return err
		}
		s.Tables, err = collect(ctx, db, `CALL fencing_status()`, func(rows *sql.Rows, t *TableStatus) error {
			var problem sql.NullString
			var since sql.NullTime
			err := rows.Scan(&t.Name, &t.Mode, &t.Resource, &t.Unfenced, &problem, &since)
			t.Problem = problem.String
			return err
		})
		if err != nil {
			return err
		}
		s.Roles, err = collect(ctx, db, rolesSQL, func(rows *sql.Rows, r *RoleStatus) error { return rows.Scan(&r.Name, &r.Times) })
		return err
	})
	if schemaGone(err) {
		err = fmt.Errorf("the guard is not in this database: run fencelock guard install: %w", err)
	}
	return s, err
}

func collect[T any](ctx context.Context, db *sql.DB, query string, scan func(*sql.Rows, *T) error) (list []T, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var item T
		if err := scan(rows, &item); err != nil {
			return nil, err
		}
		list = append(list, item)
	}
	return list, rows.Err()
}
