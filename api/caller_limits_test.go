package api_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

func TestRequestsASecond(t *testing.T) {
	s := newService(t, &fake{inspect: func(resource string) (lockcore.LockState, error) {
		return lockcore.LockState{Resource: resource}, nil
	}}, withAccess(t, line("slow", "read=* requests=0.01"), line("other", "read=* requests=1000")))
	s.call("GET", "/locks/a", "", bearer("slow")).wants(http.StatusOK)
	a := s.call("GET", "/locks/a", "", bearer("slow")).wants(http.StatusTooManyRequests)
	a.problem("request-limit")
	if wait := a.header.Get("Retry-After"); wait != "100" && wait != "99" {
		t.Errorf("Retry-After is %s, want 100 seconds at a hundredth of a request a second", wait)
	}
	s.call("GET", "/locks/a", "", bearer("other")).wants(http.StatusOK)
	s.call("GET", "/healthz", "").wants(http.StatusOK)
}

func TestWaitersOfOneCaller(t *testing.T) {
	f := &fake{}
	s := newService(t, f, withAccess(t, line("w", "acquire=* waiters=1"), line("other", "acquire=*")))
	waiting := newInLine(t)
	f.acquire = waiting.acquire
	first := make(chan int, 1)
	go func() { first <- s.call("POST", "/locks", patient, bearer("w")).status }()
	await(t, "the first waits", waiting.entered)
	s.call("POST", "/locks", patient, bearer("w")).wants(http.StatusTooManyRequests).problem("waiter-limit")
	second := make(chan int, 1)
	go func() { second <- s.call("POST", "/locks", patient, bearer("other")).status }()
	await(t, "somebody else's waits", waiting.entered)
	waiting.results <- nil
	waiting.results <- nil
	want(t, "status", <-first, http.StatusCreated)
	want(t, "status", <-second, http.StatusCreated)
	third := make(chan int, 1) // its place is free again
	go func() { third <- s.call("POST", "/locks", patient, bearer("w")).status }()
	await(t, "the third waits", waiting.entered)
	waiting.results <- nil
	want(t, "status", <-third, http.StatusCreated)
}

func TestLeasesOfOneCaller(t *testing.T) {
	t.Parallel()
	s := newRealService(t, withAccess(t, line("w", "acquire=* held=2")))
	take := func(resource string, ttl int) answered {
		return s.call("POST", "/locks", fmt.Sprintf(`{"resource":%q,"ttl_ms":%d}`, resource, ttl), bearer("w"))
	}
	a := decode[wire.Lease](take("a", 60000).wants(http.StatusCreated))
	take("b", 60000).wants(http.StatusCreated)
	refused := take("c", 60000).wants(http.StatusTooManyRequests)
	refused.problem("lease-limit")
	if refused.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	s.call("DELETE", "/leases/current", "", bearer("w"), "Fencelock-Lease: "+a.LeaseID).wants(http.StatusNoContent)
	take("b", 60000).wants(http.StatusConflict) // which gives its place back
	take("c", 3000).wants(http.StatusCreated)   // ends by itself
	eventually(t, "the lease's end makes room", func() bool { return take("d", 60000).status == http.StatusCreated })
}

