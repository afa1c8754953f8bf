package clienttest_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/boltstore"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	maxTTL = 10 * time.Second
	short  = 3 * time.Second // of a lease that a test waits for, on a busy machine
)

// service is the real API over the embedded node, behind a switch that a test
// can flip.
type service struct {
	*httptest.Server
	locker *sets.Locker
	fault  atomic.Pointer[fault]
}

// fault stands in for the handler; it may call it.
type fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

func newLocker(t *testing.T) *sets.Locker {
	t.Helper()
	locker, stop, err := openLocker(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	testenv.Eventually(t, 10*time.Second, func() error {
		if s := locker.Status(); !s.Ready {
			return errors.New(s.Reason)
		}
		return nil
	})
	return locker
}

// openLocker runs a Locker over an embedded node, until stop.
func openLocker(dir string) (l *sets.Locker, stop func(), err error) {
	db, err := bbolt.Open(filepath.Join(dir, "test.db"), 0o600, nil)
	if err != nil {
		return nil, nil, err
	}
	store, err := boltstore.New(db, boltstore.Options{})
	if err != nil {
		return nil, nil, err
	}
	embedded, err := replica.New(context.Background(), "embedded", store, replica.Options{Bootstrap: true})
	if err != nil {
		return nil, nil, err
	}
	l, err = sets.New(sets.Config{NodeTimeout: maxTTL / 10}, []node.Node{embedded})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = l.Run(ctx) })
	return l, func() {
		cancel()
		running.Wait()
		_ = embedded.Close()
		_ = store.Close()
		_ = db.Close()
	}, nil
}

func handlerOf(t *testing.T, locker *sets.Locker) http.Handler {
	t.Helper()
	hub := events.NewHub()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = hub.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return api.New(api.Options{
		Service: locker, Metrics: prometheus.NewRegistry(),
		Logger: slog.New(slog.DiscardHandler), Events: hub,
	})
}

func serve(t *testing.T, locker *sets.Locker) *service {
	t.Helper()
	s := &service{locker: locker}
	handler := handlerOf(t, locker)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := s.fault.Load(); f != nil {
			(*f)(w, r, handler)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) breaks(f fault) { s.fault.Store(&f) }

func connect(t *testing.T, services ...*service) *client.Client {
	t.Helper()
	return connectWith(t, services)
}

func connectWith(t *testing.T, services []*service, opts ...client.Option) *client.Client {
	t.Helper()
	urls := make([]string, len(services))
	for i, s := range services {
		urls[i] = s.URL
	}
	defaults := []client.Option{client.WithHolder("tester"), client.WithPatience(5 * time.Second)}
	c, err := client.New(urls, append(defaults, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func held(t *testing.T, l *sets.Locker, resource string) bool {
	t.Helper()
	s, err := l.Inspect(context.WithoutCancel(t.Context()), resource)
	if err != nil {
		t.Fatal(err)
	}
	return s.Held
}

func TestLeaseLife(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	lease, err := c.TryAcquire(t.Context(), "r", client.TTL(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if v := lease.Validity(); !lease.Token().Valid() || v <= 0 || v >= 5*time.Second {
		t.Fatalf("token %d, validity %s", lease.Token(), v)
	}
	_, err = c.TryAcquire(t.Context(), "r")
	problem, ok := errors.AsType[*client.ProblemError](err)
	if !ok || !errors.Is(err, client.ErrHeld) || problem.Holder != "tester" {
		t.Fatalf("%v", err)
	}
	if err := lease.Extend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); !errors.Is(err, client.ErrLeaseLost) {
		t.Fatal(err)
	}
	if err := lease.Extend(t.Context()); !errors.Is(err, client.ErrLeaseLost) {
		t.Fatal(err)
	}
}

// Do outlives the TTL by extending, and releases at the end.
func TestDoKeepsTheLeaseAlive(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	const ttl = short
	err := connect(t, s).TryDo(t.Context(), "r", func(ctx context.Context, l *client.Lease) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * ttl):
		}
		if l.Validity() <= 0 {
			return errors.New("not valid")
		}
		return nil
	}, client.TTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	if held(t, s.locker, "r") {
		t.Error("still held after Do")
	}
}

// When the service goes away, the work is told before the lease ends.
func TestDoTellsOfTheLoss(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	var left time.Duration
	err := connect(t, s).TryDo(t.Context(), "r", func(ctx context.Context, l *client.Lease) error {
		s.breaks(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusBadGateway) })
		<-ctx.Done()
		left = l.Validity()
		return context.Cause(ctx)
	}, client.TTL(short))
	if !errors.Is(err, client.ErrLeaseLost) || left <= 0 {
		t.Fatalf("%v with %s left", err, left)
	}
}

// A lease that somebody broke is known to be lost at the next extend.
func TestDoLearnsThatItsLeaseWasBroken(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	err := connect(t, s).TryDo(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
		if err := s.locker.Break(ctx, "r", 0); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}, client.TTL(short))
	if !errors.Is(err, client.ErrLeaseLost) {
		t.Fatal(err)
	}
}

