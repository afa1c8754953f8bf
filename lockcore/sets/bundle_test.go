package sets_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// several makes a request for resources with a TTL of 9 s.
func several(wait time.Duration, key string, resources ...string) lockcore.Request {
	return lockcore.Request{Resources: resources, TTL: 9 * time.Second, Wait: wait, IdempotencyKey: key}
}

// A request for several resources keeps the parts that it has until it has the last one, even if each single wait is
// shorter than the time after which a lease is extended.
func TestPartsAreKeptOverManyShortWaits(t *testing.T) {
	for _, key := range []string{"", "key"} {
		t.Run("key "+key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, stop := newArena(t, 3, 2)
				defer func() { stop(); time.Sleep(time.Minute) }()
				names := []string{"a", "b", "c", "d", "e", "f"}
				for i, name := range names[1:] {
					held := a.must(a.servers[1], lockcore.Request{Resource: name, TTL: time.Minute})
					time.AfterFunc(time.Duration(i+1)*2800*time.Millisecond, func() { _ = a.servers[1].Release(t.Context(), held.ID) })
				}
				granted := make(chan lockcore.Lease, 1)
				go func() { granted <- a.must(a.servers[0], several(time.Minute, key, names...)) }()
				time.Sleep(10 * time.Millisecond)
				for len(granted) == 0 {
					if lease, err := a.servers[1].Acquire(t.Context(), lockcore.Request{Resource: "a"}); err == nil {
						t.Fatalf("another caller got token %d of the first", lease.Token)
					}
					time.Sleep(50 * time.Millisecond)
				}
				if lease := <-granted; lease.Validity < 8800*time.Millisecond {
					t.Errorf("it is valid for %s", lease.Validity)
				}
			})
		})
	}
}

// If one of several resources has ended, an extend ends the others: all or none.
func TestExtendOfSeveralIsAllOrNone(t *testing.T) {
	for _, ttl := range []time.Duration{0, 9 * time.Second} {
		t.Run(fmt.Sprint("extended by ", ttl), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, stop := newArena(t, 3, 2)
				defer func() { stop(); time.Sleep(time.Minute) }()
				lease := a.must(a.servers[0], several(0, "", "p", "q", "r"))
				if err := a.servers[1].Break(t.Context(), "q", 0); err != nil {
					t.Fatal(err)
				}
				if _, err := a.servers[0].Extend(t.Context(), lease.ID, ttl); !errors.Is(err, lockcore.ErrNotHeld) {
					t.Fatal(err)
				}
				began := time.Now()
				a.must(a.servers[1], several(5*time.Second, "", "p", "q", "r"))
				if took := time.Since(began); took > soon {
					t.Errorf("the next caller got them after %s", took)
				}
			})
		})
	}
}

// The minimum and maximum hold times of a lease of several resources count from its grant, when the last of them is
// acquired.
func TestHoldsOfSeveralCountFromTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer func() { stop(); time.Sleep(time.Minute) }()
		const minHold, maxHold = 900 * time.Millisecond, 10 * time.Second
		held := a.must(a.servers[1], lockcore.Request{Resource: "q", TTL: time.Minute})
		time.AfterFunc(20*time.Second, func() { _ = a.servers[1].Release(t.Context(), held.ID) })
		req := several(time.Minute, "key", "p", "q")
		req.MinHold, req.MaxHold = minHold, maxHold
		lease := a.must(a.servers[0], req)
		granted := time.Now()
		for _, server := range a.servers {
			again, err := server.Acquire(t.Context(), req)
			if err != nil || !again.Existing || again.ID != lease.ID {
				t.Errorf("repeated: %+v, %v, want %+v", again, err, lease)
			}
			if left := again.MaxHoldRemaining + time.Since(granted); left < maxHold-soon || left > maxHold {
				t.Errorf("the maximum hold ends %s after the grant", left)
			}
		}
		longer, err := a.servers[1].Extend(t.Context(), lease.ID, 9*time.Second)
		if err != nil || longer.TTL < 8*time.Second {
			t.Errorf("extended: %+v, %v", longer, err)
		}
		if err := a.servers[0].Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
		a.must(a.servers[1], several(5*time.Second, "", "p", "q"))
		if took := time.Since(granted); took < minHold-soon || took > minHold+soon {
			t.Errorf("the next caller got them %s after the grant", took)
		}
	})
}

