package client_test

import (
	"context"
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

// The work's context has ended by the clock even if the goroutine that would cancel it has not run. Cause and Done
// agree.
func TestErrLooksAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connectFake(t, &fake{})
		const margin = 20 * time.Second
		stuck, free := make(chan struct{}), make(chan struct{})
		err := c.Do(t.Context(), "r", func(ctx context.Context, l *client.Lease) error {
			<-stuck // in its first extension
			time.Sleep(l.Validity() - margin - time.Nanosecond)
			if err := ctx.Err(); err != nil {
				t.Errorf("before the margin: %v", err)
			}
			time.Sleep(time.Nanosecond)
			inner := c.Do(ctx, "r", func(context.Context, *client.Lease) error { return errors.New("the work ran") })
			if !errors.Is(inner, client.ErrLeaseLost) {
				t.Errorf("a Do that is nested: %v", inner)
			}
			if !errors.Is(ctx.Err(), context.Canceled) || !errors.Is(context.Cause(ctx), client.ErrLeaseLost) {
				t.Errorf("in the margin: %v, %v", ctx.Err(), context.Cause(ctx))
			}
			<-ctx.Done()
			close(free)
			return nil
		}, client.Margin(margin), client.OnExtend(func(*client.Lease) {
			close(stuck)
			<-free
		}))
		failed, ok := asType[*client.Error](err)
		if !ok || failed.Op != "keep alive" || failed.Resource != "r" || !errors.Is(err, client.ErrLeaseLost) {
			t.Errorf("%v", err)
		}
	})
}

// However large the margin is, a lease lives through its first extensions, which come after a third of the TTL. The
// validity is a little shorter than what is left of the TTL.
func TestTheLargestMarginLeavesTimeToExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connectFake(t, &fake{})
		extended := make(chan struct{}, 3)
		err := c.Do(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
			for range cap(extended) {
				select {
				case <-extended:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			return nil
		}, client.Margin(time.Hour), client.OnExtend(func(*client.Lease) { extended <- struct{}{} }))
		if err != nil {
			t.Error(err)
		}
	})
}

// OnExtend is called for extensions alone, and not for tries that failed.
func TestOnExtendIsNotToldOfAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		c := connectFake(t, f)
		responds := func(with func(*http.Request) *http.Response) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.answer = with
		}
		err := c.Do(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
			responds(func(r *http.Request) *http.Response {
				return response(r, http.StatusServiceUnavailable, wire.Problem{Type: "/problems/no-quorum", Status: http.StatusServiceUnavailable})
			})
			<-ctx.Done()
			responds(nil) // so that the release ends
			return context.Cause(ctx)
		}, client.OnExtend(func(*client.Lease) { t.Error("it was told of an extension") }))
		if !errors.Is(err, client.ErrLeaseLost) {
			t.Errorf("%v", err)
		}
	})
}

// Errors name the operation and the resource, in lower case.
func TestErrors(t *testing.T) {
	f := &fake{held: &wire.AcquireRequest{Holder: "other"}}
	c := connectFake(t, f)
	_, err := c.TryAcquire(t.Context(), "r")
	problem, _ := asType[*client.ProblemError](err)
	if want := `acquire "r": the resource is locked (409)`; err == nil || err.Error() != want || !errors.Is(err, client.ErrHeld) || problem.Holder != "other" {
		t.Errorf("%v, want %s", err, want)
	}
	f.answers(func(r *http.Request) *http.Response { return response(r, http.StatusTeapot, nil) })
	for want, err := range map[string]error{
		`inspect "r": i'm a teapot (418)`:    second(c.Inspect(t.Context(), "r")),
		`acquire "a, b": i'm a teapot (418)`: second(c.AcquireAll(t.Context(), []string{"a", "b"})),
		`release: i'm a teapot (418)`:        c.Release(t.Context(), fakeID),
		`break "r": i'm a teapot (418)`:      c.Break(t.Context(), "r", 1),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// Text that is not UTF-8 would arrive as another text, so nothing is sent.
func TestMalformedRequestsAreNotSent(t *testing.T) {
	f := &fake{}
	c := connectFake(t, f)
	ctx := t.Context()
	const bad = "bin/\xff"
	refused := map[string]error{
		"Acquire":           second(c.Acquire(ctx, bad)),
		"TryAcquire":        second(c.TryAcquire(ctx, bad)),
		"AcquireAll":        second(c.AcquireAll(ctx, []string{"a", bad})),
		"Do":                c.Do(ctx, bad, nil),
		"TryDo":             c.TryDo(ctx, bad, nil),
		"DoAll":             c.DoAll(ctx, []string{"a", bad}, nil),
		"Inspect":           second(c.Inspect(ctx, bad)),
		"Break":             c.Break(ctx, bad, 1),
		"BreakAny":          c.BreakAny(ctx, bad),
		"no token":          c.Break(ctx, "r", 0),
		"a holder":          second(c.Acquire(ctx, "r", client.Holder(bad))),
		"metadata":          second(c.Acquire(ctx, "r", client.Metadata([]byte(`"`+bad+`"`)))),
		"no JSON":           second(c.Acquire(ctx, "r", client.Metadata([]byte(`{`)))),
		"a negative wait":   second(c.Acquire(ctx, "r", client.Wait(-1))),
		"microseconds":      second(c.Acquire(ctx, "r", client.TTL(time.Microsecond))),
		"extended by those": second(c.Extend(ctx, fakeID, time.Microsecond)),
	}
	for _, err := range c.Locks(ctx, bad) {
		refused["Locks"] = err
	}
	for call, err := range refused {
		if !errors.Is(err, client.ErrInvalid) || strings.Contains(fmt.Sprint(err), "\xff") {
			t.Errorf("%s: %v", call, err)
		}
	}
	if len(refused) != 17 || len(f.requests) != 0 {
		t.Errorf("%d calls sent %q", len(refused), f.requests)
	}
	if _, err := client.New([]string{"http://fake"}, client.WithHolder(bad)); err == nil {
		t.Error("a client has such a holder")
	}
}
