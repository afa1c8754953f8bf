package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// Options that no service accepts are refused before anything is sent.
func TestOptionsAreCheckedFirst(t *testing.T) {
	names := make([]string, 17)
	for i := range names {
		names[i] = fmt.Sprint("r", i)
	}
	long := strings.Repeat("x", 300)
	f := &fake{}
	c := connectFake(t, f)
	for name, err := range map[string]error{
		"Slots(0)":           acquired(c.Acquire(t.Context(), "r", client.Slots(0))),
		"Slots(33)":          acquired(c.Acquire(t.Context(), "r", client.Slots(33))),
		"slots of two":       acquired(c.AcquireAll(t.Context(), names[:2], client.Slots(2))),
		"TTL(-1ms)":          acquired(c.Acquire(t.Context(), "r", client.TTL(-time.Millisecond))),
		"TTL(99ms)":          acquired(c.Acquire(t.Context(), "r", client.TTL(99*time.Millisecond))),
		"TTL(25h)":           acquired(c.Acquire(t.Context(), "r", client.TTL(25*time.Hour))),
		"MinHold(-1ms)":      acquired(c.Acquire(t.Context(), "r", client.MinHold(-time.Millisecond))),
		"MinHold above TTL":  acquired(c.Acquire(t.Context(), "r", client.TTL(time.Second), client.MinHold(2*time.Second))),
		"MaxHold below TTL":  acquired(c.Acquire(t.Context(), "r", client.TTL(2*time.Second), client.MaxHold(time.Second))),
		"MaxHold of 11 y":    acquired(c.Acquire(t.Context(), "r", client.MaxHold(11*365*24*time.Hour))),
		"Wait(-1ms)":         acquired(c.Acquire(t.Context(), "r", client.Wait(-time.Millisecond))),
		"Patience(-1ms)":     acquired(c.Acquire(t.Context(), "r", client.Patience(-time.Millisecond))),
		"no resource":        acquired(c.AcquireAll(t.Context(), nil)),
		"17 resources":       acquired(c.AcquireAll(t.Context(), names)),
		"one twice":          acquired(c.AcquireAll(t.Context(), []string{"r", "s", "r"})),
		"a holder of 300":    acquired(c.Acquire(t.Context(), "r", client.Holder(long))),
		"a holder's newline": acquired(c.Acquire(t.Context(), "r", client.Holder("a\nb"))),
		"metadata of 5000":   acquired(c.Acquire(t.Context(), "r", client.Metadata(json.RawMessage(`"`+strings.Repeat("x", 5000)+`"`)))),
		"Margin(-2s)":        c.Do(t.Context(), "r", nil, client.Margin(-2*time.Second)),
	} {
		if !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(f.requests) > 0 {
		t.Errorf("it sent %v", f.requests)
	}
	if _, err := client.New([]string{"http://fake"}, client.WithHolder(long)); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("a client's holder of 300 bytes: %v", err)
	}
}

func acquired(_ *client.Lease, err error) error { return err }

// KeepAlive returns no error. With wrong options its context has ended, and its cause says why.
func TestKeepAliveChecksItsOptions(t *testing.T) {
	l, err := connectFake(t, &fake{}).Acquire(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	working, stop := l.KeepAlive(t.Context(), client.Margin(-time.Second))
	defer stop()
	if cause := context.Cause(working); !errors.Is(cause, client.ErrInvalid) {
		t.Error(cause)
	}
}

// The settings that several calls share can be passed to Do as one option, and to Acquire as several.
func TestAcquireOptionsInASlice(t *testing.T) {
	f := &fake{}
	c := connectFake(t, f)
	settings := client.AcquireOptions{client.Holder("me"), client.TTL(time.Second)}
	holder := func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.held.Holder
	}
	err := c.Do(t.Context(), "r", func(context.Context, *client.Lease) error {
		if holder() != "me" {
			t.Errorf("held by %q", holder())
		}
		return nil
	}, settings, client.Margin(time.Millisecond))
	if err != nil {
		t.Error(err)
	}
	if _, err := c.Acquire(t.Context(), "r", settings...); err != nil || holder() != "me" {
		t.Errorf("%v, held by %q", err, holder())
	}
}

