package clienttest_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// scripted is a service without a network, for tests in a bubble of testing/synctest.
type scripted struct {
	mu       sync.Mutex
	requests []*http.Request
	bodies   []wire.AcquireRequest
	// answer is what a request gets; status 0 is no response, until its context ends.
	answer func(r *http.Request, acquire wire.AcquireRequest) (status int, server, body string)
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	var acquire wire.AcquireRequest
	if r.Body != nil {
		if err := json.NewDecoder(r.Body).Decode(&acquire); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.requests, s.bodies = append(s.requests, r), append(s.bodies, acquire)
	s.mu.Unlock()
	status, server, body := s.answer(r, acquire)
	if r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	if status == 0 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	header := http.Header{wire.HeaderServer: {server}}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// sent are the requests so far of a method and path.
func (s *scripted) sent(method, path string) (sent []*http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if r.Method == method && r.URL.Path == path {
			sent = append(sent, r)
		}
	}
	return sent
}

func (s *scripted) client(t *testing.T, servers string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(strings.Split(servers, ","), append([]client.Option{client.WithHTTPClient(&http.Client{Transport: s})}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const (
	one     = "http://balancer"
	granted = `{"kind":"lease","resource":"r","lease_id":"id","fencing_token":7,"ttl_ms":60000,"validity_ms":59000,"max_hold_remaining_ms":null,"holder":"","metadata":null}`
)

func refusal(kind string) string { return `{"type":"/problems/` + kind + `","title":"Refused"}` }

// keep keeps a poll for as long as a server does.
func keep(r *http.Request, acquire wire.AcquireRequest) {
	kept := time.Duration(0)
	if acquire.WaitMS != nil {
		kept = time.Duration(*acquire.WaitMS) * time.Millisecond
	}
	if prefer, ok := strings.CutPrefix(r.Header.Get(wire.HeaderPrefer), "wait="); ok {
		if d, err := time.ParseDuration(prefer + "s"); err == nil && d < kept {
			kept = d
		}
	}
	select {
	case <-time.After(kept):
	case <-r.Context().Done():
	}
}

// A long wait is a series of polls under one key, none longer than a proxy allows.
func TestWaitIsASeriesOfPolls(t *testing.T) {
	for poll, want := range map[time.Duration]string{0: "wait=45", 10 * time.Second: "wait=10"} {
		synctest.Test(t, func(t *testing.T) {
			free := time.Now().Add(3 * time.Minute)
			s := &scripted{}
			s.answer = func(r *http.Request, acquire wire.AcquireRequest) (int, string, string) {
				if r.Method == http.MethodGet {
					return http.StatusOK, "a", `{}`
				}
				begun := time.Now()
				keep(r, acquire)
				if kept := time.Since(begun); kept > 45*time.Second {
					t.Errorf("a poll of %s", kept)
				}
				if time.Now().Before(free) {
					return http.StatusConflict, "a", refusal("wait-timeout")
				}
				return http.StatusCreated, "a", granted
			}
			var opts []client.Option
			if poll > 0 {
				opts = append(opts, client.WithPoll(poll))
			}
			if _, err := s.client(t, one, opts...).Acquire(t.Context(), "r"); err != nil {
				t.Fatal(err)
			}
			keys := map[string]bool{}
			polls := s.sent(http.MethodPost, "/locks")
			for _, r := range polls {
				keys[r.Header.Get(wire.HeaderIdempotencyKey)] = true
				if r.Header.Get(wire.HeaderPrefer) != want {
					t.Errorf("Prefer: %q", r.Header.Get(wire.HeaderPrefer))
				}
			}
			if len(keys) != 1 || len(polls) < 4 {
				t.Errorf("%d polls under %d keys", len(polls), len(keys))
			}
		})
	}
}

// The wait ends when it should, between two polls or in one.
func TestWaitEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: func(r *http.Request, acquire wire.AcquireRequest) (int, string, string) {
			if r.Method == http.MethodGet {
				return http.StatusOK, "a", `{}`
			}
			keep(r, acquire)
			return http.StatusConflict, "a", refusal("wait-timeout")
		}}
		for _, wait := range []time.Duration{time.Second, 45 * time.Second, 2 * time.Minute} {
			begun := time.Now()
			_, err := s.client(t, one).Acquire(t.Context(), "r", client.Wait(wait))
			if took := time.Since(begun); !errors.Is(err, client.ErrHeld) || took < wait-100*time.Millisecond || took > wait+100*time.Millisecond {
				t.Errorf("%s: %v after %s", wait, err, took)
			}
		}
	})
}

