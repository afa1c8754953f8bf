package mysqlguard

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// Guard is a fencing.Guard in MariaDB. Every method is one round trip. Guard creates its schema when it first
// reaches the server, and again if the schema is missing later.
type Guard struct {
	db     *sql.DB
	opts   Options
	schema *ready
}

var _ fencing.Guard = (*Guard)(nil)

// Open returns a Guard at once, even if MariaDB does not respond. Until it does, the methods return
// fencing.ErrGuardUnavailable, and each call tries again. Open fails only for a malformed URL or bad options,
// and its error never contains the URL.
func Open(url string, opts Options) (*Guard, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	db, err := open(url, opts)
	if err != nil {
		return nil, err
	}
	schema := newReady(func(ctx context.Context) error { return install(ctx, db) })
	return &Guard{db: db, opts: opts, schema: schema}, nil
}

// Close ends an installation and the connections. It waits for running calls.
func (g *Guard) Close() error {
	g.schema.close()
	return g.db.Close()
}

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
		row := g.db.QueryRowContext(ctx, `CALL fencing_attempt(?, ?, ?, ?, ?)`, resource, int64(token), string(kind), []byte(value), g.opts.HistoryKept)
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

// Read returns the record; see fencing.Guard.
func (g *Guard) Read(ctx context.Context, resource string) (fencing.Record, error) {
	if err := fencing.CheckResource(resource); err != nil {
		return fencing.Record{}, err
	}
	record := fencing.Record{Resource: resource}
	err := g.call(ctx, g.opts.CallTimeout, func(ctx context.Context) error {
		var value []byte
		err := g.db.QueryRowContext(ctx, `SELECT mark, value, version FROM fencing_records JOIN fencing_marks USING (resource) WHERE resource = ?`, resource).
			Scan(&record.Mark, &value, &record.Version)
		record.Value = value
		return err
	})
	if err != nil {
		return fencing.Record{}, err
	}
	return record, nil
}

const listSQL = `
SELECT resource, mark, version FROM fencing_records JOIN fencing_marks USING (resource)
 WHERE resource > ? AND resource BETWEEN ? AND ? ORDER BY resource LIMIT ?`

// Records returns records without their values; see fencing.Guard.
func (g *Guard) Records(ctx context.Context, prefix, after string, limit int) (records []fencing.Record, err error) {
	err = g.call(ctx, g.opts.CallTimeout, func(ctx context.Context) error {
		records, err = g.list(ctx, prefix, after, max(0, limit))
		return err
	})
	return records, err
}