// Every field of the error can be read for every kind of refusal.
func TestProblemErrorsFields(t *testing.T) {
	f := &fake{}
	c := connectFake(t, f)
	for _, answer := range []wire.Problem{
		{Type: "/problems/no-quorum", Title: "No quorum", Status: http.StatusTooManyRequests},
		{Type: "/problems/invalid-request", Status: http.StatusBadRequest},
		{Type: "/problems/lock-held", Status: http.StatusConflict, HeldDetails: &wire.HeldDetails{Holder: "w", FencingToken: 7, RemainingMS: 1500, Waiters: 2}},
		{Type: "/problems/wait-timeout", Status: http.StatusConflict, WaitDetails: &wire.WaitDetails{Position: 3, WaitedMS: 20}},
		{Type: "/problems/stale-token", Status: http.StatusPreconditionFailed, StaleDetails: &wire.StaleDetails{Presented: 5, HighestToken: 9}},
	} {
		f.answers(func(r *http.Request) *http.Response { return response(r, answer.Status, answer) })
		_, err := c.TryAcquire(t.Context(), "r", client.Patience(0))
		p, ok := asType[*client.ProblemError](err)
		if !ok {
			t.Errorf("%s: %v", answer.Type, err)
			continue
		}
		if held := answer.HeldDetails; held != nil && (p.Holder != "w" || p.FencingToken != 7 || p.Remaining != 1500*time.Millisecond || p.Waiters != 2) {
			t.Errorf("%+v", p)
		}
		if held := answer.HeldDetails; held == nil && (p.Holder != "" || p.FencingToken != 0 || p.Remaining != 0 || p.Waiters != 0) {
			t.Errorf("%+v", p)
		}
		if wait := answer.WaitDetails; wait != nil && (p.Position != 3 || p.Waited != 20*time.Millisecond) {
			t.Errorf("%+v", p)
		}
		if stale := answer.StaleDetails; stale != nil && (p.Presented != 5 || p.HighestToken != 9) {
			t.Errorf("%+v", p)
		}
		if p.Wire().Type != answer.Type {
			t.Errorf("%+v", p.Wire())
		}
	}
}

// TryDo does not wait in the queue, but repeats its call for its patience while no server can serve it.
func TestTryDoHeedsPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		c := connectFake(t, f)
		up := time.Now().Add(5 * time.Second)
		f.answers(func(r *http.Request) *http.Response {
			if time.Now().Before(up) {
				return response(r, http.StatusBadGateway, nil)
			}
			return response(r, http.StatusOK, lease(time.Minute))
		})
		work := func(context.Context, *client.Lease) error { return nil }
		if err := c.TryDo(t.Context(), "r", work); !errors.Is(err, client.ErrUnavailable) || time.Until(up) < 3*time.Second {
			t.Errorf("without: %v", err)
		}
		if err := c.TryDo(t.Context(), "r", work, client.Patience(10*time.Second)); err != nil || time.Since(up) > 2*time.Second {
			t.Errorf("with: %v, %s after the service was up", err, time.Since(up))
		}
		if err := c.Close(t.Context()); err != nil { // what was in doubt is cancelled
			t.Error(err)
		}
	})
}

// When the context of a Do has ended, a slow release does not delay the return. Close waits for that release.
func TestDoDoesNotOutliveItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		c := connectFake(t, f)
		var released time.Time
		f.answers(func(r *http.Request) *http.Response {
			if r.Method == http.MethodDelete {
				time.Sleep(3 * time.Second)
				released = time.Now()
			}
			return response(r, http.StatusOK, lease(time.Minute))
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		err := c.Do(ctx, "r", func(ctx context.Context, _ *client.Lease) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took > 1500*time.Millisecond {
			t.Errorf("%v after %s", err, took)
		}
		if err := c.Close(t.Context()); err != nil || released.IsZero() {
			t.Errorf("%v, released at %s", err, released)
		}
	})
}

// The error after a deadline says for what the call waited.
func TestDeadlineSaysWhatItWaitedFor(t *testing.T) {
	holds := func(r *http.Request) *http.Response { // as a server that ends the wait in time
		var body wire.AcquireRequest
		_ = json.NewDecoder(r.Body).Decode(&body)
		time.Sleep(time.Duration(*body.WaitMS) * time.Millisecond)
		return response(r, http.StatusConflict, wire.Problem{Type: "/problems/wait-timeout", Status: http.StatusConflict, HeldDetails: &wire.HeldDetails{Holder: "w"}})
	}
	for name, c := range map[string]struct {
		answer func(*http.Request) *http.Response
		want   error
	}{
		"held":      {holds, client.ErrHeld},
		"no answer": {func(*http.Request) *http.Response { return nil }, client.ErrUnavailable},
		"no quorum": {func(r *http.Request) *http.Response {
			return response(r, http.StatusServiceUnavailable, wire.Problem{Type: "/problems/no-quorum", Status: http.StatusServiceUnavailable})
		}, client.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				f.answers(func(r *http.Request) *http.Response {
					if r.URL.Path == "/locks" {
						return c.answer(r)
					}
					return response(r, http.StatusOK, nil)
				})
				locks := connectFake(t, f)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				begun := time.Now()
				_, err := locks.Acquire(ctx, "r")
				if !errors.Is(err, c.want) || !errors.Is(err, context.DeadlineExceeded) || ctx.Err() == nil || time.Since(begun) > 3*time.Second {
					t.Errorf("%v after %s", err, time.Since(begun))
				}
				if p, ok := asType[*client.ProblemError](err); errors.Is(c.want, client.ErrHeld) && (!ok || p.Holder != "w") {
					t.Errorf("held by %+v", p)
				}
				if err := locks.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
