package pgstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
)

// Options tune a Store. The zero value of a field takes its default.
type Options struct {
	// Timeout bounds a transaction whose context has no deadline, and an attempt to
	// connect; default 2s.
	Timeout time.Duration
	// Idle is how long a server that stopped in the middle of a transaction may block the others; default 1s.
	Idle time.Duration
	// Patience is how long Open waits for a server that is unreachable or just starting; default 10s.
	Patience time.Duration
	// Credentials, if not nil, returns the user and the password of each new connection, instead of
	// those of the URL; "" for the URL's. It is called from several goroutines and must not block.
	Credentials func() (user, password string)

	sweep     sweeping
	reinstall time.Duration   // how long the schema must be missing before it is created again
	unsafe    bool            // fsync may be off, for tests
	dial      pgconn.DialFunc // for tests; default as pgx does
}

const (
	defaultTimeout = 2 * time.Second
	defaultIdle    = time.Second
	// defaultReinstall leaves a restore that begins with a deletion enough time to create the schema.
	defaultReinstall = 10 * time.Second
	defaultPatience  = 10 * time.Second
	retryPause       = 50 * time.Millisecond
	maxConns         = 4
	connName         = "fencelock"
)

func (o Options) withDefaults() Options {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Idle = cmp.Or(o.Idle, defaultIdle)
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	o.reinstall = cmp.Or(o.reinstall, defaultReinstall)
	o.sweep.page = cmp.Or(o.sweep.page, 2000)
	o.sweep.pause = cmp.Or(o.sweep.pause, 250*time.Millisecond)
	o.sweep.rest = cmp.Or(o.sweep.rest, 2*time.Second)
	return o
}

// Store is a replica.Store in PostgreSQL. Several Stores, also in other processes, may share a database.
type Store struct {
	local replica.Listeners // of this process

	pool   *pgxpool.Pool
	opts   Options
	mirror *mirror
	gone   gone

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	done sync.WaitGroup
}

var _ replica.Store = (*Store)(nil)

// Open connects, creates the schema "fencelock" if it is missing, and starts to sweep. The role needs CREATE
// on the database the first time. The error says what to do, and never contains the URL. Open changes nothing
// if the server is unfit, for example a standby.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	config, err := poolConfig(url, opts)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	s := &Store{pool: pool, opts: opts, mirror: newMirror()}
	if err := s.prepare(ctx); err != nil {
		pool.Close()
		if passing(err) {
			err = &replica.UnreachedError{Err: err}
		}
		return nil, err
	}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.done.Go(s.sweep)
	return s, nil
}

// errMalformedURL omits the URL on purpose, because it contains a password.
var errMalformedURL = errors.New("the URL is not valid; it should look like postgres://user:password@host:5432/database?sslmode=verify-full")

// poolConfig reads the URL. It does not connect.
func poolConfig(url string, opts Options) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errMalformedURL
	}
	if !strings.Contains(url, "pool_max_conns") {
		config.MaxConns = maxConns
	}
	config.MinConns, config.MinIdleConns = 0, 0
	conn := config.ConnConfig
	if opts.dial != nil {
		conn.DialFunc = opts.dial
	}
	if t := conn.ConnectTimeout; t <= 0 || t > opts.Timeout {
		conn.ConnectTimeout = opts.Timeout
	}
	if conn.RuntimeParams["application_name"] == "" {
		conn.RuntimeParams["application_name"] = connName
	}
	conn.DefaultQueryExecMode = pgx.QueryExecModeExec // works through a pooler
	config.AfterConnect = prepareOn
	config.BeforeConnect = opts.logIn
	return config, nil
}

// prepare waits for the server. It refuses an unfit server before it changes anything.
func (s *Store) prepare(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, s.opts.Patience)
	defer cancel()
	err := s.until(patient, func(ctx context.Context) error {
		if err := s.mayInstall(ctx); err != nil {
			return err
		}
		return install(ctx, s.pool)
	})
	if err != nil {
		return hinted(err)
	}
	return s.View(ctx, func(tx replica.Tx) error {
		if unfit := tx.Status().Unfit; unfit != "" {
			return &unfitError{unfit}
		}
		return nil
	})
}

// mayInstall refuses a standby, which cannot be written, and a pooler that splits transactions, before the
// script would fail.
func (s *Store) mayInstall(ctx context.Context) error {
	var standby, readOnly bool
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		row := tx.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on'`)
		return row.Scan(&standby, &readOnly)
	})
	switch {
	case err != nil && strings.Contains(err.Error(), "statement pooling mode"):
		return &unfitError{"a pooler in statement mode is in front of it: set pool_mode = transaction or session, or connect to the server itself"}
	case err != nil:
		return err
	case standby:
		return &unfitError{"it is a standby: name the primary, or all hosts with target_session_attrs=primary"}
	case readOnly:
		return &unfitError{"its transactions are read-only: set default_transaction_read_only = off for the role and the database"}
	}
	return nil
}

