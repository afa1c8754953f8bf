package fencelocktest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencelocktest"
	"github.com/fencelock/fencelock/fencing"
)

// A holder whose lease was ended is told within a moment, and the next one gets the lock.
func TestEnd(t *testing.T) {
	t.Parallel()
	service := fencelocktest.Start(t)
	locks := service.Client()
	begun := time.Now()
	err := locks.Do(t.Context(), "a", func(ctx context.Context, _ *client.Lease) error {
		service.End("a")
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, client.ErrLeaseLost) || time.Since(begun) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(begun))
	}
	if l, err := locks.TryAcquire(t.Context(), "a"); err != nil || l.Release(t.Context()) != nil {
		t.Error(err)
	}
}

// A lost answer is not a lost lease.
func TestLoseNextResponse(t *testing.T) {
	t.Parallel()
	service := fencelocktest.Start(t)
	locks := service.Client()
	service.LoseNextResponse()
	l, err := locks.TryAcquire(t.Context(), "a")
	if err != nil || service.Lost() != 1 {
		t.Fatalf("%v, %d responses were lost", err, service.Lost())
	}
	service.LoseNextResponse()
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if l, err := locks.TryAcquire(t.Context(), "a"); err != nil || l.Release(t.Context()) != nil {
		t.Error(l, err)
	}
}

// It refuses what production refuses: a guarded record takes no stale token, and a lease ends by the clock.
func TestItIsAServer(t *testing.T) {
	t.Parallel()
	service := fencelocktest.Start(t)
	locks := service.Client()
	late, err := locks.TryAcquire(t.Context(), "a", client.TTL(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	next, err := locks.Acquire(t.Context(), "a", client.Wait(10*time.Second)) // when the first has expired
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.WriteRecord(t.Context(), next, []byte(`1`)); err != nil {
		t.Error(err)
	}
	if _, err := locks.WriteRecord(t.Context(), late, []byte(`2`)); !errors.Is(err, fencing.ErrStaleToken) {
		t.Errorf("a stale write: %v", err)
	}
	if err := late.Release(t.Context()); !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("a late release: %v", err)
	}
}

// What another process holds is waited for.
func TestHold(t *testing.T) {
	t.Parallel()
	service := fencelocktest.Start(t)
	locks := service.Client()
	other := service.Hold("a", "b")
	if _, err := locks.TryAcquire(t.Context(), "a"); !errors.Is(err, client.ErrHeld) {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		l, err := locks.Acquire(t.Context(), "b")
		if err == nil && l.Token() <= other.Token() {
			err = errors.New("its token is not larger")
		}
		got <- err
	}()
	service.AwaitWaiters("b", 1)
	other.Release()
	if err := <-got; err != nil {
		t.Error(err)
	}
}
