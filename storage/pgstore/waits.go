package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// wait finds out, on a separate connection, what a transaction is waiting for: when the transaction's time is
// over, the server cancels it, and the cause would be lost.
type wait struct {
	timer *time.Timer
	mu    sync.Mutex
	why   string
}

// watch inspects the server process after half of the transaction's time.
func (s *Store) watch(ctx context.Context, pid uint32) *wait {
	w := &wait{}
	w.timer = time.AfterFunc(s.opts.Timeout/2, func() {
		ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout/2)
		defer cancel()
		why, err := s.whatFor(ctx, pid)
		if err != nil { // then the server itself does not respond
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.why = why
	})
	return w
}

// explain adds the result to the error of a transaction that ran out of time.
func (w *wait) explain(ctx context.Context, err error) error {
	w.timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil || w.why == "" || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	return &waitError{w.why, err}
}

// waitError says what a transaction waited for until its time was over.
type waitError struct {
	why string
	error
}

func (e *waitError) Error() string { return e.why + ": " + e.error.Error() }

func (e *waitError) Unwrap() error { return e.error }

// inTime replaces a plain timeout error: it says what the transaction waited for, or why the previous attempt
// failed.
func inTime(err, before error) error {
	switch {
	case !errors.Is(err, context.DeadlineExceeded), errors.As(err, new(*waitError)):
		return err
	case before != nil && !errors.Is(before, context.DeadlineExceeded):
		return before
	}
	return fmt.Errorf("no response in time: check that Postgres runs, and that this machine reaches it: %w", err)
}

// Of the blocking processes, the one with the longest transaction is named. A role without pg_read_all_stats
// sees only process, role and program of other roles' sessions.
const whatForSQL = `
SELECT coalesce(w.wait_event_type, ''), coalesce(w.wait_event, ''), cardinality(pg_blocking_pids(w.pid)),
       coalesce(b.pid, 0), coalesce(b.usename, ''), coalesce(b.application_name, ''), coalesce(b.state, ''),
       coalesce(extract(epoch FROM clock_timestamp() - b.xact_start), -1)::float8
  FROM pg_stat_activity AS w
  LEFT JOIN LATERAL (SELECT * FROM pg_stat_activity AS a WHERE a.pid = ANY (pg_blocking_pids(w.pid)) ORDER BY a.xact_start LIMIT 1) AS b ON true
 WHERE w.pid = $1`

// whatFor says what a server process waits for, or "" if that is unknown.
func (s *Store) whatFor(ctx context.Context, pid uint32) (string, error) {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return "", err
	}
	defer s.hangUp(ctx, conn)
	var kind, event string
	var blockers int
	var b blocker
	err = conn.QueryRow(ctx, whatForSQL, pid).Scan(&kind, &event, &blockers, &b.pid, &b.role, &b.program, &b.state, &b.seconds)
	switch {
	case err != nil:
		return "", err
	case b.pid != 0:
		return b.String(), nil
	case blockers > 0:
		return "it waits for a lock of a prepared transaction: see pg_prepared_xacts", nil
	case event == "SyncRep":
		return "its commit waits for a standby that synchronous_standby_names asks for: start that standby, or take it out of the setting", nil
	case kind != "" && kind != "Client":
		return fmt.Sprintf("the server waits for %s (%s)", event, kind), nil
	}
	return "", nil
}

// blocker is a server process that holds a lock.
type blocker struct {
	pid                  int32
	role, program, state string
	seconds              float64 // of its transaction; negative if not visible
}

func (b blocker) String() string {
	who := []string{fmt.Sprintf("role %q", b.role)}
	if b.program != "" {
		who = append(who, fmt.Sprintf("program %q", b.program))
	}
	if b.state != "" {
		who = append(who, b.state)
	}
	if b.seconds >= 0 {
		who = append(who, fmt.Sprintf("its transaction is %.0f s old", b.seconds))
	}
	return fmt.Sprintf("it waits for a lock of process %d (%s): end that transaction, if need be with SELECT pg_terminate_backend(%d)",
		b.pid, strings.Join(who, ", "), b.pid)
}