// Behind a balancer that knows nothing, one of two servers is frozen for an hour: every
// other request gets no answer. A wait is late, and never fails, also for a client that
// sends nothing else.
func TestFrozenServerBehindABalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn int
		var mu sync.Mutex
		free := time.Now().Add(time.Hour)
		s := &scripted{}
		s.answer = func(r *http.Request, acquire wire.AcquireRequest) (int, string, string) {
			mu.Lock()
			turn++
			frozen := turn%2 == 1
			mu.Unlock()
			switch {
			case frozen:
				return 0, "", ""
			case r.Method == http.MethodGet:
				return http.StatusOK, "b", `{}`
			}
			keep(r, acquire)
			if time.Now().Before(free) {
				return http.StatusConflict, "b", refusal("wait-timeout")
			}
			return http.StatusCreated, "b", granted
		}
		var retries []client.Retry
		c := s.client(t, one, client.WithOnRetry(func(r client.Retry) { retries = append(retries, r) }))
		begun := time.Now()
		if _, err := c.Acquire(t.Context(), "r"); err != nil {
			t.Fatalf("%v after %s", err, time.Since(begun))
		}
		if late := time.Since(free); late > 2*time.Minute {
			t.Errorf("granted %s after it could be", late)
		}
		for _, r := range retries {
			if r.Err.Op != "acquire" || r.Err.Resource != "r" || !errors.Is(r.Err, client.ErrUnavailable) {
				t.Fatalf("%+v", r)
			}
		}
		if len(retries) == 0 {
			t.Error("the observer was not called")
		}
	})
}

// A poll that got no answer costs its margin: its own time, and the timeout.
func TestLostPollCostsItsMargin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		polls := 0
		s := &scripted{}
		s.answer = func(r *http.Request, _ wire.AcquireRequest) (int, string, string) {
			switch {
			case r.Method == http.MethodGet:
				return http.StatusOK, []string{"a", "b"}[len(s.sent(http.MethodGet, "/healthz"))%2], `{}`
			case polls == 0:
				polls++
				return 0, "", ""
			}
			return http.StatusCreated, "b", granted
		}
		begun := time.Now()
		_, err := s.client(t, one).Acquire(t.Context(), "r")
		if took := time.Since(begun); err != nil || took > 51*time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// Of two servers with URLs of their own one freezes while many wait there. One probe for
// all of them finds out, and they wait at the other.
func TestFrozenServerIsProbedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 50
		s := &scripted{}
		s.answer = func(r *http.Request, _ wire.AcquireRequest) (int, string, string) {
			if r.URL.Host == "first" {
				return 0, "", ""
			}
			return http.StatusCreated, "b", granted
		}
		c := s.client(t, "http://first,http://second")
		begun := time.Now()
		var waiting sync.WaitGroup
		for range waiters {
			waiting.Go(func() {
				if _, err := c.Acquire(t.Context(), "r"); err != nil {
					t.Error(err)
				}
			})
		}
		waiting.Wait()
		if took := time.Since(begun); took > 11*time.Second {
			t.Errorf("it took %s", took)
		}
		if n := len(s.sent(http.MethodGet, "/healthz")); n != 1 {
			t.Errorf("%d probes", n)
		}
	})
}

