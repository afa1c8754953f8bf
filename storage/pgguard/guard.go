package pgguard

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/fencing"
)

// Guard is a fencing.Guard in Postgres. Every method is one statement, and so one round trip. Guard creates
// its schema when it first reaches the server, and again if the schema is missing later.
type Guard struct {
	pool   *pgxpool.Pool
	opts   Options
	schema *readiness
}

var _ fencing.Guard = (*Guard)(nil)

// Open returns a Guard at once, even if Postgres does not respond. Until it does, the methods return
// fencing.ErrGuardUnavailable, and each call tries again. Open fails only for a malformed URL or bad options,
// and its error never contains the URL. ctx bounds Open itself, not the life of the Guard.
func Open(ctx context.Context, url string, opts Options) (*Guard, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	config, err := poolConfig(url, opts)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	g := &Guard{pool: pool, opts: opts}
	g.schema = newReadiness(func(ctx context.Context) error { return install(ctx, pool) })
	g.schema.start() //nolint:contextcheck // the installation outlives Open: it ends with Close
	return g, nil
}

// Close ends the connections. It waits for running calls.
func (g *Guard) Close() error {
	g.schema.close()
	g.pool.Close()
	return nil
}

const attemptSQL = `SELECT compared, version, value FROM fencing._attempt($1, $2, $3, $4, $5)`

// Claim raises the mark; see fencing.Guard.
func (g *Guard) Claim(ctx context.Context, resource string, token fencing.Token) (fencing.Record, error) {
	return g.attempt(ctx, fencing.KindClaim, resource, token, nil)
}

// Write raises the mark and replaces the value; see fencing.Guard.
func (g *Guard) Write(ctx context.Context, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
	if !json.Valid(value) {
		return fencing.Record{}, fencing.ErrMalformedValue
	}
	return g.attempt(ctx, fencing.KindWrite, resource, token, value)
}

// Delete removes the value; see fencing.Guard.
func (g *Guard) Delete(ctx context.Context, resource string, token fencing.Token) (fencing.Record, error) {
	return g.attempt(ctx, fencing.KindWrite, resource, token, nil)
}

func (g *Guard) attempt(ctx context.Context, kind fencing.AttemptKind, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
	if err := fencing.CheckClaim(resource, token); err != nil {
		return fencing.Record{}, err
	}
	var compared fencing.Token
	record := fencing.Record{Resource: resource, Mark: token, Value: value}
	err := g.call(ctx, g.opts.CallTimeout, func(ctx context.Context) error {
		var read []byte
		row := g.pool.QueryRow(ctx, attemptSQL, resource, int64(token), string(kind), value, g.opts.HistoryKept)
		if err := row.Scan(&compared, &record.Version, &read); err != nil {
			return err
		}
		if kind == fencing.KindClaim {
			record.Value = read
		}
		return nil
	})
	if err != nil {
		return fencing.Record{}, err
	}
	if compared > token {
		return fencing.Record{}, &fencing.StaleTokenError{Resource: resource, Presented: token, Highest: compared}
	}
	return record, nil
}

const readSQL = `
SELECT m.mark, coalesce(r.version, 0), r.value
  FROM fencing.marks m LEFT JOIN fencing.records r USING (resource)
 WHERE m.resource = $1`

// Read returns the record as it is; see fencing.Guard. A resource that was claimed only in SQL has a mark and
// no value.
func (g *Guard) Read(ctx context.Context, resource string) (fencing.Record, error) {
	record := fencing.Record{Resource: resource}
	if fencing.CheckResource(resource) != nil {
		return record, fencing.ErrNotFound // such a name cannot have been claimed, and Postgres may not accept it as text
	}
	err := g.call(ctx, g.opts.CallTimeout, func(ctx context.Context) error {
		var value []byte
		err := g.pool.QueryRow(ctx, readSQL, resource).Scan(&record.Mark, &record.Version, &value)
		record.Value = value
		return err
	})
	if err != nil {
		return fencing.Record{}, err
	}
	return record, nil
}

