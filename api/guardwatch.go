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

// guardChecker is a Guard that knows a better check than to read a record.
type guardChecker interface {
	// Check returns nil if the guard can take a write now. Errors: ErrGuardUnavailable.
	Check(ctx context.Context) error
}

// guardWatch knows whether the guard takes writes. A failed request shows that it does
// not; only a check shows that it does again, since a storage may still answer reads.
type guardWatch struct {
	guard  fencing.Guard
	counts *records
	logger *slog.Logger
	errors map[guardError]prometheus.Counter

	mu       sync.Mutex
	checked  bool
	failure  error // the last; nil while it is up
	since    time.Time
	failures int // since the last log line
	logged   time.Time
	told     bool // the last log line said that it is down
}

// guardError says, as a label, how a request to the guard failed.
type guardError string

const (
	guardTimedOut    guardError = "timeout"     // no answer in time
	guardRefused     guardError = "refused"     // the storage answered with an error
	guardUnreachable guardError = "unreachable" // no connection, or it broke
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

// newGuardWatch watches the guard, which may be nil: then it does nothing.
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
	err := w.call(ctx, func(ctx context.Context, guard fencing.Guard) error {
		if checker, ok := guard.(guardChecker); ok {
			return checker.Check(ctx)
		}
		_, err := guard.Read(ctx, "fencelock/check")
		return err
	})
	if ctx.Err() != nil || errors.Is(err, fencing.ErrGuardUnavailable) {
		return // call noted it
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.checked || w.failure != nil {
		w.checked, w.failure, w.since = true, nil, time.Now()
	}
	w.log()
}

// call runs op on the guard under a time limit of its own: a storage that hangs counts
// as unavailable.
func (w *guardWatch) call(ctx context.Context, op func(context.Context, fencing.Guard) error) error {
	limited, cancel := context.WithTimeout(ctx, guardTimeout)
	defer cancel()
	err := op(limited, w.guard)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("%w: no response within %s: %w", fencing.ErrGuardUnavailable, guardTimeout, err)
	}
	if errors.Is(err, fencing.ErrGuardUnavailable) && ctx.Err() == nil {
		w.failed(err)
	}
	return err
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

// log says what has changed, or how often it failed, at most once in guardLogPause; the
// next check says what was not said. w.mu is held.
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

// status is the part of /readyz; nil without a guard.
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
