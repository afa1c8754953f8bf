package fencelocktest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/client/fencelocktest"
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
	}, client.TTL(time.Hour))
	if !errors.Is(err, client.ErrLeaseLost) || time.Since(begun) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(begun))
	}
	if l, err := locks.TryAcquire(t.Context(), "a"); err != nil || l.Release(t.Context()) != nil {
		t.Error(err)
	}
}

// A lost answer is not a lost lease.
func TestLoseNextAnswer(t *testing.T) {
	t.Parallel()
	service := fencelocktest.Start(t)
	locks := service.Client()
	service.LoseNextAnswer()
	l, err := locks.TryAcquire(t.Context(), "a")
	if err != nil || service.Lost() != 1 {
		t.Fatalf("%v, %d answers were lost", err, service.Lost())
	}
	service.LoseNextAnswer()
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if l, err := locks.TryAcquire(t.Context(), "a"); err != nil || l.Token() != 2 {
		t.Error(l, err)
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
		if err == nil && int64(l.Token()) <= other.Token() {
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
