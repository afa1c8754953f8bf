package redlock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// A request that waits under an idempotency key and ends without a grant has its
// place again when it is repeated on another server, however it ended.
func TestRepeatedWaitHasItsPlace(t *testing.T) {
	for name, end := range map[string]func(a *arena, hangUp func()) time.Duration{
		"broken off": func(_ *arena, hangUp func()) time.Duration { hangUp(); return time.Second },
		"its server stops": func(a *arena, _ func()) time.Duration {
			a.servers[0].StopWaiting()
			return time.Second
		},
		"its server is cut off for longer than its tickets live": func(a *arena, hangUp func()) time.Duration {
			for _, w := range a.wires[0] {
				w.set(func() { w.down = true })
			}
			time.AfterFunc(10*time.Second, hangUp)
			return 11 * time.Second
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, stop := newArena(t, 3, 2)
				defer func() { stop(); time.Sleep(time.Minute) }() // for what is on its way
				held := a.must(a.servers[1], lockcore.AcquireRequest{Resource: "r", TTL: 60 * time.Second})
				granted := make(chan string, 3)
				wait := func(ctx context.Context, server int, who, key string) error {
					lease, err := a.servers[server].Acquire(ctx, lockcore.AcquireRequest{Resource: "r", TTL: 5 * time.Second, Wait: 5 * time.Minute, Holder: who, IdempotencyKey: key})
					if err == nil {
						granted <- who
						err = a.servers[1].Release(t.Context(), lease.ID)
					}
					return err
				}
				ctx, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				ended := make(chan error, 1)
				go func() { ended <- wait(ctx, 0, "first", "its key") }()
				time.Sleep(time.Second)
				go func() { _ = wait(t.Context(), 1, "second", "") }()
				time.Sleep(time.Second)
				time.Sleep(end(a, hangUp))
				if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, lockcore.ErrStopping) && !errors.Is(err, lockcore.ErrNoQuorum) {
					t.Fatalf("it ended with %v", err)
				}
				go func() { _ = wait(t.Context(), 1, "first", "its key") }()
				time.Sleep(time.Second)
				if err := a.servers[1].Release(t.Context(), held.ID); err != nil {
					t.Fatal(err)
				}
				if one, two := <-granted, <-granted; one != "first" || two != "second" {
					t.Errorf("granted to %s, then to %s", one, two)
				}
			})
		})
	}
}