// An answer that is lost is not a lease that is lost: another server, or the
// same one, finds it again.
func TestLostAnswerIsFoundAgain(t *testing.T) {
	locker := newLocker(t)
	first, second := serve(t, locker), serve(t, locker)
	first.breaks(func(_ http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(httptest.NewRecorder(), r) // carried out, and never answered
		panic(http.ErrAbortHandler)
	})
	c := connect(t, first, second)
	lease, err := c.TryAcquire(t.Context(), "r", client.TTL(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	state, err := locker.Inspect(t.Context(), "r")
	if err != nil || state.Token != lease.Token() {
		t.Fatalf("%+v, token %d, %v", state, lease.Token(), err)
	}
	if err := lease.Extend(t.Context()); err != nil { // goes to the server that answers
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connectWith(t, []*service{s}, client.WithPatience(time.Millisecond))
	s.Close()
	if _, err := c.TryAcquire(t.Context(), "r"); !errors.Is(err, client.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "/leases/") {
		t.Fatal(err)
	}
}

// A caller that gives up still gives the lease back.
func TestCancelledDoReleases(t *testing.T) {
	s := serve(t, newLocker(t))
	ctx, cancel := context.WithCancel(t.Context())
	err := connect(t, s).Do(ctx, "r", func(ctx context.Context, _ *client.Lease) error {
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrLeaseLost) {
		t.Fatal(err)
	}
	if held(t, s.locker, "r") {
		t.Error("still held")
	}
}

// After a wait in the queue validity counts from after the wait, without another
// request, and never beyond what the service itself takes the lease to last. No
// request has the lease id in its URL.
func TestValidityAfterAWait(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	c := connect(t, s)
	var requests []string
	s.breaks(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Path != "/healthz" { // a probe, while it waits
			requests = append(requests, r.Method+" "+r.URL.String()) // one at a time
		}
		next.ServeHTTP(w, r)
	})
	first, err := c.TryAcquire(t.Context(), "r", client.TTL(short))
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Acquire(t.Context(), "r", client.TTL(short), client.Wait(30*time.Second)) // the first one's TTL ends
	if err != nil {
		t.Fatal(err)
	}
	if v := second.Validity(); second.Token() <= first.Token() || v < short/2 {
		t.Fatalf("token %d after %d, validity %s", second.Token(), first.Token(), v)
	}
	until := second.Until()
	asked := time.Now()
	now, err := servicetest.ByID{Calls: s.locker}.Lease(t.Context(), second.ID())
	// A look counts from when it was sent, and a node tells whole milliseconds: it may say that much less.
	if left := time.Now().Add(now.Validity + time.Since(asked) + time.Millisecond); err != nil || until.After(left) {
		t.Errorf("counted to %s after the end; %v", until.Sub(left), err)
	}
	if err := errors.Join(second.Extend(t.Context()), second.Release(t.Context())); err != nil {
		t.Error(err)
	}
	want := []string{"POST /locks", "POST /locks", "POST /leases/current/extend", "DELETE /leases/current"}
	if !slices.Equal(requests, want) {
		t.Errorf("requests %q", requests)
	}
}

func TestServersMustBeURLs(t *testing.T) {
	for _, bad := range []string{"", "localhost:8080", "ftp://x", "http://", "http://a,b", "http://user:secret@a", "http://user:secret@a,http://b"} {
		if _, err := client.New([]string{bad}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := client.New(nil); err == nil {
		t.Error("no server at all was taken")
	}
}
