package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// databaseError is an error of a database, as drivers have it.
type databaseError struct{}

func (databaseError) Error() string    { return "ERROR: no such thing at db.internal" }
func (databaseError) SQLState() string { return "42501" }

// failingGuard is a server whose guard fails as the test says, on a clock of its own.
type failingGuard struct {
	t        *testing.T
	server   *api.Server
	log      logBuffer
	registry *prometheus.Registry
	reads    atomic.Pointer[error] // of checks, too
	writes   atomic.Pointer[error]
}

func newFailingGuard(t *testing.T, change ...func(*api.Options)) *failingGuard {
	t.Helper()
	f := &failingGuard{t: t, registry: prometheus.NewRegistry()}
	f.fails(&f.reads, nil)
	f.fails(&f.writes, nil)
	service := &fake{t: t, status: func() lockcore.ClusterStatus { return lockcore.ClusterStatus{Ready: true, Quorum: 1, Voting: 1} }}
	service.read = func(string) (fencing.Record, error) {
		if err := *f.reads.Load(); err != nil {
			return fencing.Record{}, err
		}
		return fencing.Record{}, fencing.ErrNotFound
	}
	service.write = func(context.Context, string, fencing.Token, json.RawMessage) (fencing.Record, error) {
		return fencing.Record{Mark: 1}, *f.writes.Load()
	}
	opts := api.Options{
		Service: service, Guard: service, Metrics: f.registry, Events: events.NewHub(),
		Logger: slog.New(slog.NewJSONHandler(&f.log, nil)),
	}
	for _, c := range change {
		c(&opts)
	}
	f.server = api.New(opts)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { f.server.Run(ctx); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
	return f
}

func (f *failingGuard) fails(what *atomic.Pointer[error], err error) { what.Store(&err) }

func (f *failingGuard) write(status int) {
	f.t.Helper()
	r := httptest.NewRequestWithContext(f.t.Context(), http.MethodPut, "/guarded/a", strings.NewReader("1"))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Fencing-Token", "1")
	w := httptest.NewRecorder()
	f.server.ServeHTTP(w, r)
	want(f.t, "status of a write", w.Code, status)
}

func (f *failingGuard) ready() wire.Ready {
	f.t.Helper()
	w := httptest.NewRecorder()
	f.server.ServeHTTP(w, httptest.NewRequestWithContext(f.t.Context(), http.MethodGet, "/readyz", http.NoBody))
	var ready wire.Ready
	if err := json.Unmarshal(w.Body.Bytes(), &ready); err != nil || w.Code != http.StatusOK || !ready.Ready || ready.Guard == nil {
		f.t.Errorf("/readyz: %d %s", w.Code, w.Body)
		return wire.Ready{Guard: &wire.GuardState{}}
	}
	return ready
}

func (f *failingGuard) metrics(want string) {
	f.t.Helper()
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(want), "fencelock_guard_up", "fencelock_guard_errors_total"); err != nil {
		f.t.Error(err)
	}
}

func guardMetrics(up, refused, timeout, unreachable int) string {
	return fmt.Sprintf(`
# HELP fencelock_guard_errors_total Requests and checks that failed in the storage of the guarded records, by kind.
# TYPE fencelock_guard_errors_total counter
fencelock_guard_errors_total{kind="refused"} %d
fencelock_guard_errors_total{kind="timeout"} %d
fencelock_guard_errors_total{kind="unreachable"} %d
# HELP fencelock_guard_up 1 while the storage of the guarded records takes writes, as this server's last check and requests saw it.
# TYPE fencelock_guard_up gauge
fencelock_guard_up %d
`, refused, timeout, unreachable, up)
}

// A guard that fails is seen without a request, is logged at most once in ten seconds
// with a count, and never makes the server unready for locks.
func TestFailingGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailingGuard(t)
		synctest.Wait()
		f.metrics(guardMetrics(1, 0, 0, 0))
		want(t, "ready", f.ready().Guard.Ready, true)
		want(t, "log", f.log.String(), "")

		refused := fmt.Errorf("%w: %w", fencing.ErrGuardUnavailable, databaseError{})
		f.fails(&f.reads, refused)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if g := f.ready().Guard; g.Ready || !strings.Contains(g.Reason, "no such thing") {
			t.Errorf("after a check that failed: %+v", g)
		}
		lines := func() int { return strings.Count(f.log.String(), "\n") }
		want(t, "log lines after a check that failed", lines(), 1)
		f.metrics(guardMetrics(0, 1, 0, 0))

		f.fails(&f.writes, refused)
		for range 20 {
			f.write(http.StatusServiceUnavailable)
		}
		want(t, "log lines of twenty writes within ten seconds", lines(), 1)
		f.metrics(guardMetrics(0, 21, 0, 0))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want(t, "log lines ten seconds later", lines(), 2)
		if log := f.log.String(); !strings.Contains(log, `"failures":22`) || !strings.Contains(log, "db.internal") {
			t.Errorf("the log has no count of the 20 writes and 2 checks: %s", log)
		}
		time.Sleep(time.Minute)
		if n := lines(); n < 6 || n > 9 {
			t.Errorf("%d log lines after a minute", n)
		}

		f.fails(&f.reads, nil)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		want(t, "ready again", *f.ready().Guard, wire.GuardState{Ready: true, SinceMS: f.ready().Guard.SinceMS})
		if log := f.log.String(); !strings.HasSuffix(log, "\n") || !strings.Contains(log[strings.LastIndex(log[:len(log)-1], "\n")+1:], "served again") {
			t.Errorf("the last line does not say that the records are served again: %s", log)
		}
		before := lines()

		// Reads succeed and writes fail: a check that succeeds and a write that does not
		// take turns, and the log still has a line in ten seconds.
		for range 60 {
			f.write(http.StatusServiceUnavailable)
			time.Sleep(time.Second)
		}
		if n := lines() - before; n < 3 || n > 7 {
			t.Errorf("%d log lines in a minute of writes that fail: %s", n, f.log.String())
		}
	})
}

func TestGuardErrorsByKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailingGuard(t)
		synctest.Wait()
		f.fails(&f.writes, fmt.Errorf("%w: %w", fencing.ErrGuardUnavailable, context.DeadlineExceeded))
		f.write(http.StatusServiceUnavailable)
		f.fails(&f.writes, context.DeadlineExceeded)
		f.write(http.StatusServiceUnavailable)
		f.fails(&f.writes, fmt.Errorf("%w: connection refused", fencing.ErrGuardUnavailable))
		f.write(http.StatusServiceUnavailable)
		f.fails(&f.writes, &fencing.StaleTokenError{Resource: "a", Presented: 1, Highest: 2}) // is not a failure
		f.write(http.StatusPreconditionFailed)
		f.metrics(guardMetrics(0, 0, 2, 1))
		time.Sleep(6 * time.Second)
		f.metrics(guardMetrics(1, 0, 2, 1))
	})
}

// The reason names machines and users, so without a name a caller does not get it.
func TestGuardReasonIsForAuthenticatedCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailingGuard(t, withAccess(t, line("w", "read=*")))
		f.fails(&f.reads, fmt.Errorf("%w: %w", fencing.ErrGuardUnavailable, databaseError{}))
		time.Sleep(6 * time.Second)
		if g := f.ready().Guard; g.Ready || g.Reason == "" || strings.Contains(g.Reason, "db.internal") {
			t.Errorf("%+v", g)
		}
	})
}