// A restart gives a server a new name, and makes no balancer of its URL.
func TestRestartedServerIsStillProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []string{"a", "a", "b", "b", "c"}
		s := &scripted{}
		s.answer = func(r *http.Request, _ wire.AcquireRequest) (int, string, string) {
			if r.Method == http.MethodGet && len(names) > 0 {
				name := names[0]
				names = names[1:]
				return http.StatusOK, name, `{}`
			}
			if r.URL.Host == "first" {
				return 0, "", ""
			}
			return http.StatusCreated, "z", granted
		}
		begun := time.Now()
		_, err := s.client(t, "http://first,http://second").Acquire(t.Context(), "r")
		if took := time.Since(begun); err != nil || took > 36*time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// Without a quorum every way to acquire returns when the patience is over, and no later,
// and the observer learns of it at once.
func TestLostQuorum(t *testing.T) {
	const (
		longestPause = 1500 * time.Millisecond // one that would end after the patience is not begun
		threePauses  = 175 * time.Millisecond  // half of 50, 100 and 200 ms
	)
	for name, c := range map[string]struct {
		opts     []client.Option
		acquire  func(c *client.Client, ctx context.Context) error
		atLeast  time.Duration
		atMost   time.Duration
		servedIn time.Duration // how long a server takes to answer
	}{
		"Do":                 {nil, func(c *client.Client, ctx context.Context) error { return c.Do(ctx, "r", nil) }, 15*time.Second - longestPause, 16 * time.Second, 0},
		"Do, slow answers":   {nil, func(c *client.Client, ctx context.Context) error { return c.Do(ctx, "r", nil) }, 15*time.Second - longestPause, 20 * time.Second, 3 * time.Second},
		"Do, more patience":  {[]client.Option{client.WithPatience(time.Minute)}, func(c *client.Client, ctx context.Context) error { return c.Do(ctx, "r", nil) }, time.Minute - longestPause, 61 * time.Second, 0},
		"TryDo":              {nil, func(c *client.Client, ctx context.Context) error { return c.TryDo(ctx, "r", nil) }, threePauses, time.Second, 0},
		"TryDo, no patience": {[]client.Option{client.WithPatience(0)}, func(c *client.Client, ctx context.Context) error { return c.TryDo(ctx, "r", nil) }, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{answer: func(r *http.Request, _ wire.AcquireRequest) (int, string, string) {
					select {
					case <-time.After(c.servedIn):
					case <-r.Context().Done():
					}
					if r.Method == http.MethodGet {
						return http.StatusOK, "a", `{}`
					}
					return http.StatusServiceUnavailable, "a", refusal("no-quorum")
				}}
				var retries []client.Retry
				begun := time.Now()
				locks := s.client(t, "http://a,http://b", append(c.opts, client.WithOnRetry(func(r client.Retry) { retries = append(retries, r) }))...)
				err := c.acquire(locks, t.Context())
				took := time.Since(begun)
				problem, ok := errors.AsType[*client.ProblemError](err)
				says := ok && problem.Kind() == "no-quorum" || c.servedIn > 0 // slow answers are not all waited for
				if !says || !errors.Is(err, client.ErrUnavailable) || took < c.atLeast || took > c.atMost {
					t.Errorf("%v after %s", err, took)
				}
				if c.atLeast > 0 && (len(retries) < 2 || retries[0].Failing > 2*c.servedIn || retries[0].Tries != 2 || retries[0].Pause <= 0) {
					t.Errorf("the observer got %+v", retries)
				}
				if err := locks.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A server that is lost is not the last that is asked: there is a retry at least.
func TestOneServerLosesOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		s.answer = func(r *http.Request, _ wire.AcquireRequest) (int, string, string) {
			if len(s.sent(r.Method, r.URL.Path)) == 1 {
				return 0, "", ""
			}
			return http.StatusCreated, "a", granted
		}
		if _, err := s.client(t, one).TryAcquire(t.Context(), "r"); err != nil {
			t.Error(err)
		}
	})
}