// A lease of several resources counts each of them: the extension changes nothing, and its
// release gives all of them back.
func TestLimitsCountResources(t *testing.T) {
	t.Parallel()
	s := newRealService(t, withAccess(t, line("w", "acquire=* held=3"), line("v", "acquire=* waiters=3"), line("other", "acquire=*")))
	take := func(who, body string) answered { return s.call("POST", "/locks", body, bearer(who)) }
	two := decode[wire.Lease](take("w", `{"resources":["a","b"]}`).wants(http.StatusCreated))
	take("w", `{"resources":["c","d"]}`).wants(http.StatusTooManyRequests).problem("lease-limit")
	s.call("POST", "/leases/current/extend", "", bearer("w"), "Fencelock-Lease: "+two.LeaseID).wants(http.StatusOK)
	take("w", `{"resource":"c"}`).wants(http.StatusCreated)
	take("w", `{"resource":"d"}`).wants(http.StatusTooManyRequests).problem("lease-limit")
	s.call("DELETE", "/leases/current", "", bearer("w"), "Fencelock-Lease: "+two.LeaseID).wants(http.StatusNoContent)
	take("w", `{"resources":["a","b"]}`).wants(http.StatusCreated)

	take("v", `{"resources":["e","f","g","h"],"wait_ms":1000}`).wants(http.StatusTooManyRequests).problem("waiter-limit")
	e := decode[wire.Lease](take("other", `{"resource":"e"}`).wants(http.StatusCreated))
	waited := make(chan int, 1)
	go func() { waited <- take("v", `{"resources":["e","f"],"wait_ms":60000}`).status }()
	eventually(t, "it waits", func() bool {
		return decode[wire.Lock](s.call("GET", "/locks/e", "", bearer("other"))).Waiters == 1
	})
	take("v", `{"resources":["g","h"],"wait_ms":1000}`).wants(http.StatusTooManyRequests).problem("waiter-limit")
	take("v", `{"resource":"g","wait_ms":1000}`).wants(http.StatusCreated)
	s.call("DELETE", "/leases/current", "", bearer("other"), "Fencelock-Lease: "+e.LeaseID).wants(http.StatusNoContent)
	want(t, "the wait for two", <-waited, http.StatusCreated)
}

// A released lease counts until its minimum hold is over, since nobody else gets the resource:
// neither its extension nor another release makes room.
func TestAMinimumHoldCounts(t *testing.T) {
	t.Parallel()
	s := newRealService(t, withAccess(t, line("w", "acquire=* held=1"), line("v", "acquire=* held=1")))
	take := func(who, resource string, hold int) answered {
		return s.call("POST", "/locks", fmt.Sprintf(`{"resource":%q,"ttl_ms":60000,"min_hold_ms":%d}`, resource, hold), bearer(who))
	}
	release := func(who string, lease wire.Lease) answered {
		return s.call("DELETE", "/leases/current", "", bearer(who), "Fencelock-Lease: "+lease.LeaseID)
	}
	a := decode[wire.Lease](take("w", "a", 60000).wants(http.StatusCreated))
	release("w", a).wants(http.StatusOK)
	take("w", "b", 0).wants(http.StatusTooManyRequests).problem("lease-limit")
	s.call("POST", "/leases/current/extend", "", bearer("w"), "Fencelock-Lease: "+a.LeaseID).wants(http.StatusNotFound)
	release("w", a).wants(http.StatusNotFound)
	take("w", "b", 0).wants(http.StatusTooManyRequests).problem("lease-limit")

	c := decode[wire.Lease](take("v", "c", 1000).wants(http.StatusCreated))
	release("v", c) // the hold may be over by now
	eventually(t, "the end of the minimum hold makes room", func() bool { return take("v", "d", 0).status == http.StatusCreated })
	free := s.call("GET", "/locks/c", "", bearer("v")).wants(http.StatusOK)
	if state := decode[wire.Lock](free); state.Held {
		t.Errorf("it counted no more before it was free: %+v", state)
	}
}

// An administrator who breaks the minimum hold of a released lease gives its caller room again.
func TestAMinimumHoldThatIsBroken(t *testing.T) {
	s := newRealService(t, withAccess(t, line("w", "acquire=* held=1"), line("root", "admin=*")))
	take := func(resource string) answered {
		return s.call("POST", "/locks", fmt.Sprintf(`{"resource":%q,"ttl_ms":60000,"min_hold_ms":60000}`, resource), bearer("w"))
	}
	a := decode[wire.Lease](take("a").wants(http.StatusCreated))
	s.call("DELETE", "/leases/current", "", bearer("w"), "Fencelock-Lease: "+a.LeaseID).wants(http.StatusOK)
	take("b").wants(http.StatusTooManyRequests).problem("lease-limit")
	s.call("POST", "/breaks", `{"resource":"a","any":true}`, bearer("root")).wants(http.StatusNoContent)
	take("b").wants(http.StatusCreated)
}

