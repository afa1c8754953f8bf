package clienttest_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/fencelock/fencelock/client"
)

// loseFirst does what the first break asks for, and loses its answer; then comes next.
func loseFirst(s *service, calls *atomic.Int32, next func()) {
	s.breaks(func(w http.ResponseWriter, r *http.Request, serve http.Handler) {
		if r.URL.Path == "/breaks" && calls.Add(1) == 1 {
			serve.ServeHTTP(httptest.NewRecorder(), r)
			next()
			panic(http.ErrAbortHandler)
		}
		serve.ServeHTTP(w, r)
	})
}

// A break whose answer was lost is sent again. It is done, and the next caller keeps the
// resource that it got in between.
func TestLostAnswerOfABreak(t *testing.T) {
	for _, taken := range []bool{false, true} {
		s := serve(t, newLocker(t))
		c, other := connect(t, s), connect(t, serve(t, s.locker))
		first, err := c.TryAcquire(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		var next *client.Lease
		var calls atomic.Int32
		loseFirst(s, &calls, func() {
			if taken {
				if next, err = other.TryAcquire(t.Context(), "r"); err != nil {
					t.Error(err)
				}
			}
		})
		if err := c.Break(t.Context(), "r", first.Token()); err != nil || calls.Load() != 2 {
			t.Errorf("taken %t: %v after %d calls", taken, err, calls.Load())
		}
		if next != nil {
			if err := next.Extend(t.Context()); err != nil {
				t.Errorf("the next lease: %v", err)
			}
		}
	}
}

// A break of any lease is not sent again once it may have been done: it would end the next
// lease.
func TestBreakAnyIsSentOnce(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	if _, err := c.TryAcquire(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int32
	loseFirst(s, &calls, func() {})
	if err := c.BreakAny(t.Context(), "r"); !errors.Is(err, client.ErrUnavailable) || calls.Load() != 1 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
}