func (g *Guard) list(ctx context.Context, prefix, after string, limit int) (records []fencing.Record, err error) {
	rows, err := g.db.QueryContext(ctx, listSQL, after, prefix, fencing.LastOfPrefix(prefix), limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var r fencing.Record
		if err := rows.Scan(&r.Resource, &r.Mark, &r.Version); err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, rows.Err()
}

// The left join distinguishes a record without kept attempts from a missing record.
const historySQL = `
SELECT a.token, a.compared, a.kind, a.compared <= a.token, a.version, a.at
  FROM fencing_records AS r LEFT JOIN fencing_attempts AS a USING (resource)
 WHERE r.resource = ? ORDER BY a.seq DESC LIMIT ?`

// History returns the newest attempts first; see fencing.Guard.
func (g *Guard) History(ctx context.Context, resource string, limit int) (attempts []fencing.Attempt, err error) {
	if err := fencing.CheckResource(resource); err != nil {
		return nil, err
	}
	err = g.call(ctx, g.opts.CallTimeout, func(ctx context.Context) error {
		attempts, err = g.history(ctx, resource, max(limit, 1))
		return err
	})
	return attempts[:min(max(limit, 0), len(attempts))], err
}

func (g *Guard) history(ctx context.Context, resource string, limit int) (attempts []fencing.Attempt, err error) {
	rows, err := g.db.QueryContext(ctx, historySQL, resource, limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var a fencing.Attempt
		if err := rows.Scan(&a.Token, &a.Highest, &a.Kind, &a.Accepted, &a.Version, &a.At); err != nil {
			return nil, err
		}
		attempts = append(attempts, a)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(attempts) == 0 {
		return nil, sql.ErrNoRows
	}
	return attempts, nil
}

// HighestMark returns the largest mark of all, those of protected tables included; see
// fencing.Guard. It reads every mark, and may take up to 30 s.
func (g *Guard) HighestMark(ctx context.Context) (fencing.Token, error) {
	var highest fencing.Token
	err := g.call(ctx, highestTimeout, func(ctx context.Context) error {
		return g.db.QueryRowContext(ctx, `SELECT IFNULL(MAX(mark), 0) FROM fencing_marks`).Scan(&highest)
	})
	return highest, err
}

// Usage reads every record, as HighestMark does; see fencing.Guard.
func (g *Guard) Usage(ctx context.Context) (usage fencing.Usage, err error) {
	err = g.call(ctx, highestTimeout, func(ctx context.Context) error {
		return g.db.QueryRowContext(ctx, `SELECT COUNT(*), CAST(IFNULL(SUM(LENGTH(value)), 0) AS SIGNED) FROM fencing_records`).Scan(&usage.Records, &usage.Bytes)
	})
	return usage, err
}

// Refused returns how many stale claims the guard has refused in transactions of applications.
func (g *Guard) Refused(ctx context.Context) (refused int64, err error) {
	err = g.call(ctx, g.opts.CallTimeout, func(ctx context.Context) error {
		return g.db.QueryRowContext(ctx, refusedSQL).Scan(&refused)
	})
	return refused, err
}

// Check returns nil if the guard is installed and its database takes writes. Errors:
// fencing.ErrGuardUnavailable; ctx's.
func (g *Guard) Check(ctx context.Context) error {
	return g.call(ctx, g.opts.CallTimeout, func(ctx context.Context) error {
		var standby bool
		err := g.db.QueryRowContext(ctx, `SELECT @@GLOBAL.read_only FROM fencing_version LIMIT 1`).Scan(&standby)
		if err == nil && standby {
			err = errors.New("the MariaDB is read_only")
		}
		return err
	})
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
	if err := g.schema.ensure(limited); err != nil {
		return explain(ctx, err)
	}
	err := run(limited)
	for try := 1; try < tries && MayRetry(err) && limited.Err() == nil; try++ {
		err = run(limited)
	}
	if schemaGone(err) {
		g.schema.done.Store(false) // the next call creates it again
	}
	if errors.Is(err, sql.ErrNoRows) {
		return fencing.ErrNotFound
	}
	return explain(ctx, err)
}

// ready runs the installation until it has succeeded once, one attempt at a time, while the callers wait. An
// attempt continues when its first caller has run out of time. Otherwise, on a slow server, each call would
// cut the installation off and begin again.
type ready struct {
	install func(context.Context) error
	ctx     context.Context // ends with close
	stop    context.CancelFunc
	done    atomic.Bool
	turn    chan struct{} // full while an installation runs
}

func newReady(install func(context.Context) error) *ready {
	ctx, stop := context.WithCancel(context.Background())
	return &ready{install: install, ctx: ctx, stop: stop, turn: make(chan struct{}, 1)}
}

// ensure returns nil after an installation has succeeded. If none succeeds before ctx ends, it returns why.
func (r *ready) ensure(ctx context.Context) error {
	if r.done.Load() {
		return nil
	}
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return installing(ctx)
	}
	ended := make(chan error, 1)
	go r.run(ended) //nolint:contextcheck // it serves every caller, and outlives this one
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return installing(ctx)
	}
}

func installing(ctx context.Context) error {
	return fmt.Errorf("the guard is being installed: %w", ctx.Err())
}

// run installs once. Its caller has taken the turn; run gives it back.
func (r *ready) run(ended chan<- error) {
	defer func() { <-r.turn }()
	if r.done.Load() { // the previous turn succeeded
		ended <- nil
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx, installTimeout)
	defer cancel()
	err := r.install(ctx)
	r.done.Store(err == nil)
	ended <- err
}

// close ends an installation, and waits until it has stopped.
func (r *ready) close() {
	r.stop()
	r.turn <- struct{}{}
	<-r.turn
}
