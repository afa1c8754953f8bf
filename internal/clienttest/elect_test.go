package clienttest_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
)

// A leader that returns has resigned, with its error.
func TestElectResigns(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	resigned := errors.New("resigned")
	err := connect(t, s).Elect(t.Context(), "r", func(context.Context, *client.Lease) error { return resigned })
	if !errors.Is(err, resigned) || errors.Is(err, client.ErrLeaseLost) || held(t, s.locker, "r") {
		t.Fatalf("%v, held: %v", err, held(t, s.locker, "r"))
	}
}

// A leader whose lease was lost stands again, whatever it returned, and has a larger token
// then; it does not while it is still busy with the old term.
func TestElectStandsAgain(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	var tokens []fencing.Token
	err := connect(t, s).Elect(t.Context(), "r", func(ctx context.Context, l *client.Lease) error {
		tokens = append(tokens, l.Token())
		if len(tokens) == 3 {
			return nil
		}
		if err := s.locker.Break(ctx, "r", 0); err != nil {
			return err
		}
		<-ctx.Done()
		return errors.New("this error has the loss as its cause")
	}, client.TTL(time.Second))
	if err != nil || len(tokens) != 3 || tokens[0] >= tokens[1] || tokens[1] >= tokens[2] {
		t.Fatalf("%v, tokens %d", err, tokens)
	}
}

// An outage ends no candidacy, before the first term and after one.
func TestElectOutlivesAnOutage(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	asked := 0 // for a lease, by one request after the other
	var out fault = func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		if r.URL.Path == "/locks" { // a leader's extends fail until its lease is lost
			if asked++; asked%3 == 0 {
				s.fault.Store(nil)
			}
		}
		w.WriteHeader(http.StatusBadGateway)
	}
	c := connectWith(t, []*service{s}, client.WithPatience(20*time.Millisecond))
	s.fault.Store(&out)
	terms := 0
	err := c.Elect(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
		if terms++; terms == 2 {
			return nil
		}
		s.fault.Store(&out)
		<-ctx.Done()
		return ctx.Err()
	}, client.TTL(time.Second))
	if err != nil || terms != 2 || asked != 6 {
		t.Fatalf("%v after %d terms, and %d requests without an answer", err, terms, asked)
	}
}

