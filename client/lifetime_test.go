package client_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/client"
)

// Close cancels the work, keeps its lease alive until the work has ended, and returns when the lease is released.
// Calls that wait for a lease, or come later, get ErrClosed.
func TestCloseWaitsForWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		c := connectFake(t, f)
		var all sync.WaitGroup
		var cause, waited error
		var extended int
		all.Go(func() {
			err := c.Do(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
				<-ctx.Done()
				cause = context.Cause(ctx)
				before := f.count("POST /leases/current/extend")
				time.Sleep(time.Hour) // in the time of the test
				extended = f.count("POST /leases/current/extend") - before
				return nil
			})
			if err != nil {
				t.Errorf("Do: %v", err)
			}
		})
		synctest.Wait()
		all.Go(func() { _, waited = c.Acquire(t.Context(), "r") })
		synctest.Wait()

		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := f.count("DELETE /leases/current"); n != 1 {
			t.Errorf("%d releases when Close returns", n)
		}
		all.Wait()
		if !errors.Is(cause, client.ErrClosed) || errors.Is(cause, client.ErrLeaseLost) || extended < 100 {
			t.Errorf("the work's context ended with %v; %d extensions after that", cause, extended)
		}
		if !errors.Is(waited, client.ErrClosed) {
			t.Errorf("a waiting Acquire: %v", waited)
		}
		for range 2 {
			if err := c.Close(t.Context()); err != nil {
				t.Errorf("closed again: %v", err)
			}
		}
		if err := c.Do(t.Context(), "r", nil); !errors.Is(err, client.ErrClosed) {
			t.Errorf("Do after Close: %v", err)
		}
	})
}

// A Close whose context ends breaks off what still runs.
func TestCloseStopsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		c := connectFake(t, f)
		lease, err := c.Acquire(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		_, stop := lease.KeepAlive(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err = c.Close(ctx)
		if failed, ok := asType[*client.Error](err); !ok || failed.Op != "close" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		before := f.count("POST /leases/current/extend")
		time.Sleep(time.Hour)
		if n := f.count("POST /leases/current/extend"); before < 100 || n != before {
			t.Errorf("%d extensions before the end of Close, %d after it", before, n-before)
		}
		stop()
		stop()
		working, _ := lease.KeepAlive(t.Context())
		if !errors.Is(context.Cause(working), client.ErrClosed) {
			t.Errorf("KeepAlive after Close: %v", context.Cause(working))
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("a release by hand after Close: %v", err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("closed when all has ended: %v", err)
		}
	})
}

// A cancelled Acquire is given up in the background, and Close waits for it.
func TestCloseWaitsForCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var asked atomic.Int32
		f.answers(func(r *http.Request) *http.Response {
			switch {
			case asked.Add(1) == 1: // is never answered
				return nil
			case r.URL.Path == "/cancel":
				time.Sleep(time.Second)
				return response(r, http.StatusNoContent, nil)
			}
			return response(r, http.StatusCreated, lease(time.Minute))
		})
		c := connectFake(t, f)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Acquire(ctx, "r"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		begun := time.Now()
		if err := c.Close(t.Context()); err != nil || time.Since(begun) != time.Second || f.count("POST /cancel") != 1 {
			t.Errorf("%v after %s; requests %q", err, time.Since(begun), f.requests)
		}
	})
}

// A Client that was not made by New returns an error that says so, and so does everything that was made from it.
func TestZeroClient(t *testing.T) {
	var none *client.Client
	ctx := t.Context()
	for name, c := range map[string]*client.Client{"zero": {}, "nil": none} {
		_, acquire := c.Acquire(ctx, "r")
		_, try := c.TryAcquire(ctx, "r")
		_, lookUp := c.Lease(ctx, "id")
		_, extend := c.Extend(ctx, "id", 0)
		_, inspect := c.Inspect(ctx, "r")
		calls := map[string]error{
			"Acquire": acquire, "TryAcquire": try, "Lease": lookUp, "Extend": extend, "Inspect": inspect,
			"Release": c.Release(ctx, "id"), "Break": c.Break(ctx, "r", 1), "BreakAny": c.BreakAny(ctx, "r"), "Close": c.Close(ctx),
			"Do": c.Do(ctx, "r", nil), "TryDo": c.TryDo(ctx, "r", nil), "DoAll": c.DoAll(ctx, []string{"a", "b"}, nil),
		}
		for _, err := range c.Locks(ctx, "") {
			calls["Locks"] = err
		}
		if len(calls) != 13 {
			t.Errorf("%d calls", len(calls))
		}
		for call, err := range calls {
			if failed, ok := asType[*client.Error](err); !ok || failed.Op == "" || !strings.Contains(err.Error(), "use client.New") {
				t.Errorf("%s of a %s Client: %v", call, name, err)
			}
		}
	}
	var l client.Lease
	working, stop := l.KeepAlive(ctx)
	defer stop()
	if err := errors.Join(l.Extend(ctx), l.Release(ctx)); err == nil || l.Validity() != 0 || working.Err() == nil {
		t.Errorf("a zero Lease: %v", err)
	}
}
