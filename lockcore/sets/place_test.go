package sets_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

// A request that waited under an idempotency key and ended without a grant has its place again when it is repeated at
// another server, however it ended.
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
				held := a.must(a.servers[1], lockcore.Request{Resource: "r", TTL: 60 * time.Second})
				granted := make(chan string, 3)
				wait := func(ctx context.Context, server int, who, key string) error {
					lease, err := a.servers[server].Acquire(ctx, lockcore.Request{Resource: "r", TTL: 5 * time.Second, Wait: 5 * time.Minute, Holder: who, IdempotencyKey: key})
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

// A request that comes again without a wait gives up its place. The request behind it does not wait until the place
// expires.
func TestRepeatWithoutWaitLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 1)
		defer func() { stop(); time.Sleep(time.Minute) }()
		server := a.servers[0]
		held := a.must(server, lockcore.Request{Resource: "r", TTL: 60 * time.Second})
		ctx, hangUp := context.WithCancel(t.Context())
		first := lockcore.Request{Resource: "r", Wait: time.Minute, IdempotencyKey: "key"}
		ended := make(chan error, 1)
		go func() {
			_, err := server.Acquire(ctx, first)
			ended <- err
		}()
		time.Sleep(time.Second)
		granted := make(chan time.Time, 1)
		go func() {
			a.must(server, lockcore.Request{Resource: "r", Wait: time.Minute})
			granted <- time.Now()
		}()
		time.Sleep(time.Second)
		hangUp()
		<-ended
		first.Wait = 0
		if _, err := server.Acquire(t.Context(), first); !errors.Is(err, lockcore.ErrHeld) {
			t.Fatal(err)
		}
		released := time.Now()
		if err := server.Release(t.Context(), held.ID); err != nil {
			t.Fatal(err)
		}
		if took := (<-granted).Sub(released); took > waitqueue.LingerTime/4 {
			t.Errorf("the next one got it after %s", took)
		}
	})
}

// Requests that do not wait get nothing while others are in the queue, even if a lease has expired and the first
// waiter has not noticed that yet.
func TestNewcomersDoNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 5, 3)
		defer func() { stop(); time.Sleep(time.Minute) }()
		last := a.must(a.servers[0], lockcore.Request{Resource: "r", TTL: time.Second})
		granted := make(chan lockcore.Lease, 1)
		const waiters = 8
		for i := range waiters {
			go func() {
				granted <- a.must(a.servers[i%3], lockcore.Request{Resource: "r", TTL: time.Second, Wait: time.Minute, Holder: fmt.Sprint(i)})
			}()
			time.Sleep(10 * time.Millisecond)
		}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		for i, server := range a.servers {
			go func() {
				for ctx.Err() == nil {
					if lease, err := server.Acquire(ctx, lockcore.Request{Resource: "r"}); err == nil {
						t.Errorf("a newcomer at server %d got token %d", i, lease.Token)
						return
					}
					time.Sleep(3 * time.Millisecond)
				}
			}()
		}
		for i := range waiters {
			if i%2 == 0 { // the others expire
				if err := a.servers[i%3].Release(t.Context(), last.ID); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case last = <-granted:
			case <-time.After(time.Minute):
				t.Fatalf("nobody got turn %d", i)
			}
			if last.Holder != fmt.Sprint(i) {
				t.Errorf("turn %d is of waiter %s", i, last.Holder)
			}
		}
	})
}

// A place that is forgotten is removed on every node, whatever the request asked for, unless the request has come
// again at another server.
func TestForgottenPlace(t *testing.T) {
	for name, c := range map[string]struct {
		asks  lockcore.Request
		moved bool // the request has come to another server meanwhile
		first string
	}{
		"one resource":           {lockcore.Request{Resource: "r"}, false, "second"},
		"several resources":      {lockcore.Request{Resources: []string{"q", "r"}}, false, "second"},
		"slots":                  {lockcore.Request{Resource: "s", Slots: 2}, false, "second"},
		"came to another server": {lockcore.Request{Resource: "r"}, true, "first"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, stop := newArena(t, 3, 2)
				defer func() { stop(); time.Sleep(time.Minute) }()
				var held []lockcore.Lease
				for _, resource := range []string{"r", lockcore.SlotName("s", 1), lockcore.SlotName("s", 2)} {
					held = append(held, a.must(a.servers[1], lockcore.Request{Resource: resource, TTL: time.Minute}))
				}
				granted := make(chan string, 2)
				wait := func(ctx context.Context, server int, who, key string) {
					req := c.asks
					req.TTL, req.Wait, req.Holder, req.IdempotencyKey = time.Minute, 5*time.Minute, who, key
					if lease, err := a.servers[server].Acquire(ctx, req); err == nil {
						granted <- who
						_ = a.servers[server].Release(t.Context(), lease.ID)
					}
				}
				for _, server := range []int{0, 1}[:map[bool]int{false: 1, true: 2}[c.moved]] {
					ctx, hangUp := context.WithCancel(t.Context())
					go wait(ctx, server, "first", "its key")
					time.Sleep(time.Second)
					hangUp()
					time.Sleep(time.Second)
				}
				go wait(t.Context(), 1, "second", "another key")
				time.Sleep(time.Second)
				forgotten := c.asks
				forgotten.Holder, forgotten.IdempotencyKey = "first", "its key"
				if err := a.servers[0].ForgetPlace(t.Context(), forgotten); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				go wait(t.Context(), 1, "first", "its key")
				time.Sleep(time.Second)
				for _, lease := range held {
					if err := a.servers[1].Release(t.Context(), lease.ID); err != nil {
						t.Fatal(err)
					}
				}
				if got := <-granted; got != c.first {
					t.Errorf("granted to %s before the other", got)
				}
				<-granted
			})
		})
	}
}
