package client

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
)

// Rounds of 256 requests at once all use the connections of the first round: the client keeps them open. The time
// limit of a try is long here, because a try that runs out of time closes its connection.
func TestCallersKeepTheirConnections(t *testing.T) {
	const callers, rounds = 256, 4
	var opened, here atomic.Int32
	var together atomic.Pointer[chan struct{}]
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		all := *together.Load()
		if here.Add(1) == callers { // so that each request needs a connection of its own
			close(all)
		}
		<-all
		w.WriteHeader(http.StatusNoContent)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	c, err := New([]string{s.URL})
	if err != nil {
		t.Fatal(err)
	}
	for range rounds {
		all := make(chan struct{})
		together.Store(&all)
		here.Store(0)
		var busy sync.WaitGroup
		for range callers {
			busy.Go(func() {
				resp, err := c.http.Get(s.URL)
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
			})
		}
		busy.Wait()
	}
	// net/http gives up a connection whose own goroutine is late by 50 ms.
	if n := opened.Load(); n > callers+callers/4 {
		t.Errorf("%d connections for %d rounds of %d requests", n, rounds, callers)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