// A caller at its limits is told nothing else about what it has than one below them: a
// request that it repeats finds its lease, and one that it cancels gives its place back.
func TestCallerAtItsLimits(t *testing.T) {
	for name, c := range map[string]struct{ rule, request, other, problem string }{
		"leases":          {"held=1", `{"resource":"a"}`, `{"resource":"b"}`, "lease-limit"},
		"several, leases": {"held=2", `{"resources":["a","b"]}`, `{"resource":"c"}`, "lease-limit"},
		"slots, leases":   {"held=1", `{"resource":"a","slots":2}`, `{"resource":"a","slots":2}`, "lease-limit"},
		"a wait, leases":  {"held=1", `{"resource":"a","wait_ms":1000}`, `{"resource":"b"}`, "lease-limit"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRealService(t, withAccess(t, line("w", "acquire=* "+c.rule)))
			ask := func(path, body, key string) answered {
				return s.call("POST", path, body, bearer("w"), "Idempotency-Key: "+key)
			}
			lease := decode[wire.Lease](ask("/locks", c.request, "first").wants(http.StatusCreated))
			again := decode[wire.Lease](ask("/locks", c.request, "first").wants(http.StatusOK))
			if again.LeaseID != lease.LeaseID {
				t.Errorf("repeated: %+v, want %+v", again, lease)
			}
			ask("/locks", c.other, "second").wants(http.StatusTooManyRequests).problem(c.problem)
			ask("/cancel", c.request, "first").wants(http.StatusNoContent)
			ask("/cancel", c.request, "first").wants(http.StatusNoContent)
			ask("/locks", c.other, "third").wants(http.StatusCreated)
		})
	}
}

// The same for one that waits as often as it may.
func TestCallerWithAllItsWaits(t *testing.T) {
	s := newRealService(t, withAccess(t, line("w", "acquire=* waiters=1")))
	ask := func(key string, wait int) answered {
		return s.call("POST", "/locks", fmt.Sprintf(`{"resource":"a","wait_ms":%d}`, wait), bearer("w"), "Idempotency-Key: "+key)
	}
	ask("first", 1000).wants(http.StatusCreated)
	waited := make(chan int, 1)
	go func() { waited <- ask("second", 600_000).status }()
	eventually(t, "the second waits", func() bool {
		return decode[wire.Lock](s.call("GET", "/locks/a", "", bearer("w"))).Waiters == 1
	})
	ask("third", 1000).wants(http.StatusTooManyRequests).problem("waiter-limit")
	ask("first", 1000).wants(http.StatusOK)
	s.call("POST", "/cancel", `{"resource":"a"}`, bearer("w"), "Idempotency-Key: second").wants(http.StatusNoContent)
	want(t, "the wait that was given up", <-waited, http.StatusConflict)
}

// A lease that another server granted counts from its extension here.
func TestAnExtendedLeaseCounts(t *testing.T) {
	s := newService(t, &fake{
		acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
			return grant(req.Resource), nil
		},
		extend: func(id string, _ time.Duration) (lockcore.Lease, error) {
			return lockcore.Lease{Resource: "r", ID: id, Token: 3, TTL: time.Minute}, nil
		},
		release: func(context.Context, string) error { return lockcore.ErrNotHeld },
	}, withAccess(t, line("w", "acquire=* held=1"), line("other", "acquire=* held=1")))
	s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: of-another-server", bearer("w")).wants(http.StatusOK)
	s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: of-another-server", bearer("w")).wants(http.StatusOK) // once
	s.call("POST", "/locks", `{"resource":"a"}`, bearer("w")).wants(http.StatusTooManyRequests).problem("lease-limit")
	s.call("POST", "/locks", `{"resource":"a"}`, bearer("other")).wants(http.StatusCreated)
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: of-another-server", bearer("w")).wants(http.StatusNotFound) // it has ended
	s.call("POST", "/locks", `{"resource":"b"}`, bearer("w")).wants(http.StatusCreated)
}
