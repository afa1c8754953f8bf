package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

const (
	guardCheckPause = 5 * time.Second  // between two checks of the guard
	guardLogPause   = 10 * time.Second // between two log lines about the guard
)

// guardChecker is a Guard that has a better check than reading a record.
type guardChecker interface {
	// Check returns nil if the guard can accept a write now. Errors: ErrGuardUnavailable.
	Check(ctx context.Context) error
}

// guardWatch knows whether the guard accepts writes. A failed request shows that it does not. Only a check
// shows that it does again, because a storage may serve reads while it refuses writes.
type guardWatch struct {
	guard  fencing.Guard
	counts *records
	logger *slog.Logger
	errors map[guardError]prometheus.Counter

	mu       sync.Mutex
	checked  bool
	failure  error // the last failure; nil while the guard works
	since    time.Time
	failures int // failures since the last log line
	logged   time.Time
	told     bool // the last log line reported a failure
}

// guardError labels how a request to the guard failed.
type guardError string

const (
	guardTimedOut    guardError = "timeout"     // no response in time
	guardRefused     guardError = "refused"     // the storage returned an error
	guardUnreachable guardError = "unreachable" // there was no connection, or it broke
)

func guardErrorOf(err error) guardError {
	var coded interface{ SQLState() string }
	switch {
	case errors.As(err, &coded):
		return guardRefused
	case errors.Is(err, context.DeadlineExceeded):
		return guardTimedOut
	}
	return guardUnreachable
}

// newGuardWatch watches the guard. If guard is nil, it does nothing.
func newGuardWatch(guard fencing.Guard, counts *records, registry prometheus.Registerer, logger *slog.Logger) *guardWatch {
	w := &guardWatch{guard: guard, counts: counts, logger: logger, since: time.Now()}
	if guard == nil {
		return w
	}
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fencelock_guard_errors_total",
		Help: "Requests and checks that failed in the storage of the guarded records, by kind.",
	}, []string{"kind"})
	w.errors = resolved(failed, []guardError{guardTimedOut, guardRefused, guardUnreachable})
	registry.MustRegister(failed, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fencelock_guard_up",
		Help: "1 while the storage of the guarded records takes writes, as this server's last check and requests saw it.",
	}, w.up))
	return w
}

// run checks the guard until ctx ends.
func (w *guardWatch) run(ctx context.Context) {
	if w.guard == nil {
		return
	}
	tick := time.NewTicker(guardCheckPause)
	defer tick.Stop()
	for {
		w.check(ctx)
		w.counts.count(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (w *guardWatch) check(ctx context.Context) {
	limited, end, err := w.begin(ctx)
	if err != nil {
		return
	}
	if checker, ok := w.guard.(guardChecker); ok {
		err = checker.Check(limited)
	} else {
		_, err = w.guard.Read(limited, "fencelock/check")
	}
	if err = end(err); ctx.Err() != nil || errors.Is(err, fencing.ErrGuardUnavailable) {
		return // end recorded it
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.checked || w.failure != nil {
		w.checked, w.failure, w.since = true, nil, time.Now()
	}
	w.log()
}

// begin starts a request to the guard, with a time limit of its own, so that a storage that hangs counts as
// unavailable. Call end with the request's error: it records a failure, and returns the error for the
// caller. Errors: errNoGuard.
func (w *guardWatch) begin(ctx context.Context) (limited context.Context, end func(error) error, err error) {
	if w.guard == nil {
		return nil, nil, errNoGuard
	}
	limited, cancel := context.WithTimeout(ctx, guardTimeout)
	return limited, func(err error) error {
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("%w: no response within %s: %w", fencing.ErrGuardUnavailable, guardTimeout, err)
		}
		if errors.Is(err, fencing.ErrGuardUnavailable) && ctx.Err() == nil {
			w.failed(err)
		}
		return err
	}, nil
}

func (w *guardWatch) failed(err error) {
	w.errors[guardErrorOf(err)].Inc()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.checked || w.failure == nil {
		w.checked, w.since = true, time.Now()
	}
	w.failure = err
	w.failures++
	w.log()
}

// log reports a change, or the number of failures, at most once in guardLogPause. What it leaves out, it
// reports after the next check. The caller holds w.mu.
func (w *guardWatch) log() {
	now := time.Now()
	if !w.logged.IsZero() && now.Sub(w.logged) < guardLogPause {
		return
	}
	switch {
	case w.failure != nil && w.failures > 0:
		w.logger.Warn("guarded records are not served, since their storage fails; locks are not affected",
			slog.Int("failures", w.failures), slog.Any("error", w.failure))
	case w.failure == nil && w.told:
		w.logger.Info("guarded records are served again", slog.Int("failures", w.failures))
	default:
		return
	}
	w.logged, w.told, w.failures = now, w.failure != nil, 0
}

func (w *guardWatch) up() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.checked && w.failure == nil {
		return 1
	}
	return 0
}

// status returns the guard's part of /readyz; nil without a guard.
func (w *guardWatch) status() *wire.GuardState {
	if w.guard == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	state := &wire.GuardState{Ready: w.checked && w.failure == nil, SinceMS: millisDown(time.Since(w.since))}
	switch {
	case !w.checked:
		state.Reason = "not checked yet"
	case w.failure != nil:
		state.Reason = w.failure.Error()
	}
	return state
}
