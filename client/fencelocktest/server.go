package fencelocktest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

const defaultTTL = 1500 * time.Millisecond

// Server is a lock service in memory. Its methods may be called by several goroutines.
type Server struct {
	t    testing.TB
	http *httptest.Server
	stop chan struct{} // closed when the test ends

	mu      sync.Mutex
	ttl     time.Duration
	minted  int64                   // the largest token
	leases  map[string]*lease       // by lease id
	holders map[string]*lease       // by resource
	keys    map[string]*lease       // by idempotency key
	queue   []*waiter               // in the order of arrival
	records map[string]*wire.Record // the guarded records
	history map[string][]wire.Attempt
	readers map[chan struct{}]bool // of events
	lose    int                    // answers to be lost
	lost    int                    // answers that were
}

// Start starts a Server that ends with the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{
		t: tb, ttl: defaultTTL, stop: make(chan struct{}), leases: map[string]*lease{}, holders: map[string]*lease{}, keys: map[string]*lease{},
		records: map[string]*wire.Record{}, history: map[string][]wire.Attempt{}, readers: map[chan struct{}]bool{},
	}
	s.http = httptest.NewServer(s.handler())
	tb.Cleanup(func() {
		close(s.stop)
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// URL is the server's, for client.New and for programs under test.
func (s *Server) URL() string { return s.http.URL }

// Client is a client of the server, which is closed with the test.
func (s *Server) Client(opts ...client.Option) *client.Client {
	s.t.Helper()
	c, err := client.New([]string{s.URL()}, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// SetTTL sets the time to live of the leases that are granted or extended from now on.
func (s *Server) SetTTL(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ttl = d
}

// End ends the lease of a resource now, as if its time to live had passed. Its holder
// learns of it with its next extend. The test fails if no lease holds the resource.
func (s *Server) End(resource string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.holders[resource]
	if l == nil {
		s.t.Errorf("fencelocktest: no lease holds %q", resource)
		return
	}
	s.end(l)
}

// LoseNextAnswer has the next request carried out, and closes its connection in place of
// an answer. Called twice, it is for two requests.
func (s *Server) LoseNextAnswer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose++
}

// Lost is how many answers were lost.
func (s *Server) Lost() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// AwaitWaiters waits until so many requests wait for the resource. The test fails after ten
// seconds.
func (s *Server) AwaitWaiters(resource string, n int) {
	s.t.Helper()
	news := s.subscribe()
	defer s.unsubscribe(news)
	timeout := time.NewTimer(10 * time.Second)
	defer timeout.Stop()
	for s.waiters(resource) < n {
		select {
		case <-news:
		case <-timeout.C:
			s.t.Fatalf("fencelocktest: %d requests wait for %q, want %d", s.waiters(resource), resource, n)
		}
	}
}

func (s *Server) waiters(resource string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.queue {
		if w.wants(resource) {
			n++
		}
	}
	return n
}

// Other is a lease of another process.
type Other struct {
	server *Server
	lease  *lease
}

// Hold has another process hold the resources. The test fails if one of them is held.
func (s *Server) Hold(resources ...string) *Other {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(resources) == 0 || s.blocking(resources) != nil {
		s.t.Fatalf("fencelocktest: %q cannot be held by another: it is held", resources)
	}
	return &Other{s, s.grant(wire.AcquireRequest{Holder: "another process"}, resources, "")}
}

// Token is the fencing token of its first resource.
func (o *Other) Token() int64 { return o.lease.parts[0].FencingToken }

// Release ends the lease, if it still holds. The next in the queue gets the resources.
func (o *Other) Release() {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	o.server.end(o.lease)
}

// loses reports whether the answer to this request is to be lost.
func (s *Server) loses(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lose == 0 || r.URL.Path == "/healthz" || r.URL.Path == "/events" {
		return false
	}
	s.lose--
	s.lost++
	return true
}
