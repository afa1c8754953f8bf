package sets_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// waiting starts a request. It returns the channel on which the time of its grant comes.
func (a *arena) waiting(l *locker, req lockcore.Request) <-chan time.Time {
	a.Helper()
	granted := make(chan time.Time, 1)
	go func() {
		a.must(l, req)
		granted <- time.Now()
	}()
	time.Sleep(300 * time.Millisecond)
	return granted
}

// polled makes a poll that ends without a grant.
func (a *arena) polled(l *locker, req lockcore.Request) {
	a.Helper()
	_, err := l.Acquire(a.Context(), req)
	if _, timedOut := errors.AsType[*lockcore.WaitTimeoutError](err); !timedOut {
		a.Errorf("the poll ended with %v", err)
	}
}

// A request polls at one server, which keeps its place for two seconds, and gets its lease at another server. A
// waiter behind the kept place gets the resource when that lease ends, however it ends, and not only when the place
// is given up.
func TestAPollThatMovesHoldsNobodyUp(t *testing.T) {
	for name, end := range map[string]func(*arena, lockcore.Lease) time.Time{
		"released where the place is kept": func(a *arena, lease lockcore.Lease) time.Time {
			a.release(a.servers[0], lease)
			return time.Now()
		},
		"released where it was granted": func(a *arena, lease lockcore.Lease) time.Time {
			a.release(a.servers[1], lease)
			return time.Now()
		},
		"released at a third server": func(a *arena, lease lockcore.Lease) time.Time {
			a.release(a.servers[2], lease)
			return time.Now()
		},
		"expired": func(_ *arena, lease lockcore.Lease) time.Time { return time.Now().Add(lease.TTL) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, stop := newArena(t, 3, 3)
				defer func() { stop(); time.Sleep(time.Minute) }()
				held := a.must(a.servers[0], lockcore.Request{Resource: "r", TTL: time.Minute})
				moves := lockcore.Request{Resource: "r", TTL: 500 * time.Millisecond, Wait: time.Minute, Poll: 2 * time.Second, IdempotencyKey: "moves"}
				next := a.waitingBehind(moves)
				granted := make(chan lockcore.Lease, 1)
				go func() { granted <- a.must(a.servers[1], moves) }()
				time.Sleep(100 * time.Millisecond)
				a.release(a.servers[2], held)
				free := end(a, <-granted)
				if took := (<-next).Sub(free); took > soon {
					t.Errorf("the resource was free for %s", took)
				}
			})
		})
	}
}

// waitingBehind makes a poll at the first server, and another request that waits behind it there.
func (a *arena) waitingBehind(poll lockcore.Request) (next <-chan time.Time) {
	a.Helper()
	ended := make(chan struct{})
	go func() { defer close(ended); a.polled(a.servers[0], poll) }()
	time.Sleep(time.Second)
	next = a.waiting(a.servers[0], lockcore.Request{Resource: "r", TTL: time.Minute, Wait: time.Minute, IdempotencyKey: "next"})
	<-ended
	return next
}

// A place that is kept after a poll counts: while its request is away for less than two seconds, no other request
// passes it. When the place is given up, the waiter behind it gets the resource.
func TestAPlaceThatIsKeptIsNotPassed(t *testing.T) {
	for name, comesAgain := range map[string]bool{"its request comes again": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, stop := newArena(t, 3, 3)
				defer func() { stop(); time.Sleep(time.Minute) }()
				held := a.must(a.servers[0], lockcore.Request{Resource: "r", TTL: time.Minute})
				first := lockcore.Request{Resource: "r", TTL: time.Minute, Wait: time.Minute, Poll: 2 * time.Second, IdempotencyKey: "first"}
				next := a.waitingBehind(first)
				away := time.Now()
				a.release(a.servers[0], held)
				time.Sleep(1900 * time.Millisecond)
				select {
				case at := <-next:
					t.Fatalf("it was passed %s after its poll", at.Sub(away))
				default:
				}
				if comesAgain {
					a.release(a.servers[2], a.must(a.servers[2], first))
					<-next
					return
				}
				if took := (<-next).Sub(away); took > 2*time.Second+soon {
					t.Errorf("the resource was free for %s", took)
				}
			})
		})
	}
}