// Young reports whether the server was never promoted and never restored to a point in time. Then an empty
// store was always empty.
func (s *Store) Young() bool {
	return strings.HasPrefix(s.mirror.lastIncarnation(), "00000001/")
}

// Place names the database and the URL's first host.
func (s *Store) Place() string {
	c := s.pool.Config().ConnConfig
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))) + "/" + c.Database
}

// Close ends the sweeping and closes the connections.
func (s *Store) Close() error {
	s.stop()
	s.done.Wait()
	s.pool.Close()
	return nil
}

// Update runs fn in a transaction that writes; see replica.Store.
func (s *Store) Update(ctx context.Context, fn func(replica.Tx) error) error {
	return s.transact(ctx, func(ctx context.Context) error { return s.update(ctx, fn) })
}

// View runs fn on a snapshot; see replica.Store.
func (s *Store) View(ctx context.Context, fn func(replica.Tx) error) error {
	return s.transact(ctx, func(ctx context.Context) error { return s.view(ctx, fn) })
}

func (s *Store) transact(ctx context.Context, run func(context.Context) error) error {
	limited, cancel := replica.Limit(ctx, s.opts.Timeout)
	defer cancel()
	return s.missing(ctx, s.until(limited, run))
}

// until repeats run while it fails without effect for a temporary reason, until ctx ends.
func (s *Store) until(ctx context.Context, run func(context.Context) error) error {
	var before error
	for {
		err := run(ctx)
		if failed, ok := errors.AsType[*fnError](err); ok {
			return failed.error
		}
		if !passing(err) {
			return inTime(err, nil)
		}
		if !pause.For(ctx, retryPause) {
			return inTime(err, before)
		}
		before = err
	}
}

// commitError is an error of the commit itself, which may have taken effect.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }

// uncertain classifies the error of a statement that commits by itself. The statement had no effect if it was
// not sent, or if the server refused it and the connection is still alive.
func uncertain(err error) error {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if err == nil || errors.As(err, new(*connectError)) || ok && refused.SeverityUnlocalized == "ERROR" {
		return err
	}
	return commitFailed(err)
}

func commitFailed(err error) error { return &commitError{fmt.Errorf("commit: %w", err)} }

// connectError is an error from before anything was sent.
type connectError struct{ error }

func (e *connectError) Unwrap() error { return e.error }

// fnError is an error of the transaction's function.
type fnError struct{ error }

func ofFn(err error) error {
	if err == nil {
		return nil
	}
	return &fnError{err}
}

// with runs do on a connection. It closes a connection that is left in the middle of a transaction, which
// undoes the transaction. It also closes a connection on which anything failed, with its prepared statements.
func (s *Store) with(ctx context.Context, do func(*pgconn.PgConn) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return &connectError{err}
	}
	defer conn.Release()
	server := conn.Conn().PgConn()
	waiting := s.watch(ctx, server.PID())
	err = waiting.explain(ctx, do(server))
	if err != nil && !errors.As(err, new(*fnError)) {
		s.hangUp(ctx, conn.Conn())
	}
	return err
}

func (s *Store) idle() string { return strconv.FormatInt(s.opts.Idle.Milliseconds(), 10) }

// update tries in one round trip. It takes two or more if another process has written, or if rows exist that
// were assumed absent.
func (s *Store) update(ctx context.Context, fn func(replica.Tx) error) error {
	d := s.mirror.run(fn, s.fit)
	if d.sure {
		if done, err := s.writeIf(ctx, d); done || err != nil {
			return err
		}
	}
	return s.with(ctx, func(conn *pgconn.PgConn) error {
		r := newReading(newKnown(), d.guess.wanted(), 0)
		if err := s.open(ctx, conn, r, statement{sql: beginWrite}, r.open(true, s.idle())); err != nil {
			return err
		}
		t, err := s.finish(ctx, conn, r, fn)
		if err != nil {
			_ = roundTrip(ctx, conn, statement{sql: rollbackSQL}) // otherwise the connection is closed
			return err
		}
		if err := s.commit(ctx, conn, t); err != nil {
			return err
		}
		t.Settle(r.now)
		s.mirror.opened(r, t)
		return nil
	})
}

