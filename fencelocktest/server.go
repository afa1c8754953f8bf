package fencelocktest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/boltguard"
	"github.com/fencelock/fencelock/storage/boltstore"
)

const (
	defaultTTL  = 3 * time.Second
	maxTTL      = time.Hour
	nodeTimeout = 2 * time.Second
	awaitTime   = 10 * time.Second // the time limit of waits in a test
	lookEvery   = 5 * time.Millisecond
)

// Server is a server of fencelock in this process. Its methods may be called by several goroutines.
type Server struct {
	t      testing.TB
	http   *httptest.Server
	others *client.Client // used by End, Hold and AwaitWaiters; its responses are never lost

	mu   sync.Mutex
	lose int // the number of responses that will be lost
	lost int // the number of responses that were lost
}

// Start starts a Server that ends with the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	handler := serve(tb)
	s := &Server{t: tb}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.loses(r) {
			handler.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler) // closes the connection
		}
		handler.ServeHTTP(w, r)
	}))
	s.http.Config.ConnContext = edge.ConnContext
	s.http.Start()
	tb.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	s.others = s.client(client.WithHolder("another process"), client.WithHTTPClient(&http.Client{Transport: direct{handler}}))
	return s
}

// serve runs the service until the test ends.
func serve(tb testing.TB) http.Handler {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatalf("fencelocktest: the server does not start: %v", err)
		}
	}
	closing := func(c interface{ Close() error }) { tb.Cleanup(func() { _ = c.Close() }) }
	db, err := bbolt.Open(filepath.Join(tb.TempDir(), "fencelock.db"), 0o600, &bbolt.Options{NoSync: true})
	must(err)
	closing(db)
	guard, err := boltguard.New(db)
	must(err)
	closing(guard)
	store, err := boltstore.New(db, boltstore.Options{})
	must(err)
	closing(store)
	embedded, err := replica.New(tb.Context(), "embedded", store, replica.Options{Bootstrap: true})
	must(err)
	closing(embedded)
	locker, err := sets.New(sets.Config{DefaultTTL: defaultTTL, MaxTTL: maxTTL, NodeTimeout: nodeTimeout, Floor: guard.HighestMark}, []node.Node{embedded})
	must(err)
	hub := events.NewHub()
	server := api.New(api.Options{
		Service: locker, Guard: guard, Events: hub, OpenAPI: []byte(fencelock.OpenAPI),
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = locker.Run(ctx) }) // it ends with ctx
	running.Go(func() { _ = hub.Run(ctx) })
	running.Go(func() { server.Run(ctx) })
	tb.Cleanup(func() {
		stop()
		running.Wait()
	})
	eventually(tb, func() error {
		if status := locker.Status(); !status.Ready {
			return fmt.Errorf("the server does not become ready: %s", status.Reason)
		}
		return nil
	})
	return server
}

// direct serves requests without a network.
type direct struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	served := r.Clone(r.Context())
	served.RequestURI = r.URL.RequestURI()
	if served.Body == nil {
		served.Body = http.NoBody
	}
	d.handler.ServeHTTP(recorder, served)
	response := recorder.Result()
	response.Request = r
	return response, nil
}

// eventually calls check until it returns nil. After a time limit the test fails with check's last error.
func eventually(tb testing.TB, check func() error) {
	tb.Helper()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for deadline := time.Now().Add(awaitTime); ; <-look.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("fencelocktest: %v", err)
		}
	}
}

// URL returns the server's URL, for client.New and for programs under test.
func (s *Server) URL() string { return s.http.URL }

// Client returns a client of the server, which is closed at the end of the test.
func (s *Server) Client(opts ...client.Option) *client.Client {
	s.t.Helper()
	return s.client(opts...)
}

func (s *Server) client(opts ...client.Option) *client.Client {
	s.t.Helper()
	c, err := client.New([]string{s.URL()}, opts...)
	if err != nil {
		s.t.Fatalf("fencelocktest: %v", err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx) // a failed test may have left work
	})
	return c
}

// End ends the lease of a resource now, as if its TTL had passed. The holder learns of it with its next
// extension, at most a third of the TTL later. The test fails if no lease holds the resource.
func (s *Server) End(resource string) {
	s.t.Helper()
	if err := s.others.BreakAny(s.t.Context(), resource); err != nil {
		s.t.Errorf("fencelocktest: no lease of %q was ended: %v", resource, err)
	}
}

// LoseNextResponse makes the server carry out the next request but close the connection instead of responding.
// Two calls affect two requests.
func (s *Server) LoseNextResponse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose++
}

// Lost returns how many responses were lost.
func (s *Server) Lost() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// loses reports whether the response to this request is lost. Probes and event streams are never affected.
func (s *Server) loses(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lose == 0 || r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || r.URL.Path == "/events" {
		return false
	}
	s.lose--
	s.lost++
	return true
}

// AwaitWaiters waits until n requests wait for the resource. The test fails after ten seconds.
func (s *Server) AwaitWaiters(resource string, n int) {
	s.t.Helper()
	eventually(s.t, func() error {
		lock, err := s.others.Inspect(s.t.Context(), resource)
		if err == nil && lock.Waiters < n {
			err = fmt.Errorf("%d requests wait for %q, want %d", lock.Waiters, resource, n)
		}
		return err
	})
}

// Other is a lease that another process holds, as far as the code under test can see.
type Other struct {
	server *Server
	lease  *client.Lease
	stop   func()
}

// Hold lets another process hold the resources, until Release or the end of the test. The test fails if one of
// them is held.
func (s *Server) Hold(resources ...string) *Other {
	s.t.Helper()
	lease, err := s.others.AcquireAll(s.t.Context(), resources, client.Wait(0))
	if err != nil {
		s.t.Fatalf("fencelocktest: another process cannot hold %q: %v", resources, err)
	}
	_, stop := lease.KeepAlive(s.t.Context())
	s.t.Cleanup(stop)
	return &Other{s, lease, stop}
}

// Token returns the fencing token of the lease; of several resources, the first one's.
func (o *Other) Token() fencing.Token { return o.lease.Parts()[0].Token }

// Release ends the lease, and the next request in the queue gets the resources. It does nothing if the lease
// has ended.
func (o *Other) Release() {
	o.server.t.Helper()
	o.stop()
	if err := o.lease.Release(context.WithoutCancel(o.server.t.Context())); err != nil && !errors.Is(err, client.ErrLeaseLost) {
		o.server.t.Errorf("fencelocktest: %v", err)
	}
}
