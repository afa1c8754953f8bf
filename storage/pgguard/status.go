package pgguard

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/fencing"
)

// Status is the content of the view fencing.status, with the number of resources.
type Status struct {
	Refused   int64         `json:"refused"`   // stale claims and writes, over all resources
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
	Refused  int64  `json:"refused"`           // stale claims and writes
	Unfenced int64  `json:"unfenced"`          // writes without a token
	Problem  string `json:"problem,omitempty"` // what is missing from the protection
}

// RoleStatus is a role that may write without tokens, or has done so.
type RoleStatus struct {
	Name         string `json:"name"`
	May          string `json:"may,omitempty"` // the functions that the role may call
	Transactions int64  `json:"transactions"`  // transactions that wrote without tokens
}

const (
	tablesSQL = `SELECT name, mode, resource_sql, refused, unfenced, coalesce(problem, '') FROM fencing.status WHERE kind = 'table' ORDER BY name`
	rolesSQL  = `SELECT name, coalesce(mode, ''), unfenced FROM fencing.status WHERE kind = 'role' ORDER BY name`
	totalsSQL = `SELECT fencing._counted('refusals'), count(*), coalesce(max(mark), 0) FROM fencing.marks`
)

// ReadStatus reads the status of the guard. The role needs SELECT on fencing.status
// and fencing.marks.
func ReadStatus(ctx context.Context, url string) (s Status, err error) {
	err = withPool(ctx, url, func(ctx context.Context, pool *pgxpool.Pool) error {
		if err := pool.QueryRow(ctx, totalsSQL).Scan(&s.Refused, &s.Resources, &s.Highest); err != nil {
			return err
		}
		if s.Tables, err = collect[TableStatus](ctx, pool, tablesSQL); err != nil {
			return err
		}
		s.Roles, err = collect[RoleStatus](ctx, pool, rolesSQL)
		return err
	})
	if schemaGone(err) {
		err = fmt.Errorf("the guard is not in this database: run fencelock guard install: %w", err)
	}
	return s, err
}

func collect[T any](ctx context.Context, pool *pgxpool.Pool, sql string) ([]T, error) {
	rows, err := pool.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// Refused returns how many stale claims and writes the guard has refused in the application's own tables, over
// all resources; see fencing.status. After a crash of the database it may be up to 32 too high.
func (g *Guard) Refused(ctx context.Context) (refused int64, err error) {
	err = g.call(ctx, g.opts.CallTimeout, func(ctx context.Context) error {
		return g.pool.QueryRow(ctx, `SELECT fencing._counted('refusals')`).Scan(&refused)
	})
	return refused, err
}

// Check returns nil if the guard is installed and its database takes writes. Errors:
// fencing.ErrGuardUnavailable; ctx's.
func (g *Guard) Check(ctx context.Context) error {
	if _, err := g.Read(ctx, "fencelock/check"); err != nil && !errors.Is(err, fencing.ErrNotFound) {
		return err
	}
	var readOnly bool
	err := g.call(ctx, g.opts.CallTimeout, func(ctx context.Context) error {
		return g.pool.QueryRow(ctx, `SELECT current_setting('transaction_read_only')::bool`).Scan(&readOnly)
	})
	if err == nil && readOnly {
		err = fmt.Errorf("%w: the database accepts no writes: it is a standby, or read-only", fencing.ErrGuardUnavailable)
	}
	return err
}
