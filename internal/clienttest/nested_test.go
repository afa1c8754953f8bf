package clienttest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
)

// counts passes every request on, and counts it.
func (s *service) counts() *atomic.Int32 {
	var requests atomic.Int32
	s.breaks(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		requests.Add(1)
		next.ServeHTTP(w, r)
	})
	return &requests
}

// The inner Do has the outer one's lease, whatever its options, and asks the
// service for nothing: neither when it begins nor when it returns.
func TestNestedDoJoins(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	requests := s.counts()
	const ttl = 9 * time.Second // its first extension comes after the test
	options := [][]client.DoOption{{client.Wait(0)}, {client.TTL(2 * time.Second)}, {client.Holder("other")}}
	err := c.TryDo(t.Context(), "r", func(ctx context.Context, outer *client.Lease) error {
		before := requests.Load()
		for _, opts := range options {
			if err := c.Do(ctx, "r", func(ctx context.Context, middle *client.Lease) error {
				return c.Do(ctx, "r", func(_ context.Context, inner *client.Lease) error {
					if middle != outer || inner != outer || inner.TTL() != ttl {
						return errors.New("another lease")
					}
					return nil
				})
			}, opts...); err != nil {
				return err
			}
		}
		if n := requests.Load() - before; n != 0 {
			return fmt.Errorf("%d requests", n)
		}
		if !held(t, s.locker, "r") {
			return errors.New("released by the inner Do")
		}
		return nil
	}, client.TTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	if held(t, s.locker, "r") {
		t.Error("still held after the outer Do")
	}
}

func TestNestedDosInParallel(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	const callers = 50
	var joined atomic.Int32
	err := c.Do(t.Context(), "r", func(ctx context.Context, outer *client.Lease) error {
		var inner sync.WaitGroup
		errs := make([]error, callers)
		for i := range callers {
			inner.Go(func() {
				errs[i] = c.Do(ctx, "r", func(_ context.Context, l *client.Lease) error {
					if l == outer {
						joined.Add(1)
					}
					return nil
				})
			})
		}
		inner.Wait()
		if !held(t, s.locker, "r") {
			t.Error("released by an inner Do")
		}
		return errors.Join(errs...)
	})
	if err != nil || joined.Load() != callers || held(t, s.locker, "r") {
		t.Errorf("%v; %d joined; held: %v", err, joined.Load(), held(t, s.locker, "r"))
	}
}

// An inner Do that is still at work when the outer one returns keeps the lease
// alive, and releases it.
func TestInnerDoOutlivesTheOuter(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	c := connect(t, s)
	var inner sync.WaitGroup
	var innerErr error
	var lease *client.Lease
	joined, finish := make(chan struct{}), make(chan struct{})
	err := c.TryDo(t.Context(), "r", func(ctx context.Context, outer *client.Lease) error {
		lease = outer
		inner.Go(func() {
			innerErr = c.Do(context.WithoutCancel(ctx), "r", func(ctx context.Context, _ *client.Lease) error {
				close(joined)
				<-finish
				return context.Cause(ctx)
			})
		})
		<-joined
		return nil
	}, client.TTL(short))
	if err != nil {
		t.Fatal(err)
	}
	first := lease.Until()
	testenv.Eventually(t, 10*time.Second, func() error {
		if !lease.Until().After(first.Add(short)) {
			return errors.New("not kept for another TTL")
		}
		return nil
	})
	if !held(t, s.locker, "r") {
		t.Error("released by the outer Do")
	}
	close(finish)
	inner.Wait()
	if innerErr != nil || held(t, s.locker, "r") {
		t.Errorf("inner: %v; held: %v", innerErr, held(t, s.locker, "r"))
	}
}

// A Do under a context whose outer Do is over takes a lease of its own.
func TestDoAfterItsOuter(t *testing.T) {
	c := connect(t, serve(t, newLocker(t)))
	var stale context.Context
	var first fencing.Token
	work := func(ctx context.Context, l *client.Lease) error {
		stale, first = context.WithoutCancel(ctx), l.Token() //nolint:fatcontext // it is the point
		return nil
	}
	if err := c.Do(t.Context(), "r", work); err != nil {
		t.Fatal(err)
	}
	err := c.Do(stale, "r", func(_ context.Context, l *client.Lease) error {
		if l.Token() <= first {
			return fmt.Errorf("token %d after %d", l.Token(), first)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The loss of the lease reaches every Do that is nested, also one whose context
// does not end with that of the work around it.
func TestLossReachesInnerDo(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	c := connect(t, s)
	var inner error
	err := c.TryDo(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
		inner = c.Do(context.WithoutCancel(ctx), "r", func(ctx context.Context, _ *client.Lease) error {
			if err := s.locker.Break(t.Context(), "r", 0); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		})
		return nil
	}, client.TTL(short))
	if !errors.Is(inner, client.ErrLeaseLost) || !errors.Is(err, client.ErrLeaseLost) {
		t.Fatalf("inner: %v; outer: %v", inner, err)
	}
}

// Within work whose lease was lost a Do is refused: with a lease of its own it
// would work beside, and with a larger token than, what is around it.
func TestNestedDoAfterTheLoss(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	c := connect(t, s)
	refused := func(context.Context, *client.Lease) error { return errors.New("the work ran") }
	err := c.TryDo(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
		if err := s.locker.Break(t.Context(), "r", 0); err != nil {
			return err
		}
		<-ctx.Done()
		requests := s.counts()
		for _, under := range []context.Context{ctx, context.WithoutCancel(ctx)} {
			err := c.Do(under, "r", refused)
			if !errors.Is(err, client.ErrLeaseLost) || err.Error() != context.Cause(ctx).Error() {
				t.Errorf("nested after the loss: %v", err)
			}
		}
		if n := requests.Load(); n != 0 {
			t.Errorf("%d requests", n)
		}
		return nil
	}, client.TTL(short))
	if !errors.Is(err, client.ErrLeaseLost) {
		t.Fatal(err)
	}
	if err := c.Do(t.Context(), "r", func(context.Context, *client.Lease) error { return nil }); err != nil {
		t.Errorf("a Do after that: %v", err)
	}
}

// A nested Do does not run its work under a context that has ended, as none does.
func TestNestedDoUnderAnEndedContext(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	err := c.Do(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return c.Do(ended, "r", func(context.Context, *client.Lease) error { return errors.New("the work ran") })
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrLeaseLost) {
		t.Error(err)
	}
	if held(t, s.locker, "r") {
		t.Error("still held")
	}
}

// A panic in nested work counts it out, too.
func TestNestedDoPanics(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	err := c.Do(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
		defer func() { _ = recover() }()
		return c.Do(ctx, "r", func(context.Context, *client.Lease) error { panic("work") })
	})
	if err != nil || held(t, s.locker, "r") {
		t.Errorf("%v; held: %v", err, held(t, s.locker, "r"))
	}
}

// Other resources are leases of their own, and each joins its own.
func TestNestedDoOfAnotherResource(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	err := c.Do(t.Context(), "a", func(ctx context.Context, a *client.Lease) error {
		err := c.Do(ctx, "b", func(ctx context.Context, b *client.Lease) error {
			if b.Resource() != "b" {
				return fmt.Errorf("a lease of %q", b.Resource())
			}
			return c.Do(ctx, "a", func(_ context.Context, again *client.Lease) error {
				if again != a {
					return errors.New("another lease of a")
				}
				return nil
			})
		})
		if held(t, s.locker, "b") || !held(t, s.locker, "a") {
			err = errors.Join(err, errors.New("the inner Do releases b, and b alone"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What does not join finds the resource held, as any other caller does.
func TestWhatDoesNotJoin(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	refused := func(context.Context, *client.Lease) error { return errors.New("the work ran") }
	err := c.Do(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
		_, acquire := c.TryAcquire(ctx, "r")
		for what, err := range map[string]error{
			"Acquire":         acquire,
			"another client":  connect(t, s).TryDo(ctx, "r", refused),
			"another context": c.TryDo(t.Context(), "r", refused),
		} {
			if !errors.Is(err, client.ErrHeld) {
				t.Errorf("%s: %v", what, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What would wait for the lease of the Do around it is found at once, by any client of the
// same servers, and what is not held is granted.
func TestWaitingForOneselfIsFound(t *testing.T) {
	s := serve(t, newLocker(t))
	c, other := connect(t, s), connect(t, s)
	err := c.DoAll(t.Context(), []string{"a", "b"}, func(ctx context.Context, _ *client.Lease) error {
		nothing := func(context.Context, *client.Lease) error { return errors.New("it ran") }
		_, acquired := c.Acquire(ctx, "a")
		for name, err := range map[string]error{
			"Acquire": acquired, "a part": c.Do(ctx, "b", nothing), "more": c.DoAll(ctx, []string{"b", "c"}, nothing),
			"another client": other.DoAll(ctx, []string{"a", "b"}, nothing), "for a time": c.Do(ctx, "a", nothing, client.Wait(time.Minute)),
		} {
			if !errors.Is(err, client.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := c.TryDo(ctx, "a", nothing); !errors.Is(err, client.ErrHeld) {
			t.Errorf("without a wait: %v", err)
		}
		done := func(context.Context, *client.Lease) error { return nil }
		return errors.Join(c.Do(ctx, "c", done), c.Do(ctx, "a", done, client.Slots(2)))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Do(t.Context(), "a", func(context.Context, *client.Lease) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// A refusal names the server and the request, and a 404 of another program says what it is.
func TestErrorsNameServerAndRequest(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	err := c.Do(t.Context(), "r", func(ctx context.Context, _ *client.Lease) error {
		_, err := c.TryAcquire(ctx, "r")
		return err
	})
	var refusal *client.ProblemError
	if !errors.As(err, &refusal) || refusal.Kind() != "lock-held" || refusal.URL == "" || c.String() != "client of "+refusal.URL || refusal.RequestID == "" {
		t.Fatalf("%v: %+v", err, refusal)
	}
	s.breaks(func(w http.ResponseWriter, r *http.Request, _ http.Handler) { http.NotFound(w, r) })
	if _, err = c.TryAcquire(t.Context(), "r"); err == nil || !strings.Contains(err.Error(), "did not come from fencelock") {
		t.Fatal(err)
	}
}