// What no repetition mends ends a candidacy, and so does the end of the context.
func TestElectEnds(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	c := connect(t, s)
	idle := func(ctx context.Context, _ *client.Lease) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err := c.Elect(t.Context(), "\x00", idle); !errors.Is(err, client.ErrInvalid) {
		t.Error(err)
	}
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := c.Elect(ctx, "r", func(ctx context.Context, l *client.Lease) error {
		cancel(stop)
		return idle(ctx, l)
	})
	if !errors.Is(err, stop) || held(t, s.locker, "r") {
		t.Errorf("%v, held: %v", err, held(t, s.locker, "r"))
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Elect(t.Context(), "r", idle); !errors.Is(err, client.ErrClosed) {
		t.Error(err)
	}
}

// told is what a Watch told next.
type told struct {
	lock wire.Lock
	err  error
}

// watch follows a resource until the test or the context ends; then the channel is closed.
func watch(ctx context.Context, t *testing.T, c *client.Client) <-chan told {
	t.Helper()
	all := make(chan told)
	go func() {
		defer close(all)
		for lock, err := range c.Watch(ctx, "r") {
			select {
			case all <- told{lock.Wire(), err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		for range all { // until it has ended
		}
	})
	return all
}

func next(t *testing.T, all <-chan told, within time.Duration) told {
	t.Helper()
	select {
	case now, more := <-all:
		if !more {
			t.Fatal("the watch has ended")
		}
		return now
	case <-time.After(within):
		t.Fatalf("nothing was told within %s", within)
		return told{}
	}
}

// takes acquires the resource, and wants the watch to tell that.
func takes(t *testing.T, s *service, all <-chan told, within time.Duration) *client.Lease {
	t.Helper()
	lease, err := connect(t, s).TryAcquire(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	got := next(t, all, within)
	if got.err == nil && !got.lock.Held { // the release before, which has no event here, was seen by chance
		got = next(t, all, within)
	}
	if got.err != nil || !got.lock.Held || got.lock.FencingToken != int64(lease.Token()) || *got.lock.Holder != "tester" {
		t.Fatalf("%+v, want token %d", got, lease.Token())
	}
	return lease
}

// A watch tells the state at once and then each change, soon after its event.
func TestWatch(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := serve(t, newLocker(t))
	streams := make(chan struct{}, 1)
	s.breaks(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(signalling{w, r, streams}, r)
	})
	all := watch(ctx, t, connect(t, s))
	if got := next(t, all, short); got.err != nil || got.lock.Held || got.lock.Resource != "r" {
		t.Fatalf("%+v, want a free lock", got)
	}
	<-streams
	for range 3 { // this service has no events of releases, and the next look without one comes after 10 s
		lease := takes(t, s, all, short)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// signalling tells when a stream of events has begun.
type signalling struct {
	http.ResponseWriter

	r       *http.Request
	streams chan struct{}
}

func (s signalling) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s signalling) Write(b []byte) (int, error) {
	if s.r.URL.Path == "/events" && strings.Contains(string(b), ": live") {
		select {
		case s.streams <- struct{}{}:
		default:
		}
	}
	return s.ResponseWriter.Write(b)
}

// Where no events can be had, a watch looks by itself.
func TestWatchWithoutEvents(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := serve(t, newLocker(t))
	s.breaks(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Path == "/events" {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
	all := watch(ctx, t, connect(t, s))
	next(t, all, short)
	lease := takes(t, s, all, short)
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := next(t, all, short); got.err != nil || got.lock.Held {
		t.Fatalf("%+v, want a free lock", got)
	}
}

// An outage is told once, and then what is so, though nothing has changed.
func TestWatchTellsWhatIsUnknown(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := serve(t, newLocker(t))
	all := watch(ctx, t, connectWith(t, []*service{s}, client.WithPatience(0)))
	next(t, all, short)
	s.breaks(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusBadGateway) })
	s.CloseClientConnections()
	if got := next(t, all, 15*time.Second); !errors.Is(got.err, client.ErrUnavailable) {
		t.Fatalf("%+v, want an outage", got)
	}
	select {
	case got := <-all:
		t.Fatalf("%+v, which has been told", got)
	case <-time.After(3 * time.Second): // three looks
	}
	s.fault.Store(nil)
	if got := next(t, all, short); got.err != nil || got.lock.Held {
		t.Fatalf("%+v, want a free lock", got)
	}
}

// A watch ends with its context, with its client, and with a refusal for good.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	c := connect(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range c.Watch(ctx, "r") {
		if cancel(); err != nil {
			t.Error(err)
		}
	}
	last := func(c *client.Client, resource string, then func()) (err error) {
		for _, err = range c.Watch(t.Context(), resource) {
			then()
		}
		return err
	}
	if err := last(c, "\x00", func() {}); !errors.Is(err, client.ErrInvalid) {
		t.Error(err)
	}
	if err := last(c, "r", func() { _ = c.Close(t.Context()) }); !errors.Is(err, client.ErrClosed) {
		t.Error(err)
	}
	s.breaks(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusForbidden) })
	if err := last(connect(t, s), "r", func() {}); !errors.Is(err, client.ErrDenied) {
		t.Error(err)
	}
}

// A lock that a minority of nodes still shows is not told again.
func TestWatchNeverGoesBack(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := []string{
		`{"resource":"r","held":true,"fencing_token":7,"holder":"new","held_ms":5,"waiters":0,"queue":[]}`,
		`{"resource":"r","held":true,"fencing_token":6,"holder":"old","held_ms":9,"waiters":0,"queue":[]}`,
		`{"resource":"r","held":true,"fencing_token":8,"holder":"next","held_ms":1,"waiters":0,"queue":[]}`,
	}
	s := &scripted{}
	s.answer = func(r *http.Request, _ wire.AcquireRequest) (int, string, string) {
		if r.URL.Path == "/events" {
			return http.StatusTooManyRequests, "", ""
		}
		return http.StatusOK, "", answers[min(len(s.sent("GET", "/locks/r")), len(answers))-1]
	}
	all := watch(ctx, t, s.client(t, one))
	for _, want := range []int64{7, 8} {
		if got := next(t, all, 10*time.Second); got.lock.FencingToken != want {
			t.Fatalf("%+v, want token %d", got, want)
		}
	}
}
