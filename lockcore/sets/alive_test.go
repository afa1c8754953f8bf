package sets_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// soon is the longest time of a call that nothing delays: some round trips.
const soon = 200 * time.Millisecond

// A request under an idempotency key is granted after a wait, and its response is lost while others wait. The request
// that repeats it finds the lease at once, at any server. If it queued behind the others, it would not be granted
// before its own lease has expired.
func TestRepeatFindsItsLeaseWhileOthersWait(t *testing.T) {
	requests := map[string]lockcore.Request{
		"one resource":      {Resource: "r"},
		"several resources": {Resources: []string{"q", "r", "s"}},
		"a slot":            {Resource: "r", Slots: 1},
		"one of slots":      {Resource: "r", Slots: 2},
	}
	for name, req := range requests {
		for _, nodes := range []int{1, 3} {
			for server := range 2 {
				for _, poll := range []time.Duration{0, 5 * time.Second} {
					t.Run(fmt.Sprintf("%s, %d nodes, repeated at server %d, poll %s", name, nodes, server, poll), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							a, stop := newArena(t, nodes, 2)
							defer func() { stop(); time.Sleep(time.Minute) }()
							inTheWay := req
							inTheWay.TTL = 30 * time.Second
							first := a.must(a.servers[0], inTheWay)
							if req.Slots == 2 { // the other slot
								inTheWay.TTL = time.Minute
								a.must(a.servers[0], inTheWay)
							}
							req := req
							req.TTL, req.Wait, req.Poll, req.IdempotencyKey = 10*time.Second, 30*time.Second, poll, "key"
							granted := make(chan lockcore.Lease, 1)
							go func() { granted <- a.must(a.servers[0], req) }()
							time.Sleep(time.Second)
							other := req
							other.IdempotencyKey, other.Poll = "", 0
							for i := range 4 {
								go func() { _, _ = a.servers[i%2].Acquire(t.Context(), other) }()
								time.Sleep(100 * time.Millisecond)
							}
							if err := a.servers[0].Release(t.Context(), first.ID); err != nil {
								t.Fatal(err)
							}
							lost := <-granted
							time.Sleep(100 * time.Millisecond)
							began := time.Now()
							again, err := a.servers[server].Acquire(t.Context(), req)
							if err != nil {
								t.Fatal(err)
							}
							if took := time.Since(began); took > soon || !again.Existing || again.Token != lost.Token || fmt.Sprint(again.Parts) != fmt.Sprint(lost.Parts) {
								t.Errorf("the repeated request got %+v after %s, and the lost answer was %+v", again, took, lost)
							}
						})
					})
				}
			}
		}
	}
}

// A request is repeated while the first one still waits, because that one's server does not know that its client has
// gone. The first one is granted, and the second one finds that lease.
func TestRepeatBesideTheRequestItRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 1)
		defer func() { stop(); time.Sleep(time.Minute) }()
		held := a.must(a.servers[0], lockcore.Request{Resource: "r", TTL: 30 * time.Second})
		req := lockcore.Request{Resource: "r", TTL: 30 * time.Second, Wait: time.Minute, IdempotencyKey: "key"}
		granted := make(chan lockcore.Lease, 2)
		ask := func(req lockcore.Request) {
			lease, err := a.servers[0].Acquire(t.Context(), req)
			if err == nil {
				granted <- lease
			}
		}
		go ask(req)
		time.Sleep(time.Second)
		go ask(lockcore.Request{Resource: "r", TTL: 30 * time.Second, Wait: 10 * time.Second})
		time.Sleep(time.Second)
		go ask(req)
		time.Sleep(time.Second)
		released := time.Now()
		if err := a.servers[0].Release(t.Context(), held.ID); err != nil {
			t.Fatal(err)
		}
		one, two := <-granted, <-granted
		if took := time.Since(released); took > soon || one.Token != two.Token {
			t.Errorf("granted tokens %d and %d within %s", one.Token, two.Token, took)
		}
	})
}

// A request that is cancelled at any moment does not delay the next caller.
func TestCancelledAcquireCostsNobodyAnything(t *testing.T) {
	requests := map[string]lockcore.Request{
		"a key":                  {Resource: "r", IdempotencyKey: "key"},
		"a key, several":         {Resources: []string{"q", "r"}, IdempotencyKey: "key"},
		"a key, slots":           {Resource: "r", Slots: 1, IdempotencyKey: "key"},
		"a key, a poll":          {Resource: "r", IdempotencyKey: "key", Poll: 5 * time.Second},
		"a key, several, a poll": {Resources: []string{"q", "r"}, IdempotencyKey: "key", Poll: 5 * time.Second},
		"no key":                 {Resource: "r"},
		"a minimum hold":         {Resource: "r", IdempotencyKey: "key", MinHold: 5 * time.Second},
	}
	for name, req := range requests {
		for _, nodes := range []int{1, 3} {
			for next := range 2 {
				for _, contended := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %d nodes, the next caller at server %d, contended %t", name, nodes, next, contended), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							a, stop := newArena(t, nodes, 2)
							defer func() { stop(); time.Sleep(time.Minute) }()
							for after := time.Duration(0); after < 10*time.Millisecond; after += 250 * time.Microsecond {
								cancelAfter(a, next, contended, renamed(req, after.String()), after)
							}
						})
					})
				}
			}
		}
	}
}

// renamed returns a copy of this request for other resources, under another key.
func renamed(req lockcore.Request, suffix string) lockcore.Request {
	if req.Resource != "" {
		req.Resource += suffix
	}
	req.Resources = slices.Clone(req.Resources)
	for i := range req.Resources {
		req.Resources[i] += suffix
	}
	if req.IdempotencyKey != "" {
		req.IdempotencyKey += suffix
	}
	return req
}

func cancelAfter(a *arena, server int, contended bool, req lockcore.Request, after time.Duration) {
	a.Helper()
	next := req
	next.IdempotencyKey, next.TTL, next.Wait, next.Poll = "", 10*time.Second, 5*time.Second, 0
	req.TTL, req.Wait = 10*time.Second, 5*time.Second
	var held lockcore.Lease
	if contended {
		held = a.must(a.servers[0], lockcore.Request{Resource: req.Resource, Resources: req.Resources, Slots: req.Slots, TTL: time.Minute})
	}
	ctx, cancel := context.WithCancel(a.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := a.servers[0].Acquire(ctx, req)
		ended <- err
	}()
	time.Sleep(after)
	cancel()
	if err := <-ended; err == nil {
		return // it was granted before
	}
	if contended {
		if err := a.servers[0].Release(a.Context(), held.ID); err != nil {
			a.Fatal(err)
		}
	}
	began := time.Now()
	if lease, err := a.servers[server].Acquire(a.Context(), next); err != nil || time.Since(began) > soon {
		a.Errorf("%s after it was cancelled, the next caller got %+v, %v after %s", after, lease, err, time.Since(began))
	}
}