// However an acquire is cancelled, it returns at once with the context's error and
// nothing else, and its request is given up by a goroutine for which Close waits.
func TestCancelledAcquire(t *testing.T) {
	boom := errors.New("boom")
	for name, status := range map[string]int{"no answer": 0, "no quorum": http.StatusServiceUnavailable, "held": http.StatusConflict} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{}
				ctx, cancel := context.WithCancelCause(t.Context())
				s.answer = func(r *http.Request, _ wire.AcquireRequest) (int, string, string) {
					switch {
					case r.URL.Path == "/cancel":
						time.Sleep(time.Second)
						return http.StatusNoContent, "a", ""
					case r.Method == http.MethodGet:
						return http.StatusOK, "a", `{}`
					case status == http.StatusConflict:
						return status, "a", refusal("wait-timeout")
					}
					return status, "a", refusal("no-quorum")
				}
				c := s.client(t, one)
				time.AfterFunc(3*time.Second, func() { cancel(boom) })
				begun := time.Now()
				_, err := c.Acquire(ctx, "r")
				if took := time.Since(begun); took > 3*time.Second+time.Millisecond {
					t.Errorf("it took %s", took)
				}
				if !errors.Is(err, context.Canceled) || !errors.Is(err, boom) || errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrHeld) {
					t.Error(err)
				}
				if err := c.Close(t.Context()); err != nil {
					t.Error(err)
				}
				s.wantCancelled(t)
			})
		})
	}
}

// A caller that is cancelled as the answer to a poll has come gives up the place that the poll kept.
func TestCancelledAsAPollEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		s.answer = func(r *http.Request, _ wire.AcquireRequest) (int, string, string) {
			if r.URL.Path == "/cancel" {
				return http.StatusNoContent, "a", ""
			}
			return http.StatusConflict, "a", refusal("wait-timeout")
		}
		ctx, cancel := context.WithCancel(t.Context())
		read := func(r *http.Request) (*http.Response, error) {
			resp, err := s.RoundTrip(r)
			if err == nil && r.URL.Path == "/locks" {
				resp.Body = bodyThatEnds{resp.Body, cancel}
			}
			return resp, err
		}
		c, err := client.New([]string{one}, client.WithHTTPClient(&http.Client{Transport: roundTripper(read)}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Acquire(ctx, "r"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		s.wantCancelled(t)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// bodyThatEnds calls a function when it has been read.
type bodyThatEnds struct {
	io.ReadCloser
	ended func()
}

func (b bodyThatEnds) Close() error {
	b.ended()
	return b.ReadCloser.Close()
}

// wantCancelled wants a cancel under the key of the acquire.
func (s *scripted) wantCancelled(t *testing.T) {
	t.Helper()
	acquires, cancels := s.sent(http.MethodPost, "/locks"), s.sent(http.MethodPost, "/cancel")
	if len(cancels) == 0 {
		t.Fatal("no cancel was sent")
	}
	if got, want := cancels[0].Header.Get(wire.HeaderIdempotencyKey), acquires[0].Header.Get(wire.HeaderIdempotencyKey); got == "" || got != want {
		t.Errorf("the cancel has the key %q, want %q", got, want)
	}
}

// A context that has ended sends nothing.
func TestEndedContextSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.client(t, one).Acquire(ctx, "r"); !errors.Is(err, context.Canceled) || len(s.requests) > 0 {
			t.Errorf("%v, %d requests", err, len(s.requests))
		}
	})
}

// An acquire whose tries may have taken effect is given up, too.
func TestUnansweredAcquireIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		frozen := time.Now().Add(12 * time.Second)
		s.answer = func(r *http.Request, _ wire.AcquireRequest) (int, string, string) {
			switch {
			case time.Now().Before(frozen):
				return 0, "", ""
			case r.URL.Path == "/cancel":
				return http.StatusNoContent, "a", ""
			}
			return http.StatusOK, "a", granted
		}
		c := s.client(t, one, client.WithPatience(5*time.Second))
		if _, err := c.TryAcquire(t.Context(), "r"); !errors.Is(err, client.ErrUnavailable) {
			t.Fatal(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		s.wantCancelled(t)
	})
}

func TestPollMustBeASecond(t *testing.T) {
	if _, err := client.New([]string{one}, client.WithPoll(999*time.Millisecond)); err == nil {
		t.Error("taken")
	}
}
