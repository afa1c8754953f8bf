package clienttest_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

func TestDoReleasesWhenWorkPanics(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	func() {
		defer func() { _ = recover() }()
		_ = c.Do(t.Context(), "r", func(context.Context, *client.Lease) error { panic("work") })
	}()
	if held(t, s.locker, "r") {
		t.Error("still held")
	}
}

// The end of the caller's context stops the work, and not the keeping: nobody
// else gets the resource while the work comes to its end.
func TestLeaseIsKeptWhileCancelledWorkEnds(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	ctx, cancel := context.WithCancel(t.Context())
	err := connect(t, s).TryDo(ctx, "r", func(ctx context.Context, l *client.Lease) error {
		cancel()
		<-ctx.Done()
		first := l.Until()
		testenv.Eventually(t, 10*time.Second, func() error {
			if !l.Until().After(first.Add(500 * time.Millisecond)) {
				return errors.New("not extended")
			}
			return nil
		})
		return nil
	}, client.TTL(short))
	if err != nil {
		t.Fatal(err)
	}
}

// The same, for a lease that was acquired by hand; and stop ends it.
func TestKeepAliveGoesOnUntilStop(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	lease, err := connect(t, s).TryAcquire(t.Context(), "r", client.TTL(short))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var extended atomic.Int32
	working, stop := lease.KeepAlive(ctx, client.OnExtend(func(*client.Lease) { extended.Add(1) }))
	cancel()
	<-working.Done()
	testenv.Eventually(t, 10*time.Second, func() error {
		if extended.Load() == 0 {
			return errors.New("not extended")
		}
		return nil
	})
	stop()
	if err := context.Cause(working); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrLeaseLost) {
		t.Error(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A release whose answer was lost is no lost lease.
func TestLostAnswerOfARelease(t *testing.T) {
	s := serve(t, newLocker(t))
	lease, err := connect(t, s).TryAcquire(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	var tried atomic.Bool
	s.breaks(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if tried.CompareAndSwap(false, true) {
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if held(t, s.locker, "r") {
		t.Error("still held")
	}
}

// A caller that gives up in the queue, at the very moment of its grant, leaves nothing.
func TestCancelledAcquireIsGivenBack(t *testing.T) {
	s := serve(t, newLocker(t))
	ctx, cancel := context.WithCancel(t.Context())
	var tried atomic.Bool
	s.breaks(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if tried.CompareAndSwap(false, true) {
			next.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
			cancel()
			<-r.Context().Done()
			return
		}
		next.ServeHTTP(w, r)
	})
	c := connect(t, s)
	if _, err := c.AcquireAll(ctx, []string{"a", "b"}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil { // waits for the release
		t.Fatal(err)
	}
	wantHeld(t, s, false, "a", "b")
}

// The service lets nobody wait for longer than ten minutes; the client does.
func TestWaitGoesOn(t *testing.T) {
	s := serve(t, newLocker(t))
	var waits, keys []any
	s.breaks(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		var body wire.AcquireRequest
		if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&body) != nil {
			next.ServeHTTP(w, r)
			return
		}
		waits, keys = append(waits, *body.WaitMS), append(keys, r.Header.Get(wire.HeaderIdempotencyKey))
		w.WriteHeader(http.StatusConflict)
		if len(waits) < 3 {
			_, _ = w.Write([]byte(`{"type":"/problems/wait-timeout"}`))
		}
	})
	_, err := connect(t, s).Acquire(t.Context(), "r")
	if errors.Is(err, client.ErrHeld) || len(waits) != 3 || waits[0] != int64(600_000) || keys[0] != keys[2] {
		t.Errorf("%v; waits %v, keys %v", err, waits, keys)
	}
}

// swallow takes a request and never answers, as a frozen server does.
func swallow(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
	_, _ = io.Copy(io.Discard, r.Body) // only then does net/http see that the caller has gone
	<-r.Context().Done()
}

// A server that was frozen while a caller stood in the queue there is found out.
func TestWaitLeavesAFrozenServer(t *testing.T) {
	t.Parallel()
	locker := newLocker(t)
	frozen, well := serve(t, locker), serve(t, locker)
	frozen.breaks(swallow)
	c := connectWith(t, []*service{frozen, well}, client.WithTimeout(time.Second))
	begun := time.Now()
	lease, err := c.Acquire(t.Context(), "r", client.Wait(time.Minute))
	if err != nil || time.Since(begun) > 30*time.Second {
		t.Fatalf("%v after %s", err, time.Since(begun))
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A lease is not lost although every other request is swallowed by its server.
func TestFailoverIsQuickerThanTheLease(t *testing.T) {
	t.Parallel()
	const ttl = short
	locker := newLocker(t)
	first, second := serve(t, locker), serve(t, locker)
	var extensions atomic.Int32
	every := fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if extensions.Add(1)%2 == 1 {
			swallow(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	})
	err := connect(t, first, second).TryDo(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
		first.breaks(every)
		second.breaks(every)
		select {
		case <-ctx.Done():
		case <-time.After(2 * ttl):
		}
		return context.Cause(ctx)
	}, client.TTL(ttl))
	if err != nil || extensions.Load() < 6 {
		t.Fatalf("%v after %d requests", err, extensions.Load())
	}
}

// Another process works under a lease by its lease id.
func TestLeaseByID(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	lease, err := c.TryAcquire(t.Context(), "r", client.TTL(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	same, err := connect(t, s).Lease(t.Context(), lease.ID())
	if err != nil || same.ID() != lease.ID() || same.Token() != lease.Token() || same.Resource() != "r" || same.TTL() != 5*time.Second {
		t.Fatalf("%+v, %v", same, err)
	}
	if v := same.Validity(); v <= 0 || v > 5*time.Second {
		t.Errorf("validity %s", v)
	}
	if l, err := c.Extend(t.Context(), lease.ID(), 6*time.Second); err != nil || l.Token() != lease.Token() || l.TTL() != 6*time.Second {
		t.Fatalf("%v, %v", l, err)
	}
	if err := c.Release(t.Context(), lease.ID()); err != nil || held(t, s.locker, "r") {
		t.Fatalf("after the release: %v, held %v", err, held(t, s.locker, "r"))
	}
	if _, err := c.Lease(t.Context(), lease.ID()); !errors.Is(err, client.ErrLeaseLost) {
		t.Error(err)
	}
}

func TestLocksInspectBreak(t *testing.T) {
	c := connect(t, serve(t, newLocker(t)))
	const odd = "a/../2 ü?#%//" // a path that a proxy would change
	for _, r := range []string{"a/1", odd, "b"} {
		if _, err := c.TryAcquire(t.Context(), r, client.Metadata(json.RawMessage(`{"n":1}`))); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for lock, err := range c.Locks(t.Context(), "a/") {
		if err != nil || !lock.Held {
			t.Fatalf("%+v, %v", lock, err)
		}
		seen[lock.Resource] = true
	}
	if len(seen) != 2 || !seen[odd] {
		t.Errorf("%v", seen)
	}
	lock, err := c.Inspect(t.Context(), odd)
	if err != nil || !lock.Held || lock.Holder != "tester" || string(lock.Metadata) != `{"n":1}` {
		t.Errorf("%+v, %v", lock, err)
	}
	token := lock.Token
	problem, ok := errors.AsType[*client.ProblemError](c.Break(t.Context(), odd, token+1))
	if !ok || problem.Kind() != "other-lease" || problem.FencingToken != lock.Token {
		t.Errorf("%v", problem)
	}
	if err := c.Break(t.Context(), odd, token); err != nil {
		t.Error(err)
	}
	for _, err := range []error{c.Break(t.Context(), odd, token), c.BreakAny(t.Context(), odd)} {
		problem, ok = errors.AsType[*client.ProblemError](err)
		if !ok || problem.Kind() != "lock-not-held" {
			t.Errorf("%v", problem)
		}
	}
}

func TestCredentials(t *testing.T) {
	s := serve(t, newLocker(t))
	var sent atomic.Value
	s.breaks(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		sent.Store(r.Header.Get("Authorization"))
		next.ServeHTTP(w, r)
	})
	ask := func(opt client.Option) (string, error) {
		sent.Store("")
		_, err := connectWith(t, []*service{s}, opt).Inspect(t.Context(), "r")
		return sent.Load().(string), err
	}
	file := filepath.Join(t.TempDir(), "credential")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := ask(client.WithBearerToken("one")); got != "Bearer one" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	c := connectWith(t, []*service{s}, client.WithBearerTokenFile(file))
	for _, want := range []string{"two", "three"} { // the same client sees the file change
		write(want + "\n")
		if _, err := c.Inspect(t.Context(), "r"); err != nil || sent.Load() != "Bearer "+want {
			t.Errorf("%q, %v", sent.Load(), err)
		}
	}
	write(" \n")
	if got, err := ask(client.WithBearerTokenFile(file)); got != "" || err == nil {
		t.Errorf("an empty file: %q, %v", got, err)
	}
	boom := errors.New("no credential")
	if got, err := ask(client.WithBearerTokenFunc(func(context.Context) (string, error) { return "", boom })); got != "" || !errors.Is(err, boom) {
		t.Errorf("%q, %v", got, err)
	}
}

// A redirect is followed by no call, and with an HTTP client of the caller's neither: it would
// carry the credential and the lease id away, or make a GET of a release.
func TestRedirectsAreNotFollowed(t *testing.T) {
	s := serve(t, newLocker(t))
	lease, err := connect(t, s).TryAcquire(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	var followed atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	t.Cleanup(elsewhere.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		s.breaks(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, status)
		})
		for _, opts := range [][]client.Option{{}, {client.WithHTTPClient(&http.Client{})}} {
			c := connectWith(t, []*service{s}, append(opts, client.WithBearerToken("secret"))...)
			_, acquired := c.TryAcquire(t.Context(), "other")
			_, seen := c.Inspect(t.Context(), "r")
			for what, err := range map[string]error{"acquire": acquired, "release": c.Release(t.Context(), lease.ID()), "inspect": seen} {
				if err == nil || !strings.Contains(err.Error(), elsewhere.URL) || errors.Is(err, client.ErrUnavailable) {
					t.Errorf("%s, %d: %v", what, status, err)
				}
			}
		}
	}
	if n := followed.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func TestDenied(t *testing.T) {
	s := serve(t, newLocker(t))
	for status, denied := range map[int]bool{401: true, 403: true, 404: false} {
		s.breaks(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(status) })
		_, err := connect(t, s).TryAcquire(t.Context(), "r")
		if errors.Is(err, client.ErrDenied) != denied || errors.Is(err, client.ErrUnavailable) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// A limit is obeyed: the next try comes after Retry-After.
func TestRetryAfterIsObeyed(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	var tries atomic.Int32
	s.breaks(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if tries.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
	begun := time.Now()
	_, err := connectWith(t, []*service{s}, client.WithPatience(10*time.Second)).Inspect(t.Context(), "r")
	if err != nil || time.Since(begun) < time.Second {
		t.Errorf("%v after %s", err, time.Since(begun))
	}
}

func TestOptionsThatDoNotFit(t *testing.T) {
	tlsConfig, err := client.TLSFiles("", "", "")
	if err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string][]client.Option{
		"two transports": {client.WithHTTPClient(&http.Client{}), client.WithTLSConfig(tlsConfig)},
		"a time limit":   {client.WithHTTPClient(&http.Client{Timeout: time.Second})},
	} {
		if _, err := client.New([]string{"http://127.0.0.1:1"}, opts...); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	for _, files := range [][3]string{{"", "cert", ""}, {"", "", "key"}, {"/nowhere", "", ""}, {"", "/nowhere", "/nowhere"}} {
		if _, err := client.TLSFiles(files[0], files[1], files[2]); err == nil {
			t.Errorf("%v: taken", files)
		}
	}
}

// The token of a lease guards rows: the holder whose lease was broken is refused.
func TestTokenFitsPgguard(t *testing.T) {
	url := testenv.Postgres(t).OwnerURL()
	if err := pgguard.Install(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	db, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(context.WithoutCancel(t.Context())) }()
	if _, err := db.Exec(t.Context(), `CREATE TABLE accounts (id int PRIMARY KEY, balance int);
		INSERT INTO accounts VALUES (1, 100); SELECT fencing.protect('accounts', $$'accounts/' || id$$)`); err != nil {
		t.Fatal(err)
	}
	c := connect(t, serve(t, newLocker(t)))
	withdraw := func(ctx context.Context, l *client.Lease) error {
		return pgguard.Do(ctx, db, l, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance - 10 WHERE id = 1`)
			return err
		})
	}
	err = c.Do(t.Context(), "accounts/1", func(ctx context.Context, first *client.Lease) error {
		if err := c.Break(ctx, "accounts/1", first.Token()); err != nil {
			return err
		}
		second, err := c.TryAcquire(ctx, "accounts/1")
		if err != nil {
			return err
		}
		return errors.Join(withdraw(ctx, second), second.Release(ctx), withdraw(context.WithoutCancel(ctx), first))
	})
	if !errors.Is(err, fencing.ErrStaleToken) || !errors.Is(err, client.ErrLeaseLost) {
		t.Fatal(err)
	}
	var balance int
	if err := db.QueryRow(t.Context(), `SELECT balance FROM accounts`).Scan(&balance); err != nil || balance != 90 {
		t.Errorf("balance %d, %v", balance, err)
	}
}