const listSQL = `
SELECT r.resource, m.mark, r.version
  FROM fencing.records r JOIN fencing.marks m USING (resource)
 WHERE r.resource > $1 AND r.resource BETWEEN $2 AND $3
 ORDER BY r.resource LIMIT $4`

// Records returns records without their values; see fencing.Guard. It omits resources that were claimed only
// in SQL.
func (g *Guard) Records(ctx context.Context, prefix, after string, limit int) (records []fencing.Record, err error) {
	err = g.call(ctx, g.opts.CallTimeout, func(ctx context.Context) error {
		rows, err := g.pool.Query(ctx, listSQL, after, prefix, fencing.LastOfPrefix(prefix), max(0, limit))
		if err != nil {
			return err
		}
		records, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r fencing.Record, err error) {
			err = row.Scan(&r.Resource, &r.Mark, &r.Version)
			return r, err
		})
		return err
	})
	return records, err
}

const historySQL = `
SELECT token, compared, kind, compared <= token, version, at
  FROM fencing.attempts WHERE resource = $1 ORDER BY seq DESC LIMIT $2`

// History returns the newest attempts first; see fencing.Guard.
func (g *Guard) History(ctx context.Context, resource string, limit int) ([]fencing.Attempt, error) {
	// Read the record first: a resource that was claimed only in SQL has an empty history, and an unknown
	// resource is an error.
	if _, err := g.Read(ctx, resource); err != nil {
		return nil, err
	}
	var attempts []fencing.Attempt
	err := g.call(ctx, g.opts.CallTimeout, func(ctx context.Context) error {
		rows, err := g.pool.Query(ctx, historySQL, resource, max(0, limit))
		if err != nil {
			return err
		}
		attempts, err = pgx.CollectRows(rows, scanAttempt)
		return err
	})
	return attempts, err
}

func scanAttempt(row pgx.CollectableRow) (a fencing.Attempt, err error) {
	err = row.Scan(&a.Token, &a.Highest, &a.Kind, &a.Accepted, &a.Version, &a.At)
	a.At = a.At.UTC()
	return a, err
}

// HighestMark returns the largest mark of all, those of protected tables
// included; see fencing.Guard. It reads every mark, and may take up to 30 s.
func (g *Guard) HighestMark(ctx context.Context) (fencing.Token, error) {
	var highest fencing.Token
	err := g.call(ctx, highestTimeout, func(ctx context.Context) error {
		return g.pool.QueryRow(ctx, `SELECT coalesce(max(mark), 0) FROM fencing.marks`).Scan(&highest)
	})
	return highest, err
}

// Usage reads every record, as HighestMark does; see fencing.Guard. Values count with their compressed size.
func (g *Guard) Usage(ctx context.Context) (usage fencing.Usage, err error) {
	err = g.call(ctx, highestTimeout, func(ctx context.Context) error {
		return g.pool.QueryRow(ctx, `SELECT count(*), coalesce(sum(pg_column_size(value)), 0) FROM fencing.records`).Scan(&usage.Records, &usage.Bytes)
	})
	return usage, err
}

// tries is how often a statement is run if it fails without any effect.
const tries = 4

// call waits for the schema and runs one statement under a time limit. It repeats a statement that failed
// without effect. It returns only errors that fencing.Guard lists.
func (g *Guard) call(ctx context.Context, limit time.Duration, run func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := g.schema.wait(limited, g.opts.CallTimeout); err != nil {
		return explain(ctx, err)
	}
	err := run(limited)
	for try := 1; try < tries && hadNoEffect(err) && limited.Err() == nil; try++ {
		err = run(limited)
	}
	if schemaGone(err) {
		g.schema.lost()
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return fencing.ErrNotFound
	}
	return explain(ctx, err)
}
