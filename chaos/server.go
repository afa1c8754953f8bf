package chaos

import (
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// server is a fencelock process that can be killed and restarted.
type server struct {
	*testenv.Fencelock
	name      string
	mu        sync.Mutex
	outages   []outage
	gathering gathering // collects requests of clients that send batches
}

// outage is a time in which one server cannot serve, though others can.
type outage struct{ from, to time.Time }

// gone begins an outage, and returns the function that ends it.
func (s *server) gone() (back func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := len(s.outages)
	s.outages = append(s.outages, outage{from: time.Now(), to: time.Now().Add(time.Hour)})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.outages[i].to = time.Now()
	}
}

// startServer starts a server with only these environment variables. It is stopped when the test ends.
func startServer(tb testing.TB, name string, env ...string) *server {
	tb.Helper()
	return &server{name: name, Fencelock: testenv.StartFencelock(tb, append(env, "FENCELOCK_ALLOWED_HOSTS="+name)...)}
}