// open makes the round trip that begins a transaction.
func (s *Store) open(ctx context.Context, conn *pgconn.PgConn, r *reading, statements ...statement) error {
	asked := time.Now()
	if err := roundTrip(ctx, conn, statements...); err != nil {
		return err
	}
	s.mirror.saw(clock{said: r.now, asked: asked, answered: time.Now()}, r.status.Incarnation)
	return nil
}

// What fencelock._write_if returns in place of the time.
const (
	othersWrote = -1
	notAbsent   = -2
)

// writeIf commits a draft, if its assumptions still hold.
func (s *Store) writeIf(ctx context.Context, d *draft) (done bool, err error) {
	var said int64
	write := writeIf(d, s.others(d.Tx), func(values [][]byte) error {
		if len(values) != 1 || len(values[0]) != 8 {
			return errMalformed
		}
		said = int64(binary.BigEndian.Uint64(values[0]))
		return nil
	})
	asked := time.Now()
	err = s.with(ctx, func(conn *pgconn.PgConn) error {
		asked = time.Now()
		return roundTrip(ctx, conn, write)
	})
	switch {
	case err != nil || said == othersWrote:
		s.mirror.forget()
		return false, uncertain(err)
	case said == notAbsent: // all else was true
		return false, nil
	}
	d.Settle(said)
	s.mirror.wrote(d, clock{said: said, asked: asked, answered: time.Now()})
	s.local.Notify(d.Wakes)
	return true, nil
}

// finish runs fn until all rows that it needs are read.
func (s *Store) finish(ctx context.Context, conn *pgconn.PgConn, r *reading, fn func(replica.Tx) error) (*overlay.Tx, error) {
	opened := r
	for round := 1; ; round++ {
		r.end()
		t := overlay.New(r.read, opened.now, s.fit(opened.status))
		err := fn(t)
		if t.Missing.Nothing() {
			return t, ofFn(err)
		}
		r = newReading(r.read, &t.Missing, round)
		if err := roundTrip(ctx, conn, r.more(opened.now)); err != nil {
			return nil, err
		}
	}
}

func (s *Store) fit(status replica.Status) replica.Status {
	if s.opts.unsafe && strings.HasPrefix(status.Unfit, "fsync is off") {
		status.Unfit = ""
	}
	return status
}

// commit writes what the transaction changed.
func (s *Store) commit(ctx context.Context, conn *pgconn.PgConn, t *overlay.Tx) error {
	changed := t.Changes()
	if changed.Nothing() {
		return roundTrip(ctx, conn, statement{sql: commitSQL})
	}
	if err := roundTrip(ctx, conn, write(&changed, t.Now(), s.others(t)), statement{sql: commitSQL}); err != nil {
		s.mirror.forget()
		return commitFailed(err)
	}
	s.local.Notify(t.Wakes)
	return nil
}

// others returns the wakes for listeners of other processes: the listeners of this process need no
// notification through the server.
func (s *Store) others(t *overlay.Tx) []replica.Wake {
	return slices.DeleteFunc(slices.Clone(t.Wakes), func(w replica.Wake) bool { return s.local.Has(w.Ticket.Server) })
}

// view tries in one round trip. If the guess was wrong, a second transaction reads in further round trips.
func (s *Store) view(ctx context.Context, fn func(replica.Tx) error) error {
	wanted := s.mirror.run(fn, s.fit).guess.wanted()
	return s.with(ctx, func(conn *pgconn.PgConn) error {
		r := newReading(newKnown(), wanted, 0)
		err := s.open(ctx, conn, r, statement{sql: beginRead}, r.open(false, s.idle()), statement{sql: commitSQL})
		if err != nil {
			return err
		}
		r.end()
		t := overlay.New(r.read, r.now, s.fit(r.status))
		if err := fn(t); t.Missing.Nothing() {
			return ofFn(err)
		}
		return s.viewSlowly(ctx, conn, r, t, fn)
	})
}

func (s *Store) viewSlowly(ctx context.Context, conn *pgconn.PgConn, before *reading, t *overlay.Tx, fn func(replica.Tx) error) error {
	for _, key := range before.keys {
		t.Missing.Keys[key] = struct{}{}
	}
	t.Missing.Ranges = append(t.Missing.Ranges, before.ranges...)
	r := newReading(newKnown(), &t.Missing, 1)
	if err := s.open(ctx, conn, r, statement{sql: beginRead}, r.open(false, s.idle())); err != nil {
		return err
	}
	t, err := s.finish(ctx, conn, r, fn)
	if t != nil {
		_ = roundTrip(ctx, conn, statement{sql: commitSQL}) // otherwise the connection is closed
	}
	return err
}