// If one quorum cannot reply to the release of several resources, the release must not get 404: that is final, and
// the caller would not repeat it.
func TestUnfinishedReleaseOfSeveralIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer func() { stop(); time.Sleep(time.Minute) }()
		lease := a.must(a.servers[0], several(0, "", "p", "q"))
		if err := a.servers[1].Break(t.Context(), "p", 0); err != nil {
			t.Fatal(err)
		}
		for _, w := range a.wires[0][:2] { // what is of q does not arrive
			w.set(func() {
				w.lost = "q"
			})
		}
		if err := a.servers[0].Release(t.Context(), lease.ID); !errors.Is(err, lockcore.ErrNoQuorum) {
			t.Errorf("a part may be left: %v", err)
		}
		for _, w := range a.wires[0][:2] {
			w.set(func() { w.lost = "" })
		}
		if err := a.servers[0].Release(t.Context(), lease.ID); err != nil && !errors.Is(err, lockcore.ErrNotHeld) {
			t.Error(err)
		}
		a.must(a.servers[1], several(time.Second, "", "p", "q"))
	})
}

// A lease of several resources loses a part, and its key acquires them again. Calls with the id of the earlier lease
// do not touch the new one, whichever part was lost.
func TestSeveralTakenAgainUnderTheirKey(t *testing.T) {
	for _, broken := range []string{"p", "q", "r"} {
		for _, end := range []string{"release", "extend"} {
			t.Run(broken+" was broken, "+end, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, stop := newArena(t, 3, 2)
					defer func() { stop(); time.Sleep(time.Minute) }()
					req := several(time.Second, "key", "p", "q", "r")
					first := a.must(a.servers[0], req)
					if err := a.servers[1].Break(t.Context(), broken, 0); err != nil {
						t.Fatal(err)
					}
					second := a.must(a.servers[1], req)
					for i, part := range second.Parts {
						if part.Token <= first.Parts[i].Token {
							t.Errorf("the new lease has token %d of %s, the one before had %d", part.Token, part.Resource, first.Parts[i].Token)
						}
					}
					if second.Existing {
						t.Error("a new lease is reported as the one before")
					}
					if end == "release" {
						_ = a.servers[0].Release(t.Context(), first.ID)
					} else if _, err := a.servers[0].Extend(t.Context(), first.ID, 9*time.Second); !errors.Is(err, lockcore.ErrNotHeld) {
						t.Errorf("the lease before was extended: %v", err)
					}
					if _, err := a.servers[1].Extend(t.Context(), second.ID, 9*time.Second); err != nil {
						t.Errorf("the new lease has ended: %v", err)
					}
					third, err := a.servers[0].Acquire(t.Context(), req)
					if err != nil || !slices.Equal(third.Parts, second.Parts) || !third.Existing {
						t.Errorf("repeated: %+v, %v, want %+v", third, err, second)
					}
					if err := a.servers[1].Release(t.Context(), second.ID); err != nil {
						t.Error(err)
					}
					a.must(a.servers[0], several(0, "", "p", "q", "r"))
				})
			})
		}
	}
}

// A retry with other terms is another request: it changes nothing about the lease. Only a shorter wait counts as the
// same request.
func TestKeyWithOtherTerms(t *testing.T) {
	for name, req := range map[string]lockcore.Request{
		"one":     {Resource: "r", TTL: 9 * time.Second, MaxHold: 20 * time.Second, IdempotencyKey: "key"},
		"several": {Resources: []string{"p", "q"}, TTL: 9 * time.Second, MaxHold: 20 * time.Second, IdempotencyKey: "key"},
		"a slot":  {Resource: "r", Slots: 2, TTL: 9 * time.Second, MaxHold: 20 * time.Second, IdempotencyKey: "key"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, stop := newArena(t, 3, 2)
				defer func() { stop(); time.Sleep(time.Minute) }()
				lease := a.must(a.servers[0], req)
				for _, change := range []func(*lockcore.Request){
					func(r *lockcore.Request) { r.MaxHold = time.Hour },
					func(r *lockcore.Request) { r.MaxHold = 0 },
					func(r *lockcore.Request) { r.MinHold = time.Second },
					func(r *lockcore.Request) { r.TTL = 8 * time.Second },
					func(r *lockcore.Request) { r.Holder = "another" },
					func(r *lockcore.Request) {
						if r.Slots++; r.Slots == 1 { // of a request for no slots
							r.Holder, r.Slots = "another", 0
						}
					},
					func(r *lockcore.Request) { r.Metadata = json.RawMessage(`{"job":2}`) },
				} {
					for _, wait := range []time.Duration{0, 2 * time.Second} {
						other := req
						other.Wait = wait
						change(&other)
						if got, err := a.servers[1].Acquire(t.Context(), other); !errors.Is(err, lockcore.ErrIdempotencyMismatch) {
							t.Errorf("%+v: %+v, %v", other, got, err)
						}
					}
				}
				for _, wait := range []time.Duration{0, time.Second} {
					same := req
					same.Wait = wait
					if again := a.must(a.servers[1], same); again.ID != lease.ID || !again.Existing {
						t.Errorf("waiting %s: the lease is %+v, was %+v", wait, again, lease)
					}
				}
			})
		})
	}
}
