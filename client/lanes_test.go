package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// station is a service that handles requests one at a time, each for the same time, and counts the requests that are
// there at once.
type station struct {
	*fake

	here, most atomic.Int64
	turn       chan struct{} // holds one
	takes      time.Duration
}

func (s *station) RoundTrip(r *http.Request) (*http.Response, error) {
	s.most.Store(max(s.most.Load(), s.here.Add(1)))
	defer s.here.Add(-1)
	s.turn <- struct{}{}
	time.Sleep(s.takes)
	<-s.turn
	return s.fake.RoundTrip(r)
}

// A thousand calls come at once whose requests cannot be batched. Each is sent when a connection is free, and its
// time limit counts from then on. The leases that are kept alive are not lost.
func TestABurstIsBounded(t *testing.T) {
	const most = 192 + 48 + 16 // connections
	for name, opts := range map[string]client.AcquireOptions{
		"not waiting": {client.Wait(0), client.Patience(time.Minute)},
		"waiting":     {client.Wait(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const calls, kept = 1000, 20
				s := &station{fake: &fake{}, turn: make(chan struct{}, 1), takes: 2 * time.Millisecond}
				s.answers(func(r *http.Request) *http.Response {
					if r.Method == http.MethodDelete {
						return response(r, http.StatusNoContent, nil)
					}
					return response(r, http.StatusOK, lease(2*time.Second))
				})
				locks, err := client.New([]string{"http://fake"}, client.WithHTTPClient(&http.Client{Transport: s}), client.WithBatchAfter(-1), client.WithTimeout(time.Second))
				if err != nil {
					t.Fatal(err)
				}
				var holding, calling sync.WaitGroup
				done := make(chan struct{})
				for i := range kept {
					holding.Go(func() {
						err := locks.Do(t.Context(), fmt.Sprint("kept", i), func(ctx context.Context, _ *client.Lease) error {
							select {
							case <-ctx.Done():
								return context.Cause(ctx)
							case <-done:
								return nil
							}
						})
						if err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				for i := range calls {
					calling.Go(func() {
						if l, err := locks.Acquire(t.Context(), fmt.Sprint("r", i), opts...); err != nil || l.Release(t.Context()) != nil {
							t.Error(err)
						}
					})
				}
				calling.Wait()
				close(done)
				holding.Wait()
				if got := s.most.Load(); got > most {
					t.Errorf("%d requests were under way at once, want %d at most", got, most)
				}
			})
		})
	}
}

// A call that gets no connection within the client's time limit says so.
func TestACallThatIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.answers(func(*http.Request) *http.Response { return nil }) // frozen
		locks, err := client.New([]string{"http://fake"}, client.WithHTTPClient(&http.Client{Transport: f}), client.WithBatchAfter(-1), client.WithPatience(0), client.WithTimeout(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		begun := time.Now()
		for range 1000 {
			all.Go(func() {
				if _, err := locks.TryAcquire(t.Context(), "r"); !errors.Is(err, client.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("a call without a wait took %s", took)
		}
		if err := locks.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// crowd responds to batches after a tenth of a second, and counts the operations that are under way at once.
type crowd struct{ here, most atomic.Int64 }

func (c *crowd) RoundTrip(r *http.Request) (*http.Response, error) {
	var batch wire.Batch
	if err := json.NewDecoder(r.Body).Decode(&batch); err != nil {
		return nil, err
	}
	n := int64(max(1, len(batch.Operations)))
	c.most.Store(max(c.most.Load(), c.here.Add(n)))
	defer c.here.Add(-n)
	time.Sleep(100 * time.Millisecond)
	granted, err := json.Marshal(lease(time.Minute))
	if err != nil {
		return nil, err
	}
	if len(batch.Operations) == 0 {
		return response(r, http.StatusCreated, lease(time.Minute)), nil
	}
	results := wire.BatchResults{}
	for range batch.Operations {
		results.Results = append(results.Results, wire.BatchResult{Status: http.StatusCreated, Body: granted})
	}
	return response(r, http.StatusOK, results), nil
}

// Of a thousand calls at once only one batch is under way at a time, which a server answers in time. The time that
// the other calls wait does not count as time of their tries.
func TestABurstIsOneBatchAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, most = 1000, 128 + 2 // in a batch, and alone
		c := &crowd{}
		retries := 0
		locks, err := client.New([]string{"http://fake"}, client.WithHTTPClient(&http.Client{Transport: c}), client.WithOnRetry(func(client.Retry) { retries++ }))
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range calls {
			all.Go(func() {
				if _, err := locks.TryAcquire(t.Context(), fmt.Sprint("r", i)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got := c.most.Load(); got > most || retries > 0 {
			t.Errorf("%d operations were under way at once, want %d at most; %d tries too many", got, most, retries)
		}
	})
}
