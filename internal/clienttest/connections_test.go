package clienttest_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/internal/testenv"
)

// A hundred callers give up, one after the other. Each loses the connection of its own
// request, and no other loses one: neither in flight nor idle, on a transport of the
// client's own as on one that was handed in.
func TestCancelsCloseNoOtherConnections(t *testing.T) {
	const others, cancels = 8, 100
	for name, opts := range map[string][]client.Option{
		"its own transport": nil,
		"one handed in":     {client.WithHTTPClient(&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}})},
	} {
		t.Run(name, func(t *testing.T) {
			var opened atomic.Int32
			arrived := make(chan struct{}, 1)
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost || r.Header.Get("Prefer") == "" { // an inspect, or an abandoned acquire
					w.WriteHeader(http.StatusConflict)
					return
				}
				arrived <- struct{}{}
				swallow(w, r, nil)
			}))
			s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					opened.Add(1)
				}
			}
			s.Start()
			defer s.Close()
			c, err := client.New([]string{s.URL}, opts...)
			if err != nil {
				t.Fatal(err)
			}
			machine := testenv.MeasureLateness(t)
			var slowest time.Duration
			late := 0
			for range cancels {
				var busy sync.WaitGroup
				for range others {
					busy.Go(func() { _, _ = c.Inspect(t.Context(), "r") })
				}
				busy.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					_, err := c.Acquire(ctx, "r")
					ended <- err
				}()
				<-arrived
				begun := time.Now()
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrUnavailable) {
					t.Fatal(err)
				}
				took := time.Since(begun)
				if slowest = max(slowest, took); took > 100*time.Millisecond+2*machine.Longest() {
					late++
				}
			}
			t.Logf("%d connections; the slowest cancel took %s", opened.Load(), slowest)
			if n := opened.Load(); n > others+2*cancels {
				t.Errorf("%d connections for %d cancels among %d callers", n, cancels, others)
			}
			if late > cancels/20 { // the machine may be busy now and then
				t.Errorf("%d cancelled acquires took longer than 100 ms on a machine that is late by %s", late, machine.Longest())
			}
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
