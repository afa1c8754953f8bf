package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

func TestAcquireSeveral(t *testing.T) {
	s := newService(t, &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		if req.Resource != "" || !slices.Equal(req.Resources, []string{"a", "b"}) || req.Wait != time.Second {
			t.Errorf("asked for %+v", req)
		}
		return lockcore.Lease{ID: leaseID, TTL: time.Second, Validity: time.Second, MaxHoldRemaining: -1, Parts: []lockcore.LeasePart{{Resource: "a", Token: 34}, {Resource: "b", Token: 7}}}, nil
	}})
	a := s.call("POST", "/locks", `{"resources":["b","a"],"wait_ms":1000}`).wants(http.StatusCreated)
	want(t, "Location", a.header.Get("Location"), "/leases/current")
	want(t, "tokens in the header", len(a.header.Values("Fencing-Token")), 0)
	want(t, "body", strings.TrimSpace(a.body), `{"kind":"bundle","lease_id":"`+leaseID+`","resources":[{"resource":"a","fencing_token":34},{"resource":"b","fencing_token":7}],"ttl_ms":1000,"validity_ms":1000,"waited_ms":0,"max_hold_remaining_ms":null,"holder":"","metadata":null}`)
}

// TestRealSlots: as many leases as slots, each a lease of a resource of its own.
func TestRealSlots(t *testing.T) {
	s := newRealService(t)
	seen := map[int]wire.Lease{}
	for range 2 {
		a := s.call("POST", "/locks", `{"resource":"jobs","slots":2,"holder":"w1"}`).wants(http.StatusCreated)
		lease := decode[wire.Lease](a)
		if lease.Resource != lockcore.SlotName("jobs", lease.Slot) || a.header.Get("Fencing-Token") != fmt.Sprint(lease.FencingToken) {
			t.Errorf("lease %+v", lease)
		}
		seen[lease.Slot] = lease
	}
	if len(seen) != 2 || seen[1].LeaseID == "" || seen[2].LeaseID == "" {
		t.Fatalf("slots %+v", seen)
	}
	held := s.call("POST", "/locks", `{"resource":"jobs","slots":2}`).wants(http.StatusConflict).problem("lock-held")
	if slot, n := lockcore.SlotOf(held.Resource); slot != "jobs" || n == 0 || held.HeldDetails == nil || held.Holder != "w1" {
		t.Errorf("refusal %+v", held)
	}
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+seen[2].LeaseID).wants(http.StatusNoContent)
	again := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"jobs","slots":2}`, "Idempotency-Key: k").wants(http.StatusCreated))
	if again.Slot != 2 || again.FencingToken <= seen[2].FencingToken {
		t.Errorf("lease %+v after %+v", again, seen[2])
	}
	retry := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"jobs","slots":2}`, "Idempotency-Key: k").wants(http.StatusOK))
	if retry.LeaseID != again.LeaseID || retry.Slot != 2 {
		t.Errorf("the retry got %+v", retry)
	}
	extended := decode[wire.Lease](s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+again.LeaseID).wants(http.StatusOK))
	if extended.Slot != 2 || extended.Resource != again.Resource {
		t.Errorf("extended %+v", extended)
	}
	locks := decode[wire.LockPage](s.call("GET", "/locks?prefix=jobs", "").wants(http.StatusOK)).Locks
	if len(locks) != 2 {
		t.Errorf("locks %+v", locks)
	}
	s.breaks("jobs#slot2").wants(http.StatusNoContent)
	for _, body := range []string{`{"resource":"jobs","slots":0}`, `{"resource":"jobs","slots":33}`, `{"resource":"jobs","slots":-1}`, `{"resources":["a","b"],"slots":2}`} {
		if p := s.call("POST", "/locks", body).wants(http.StatusBadRequest).problem("invalid-request"); p.Field != "slots" {
			t.Errorf("%s: %+v", body, p)
		}
	}
}

// TestRealSeveral: all or none, and one lease id for all of it.
func TestRealSeveral(t *testing.T) {
	s := newRealService(t)
	one := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"b","holder":"w1"}`).wants(http.StatusCreated))
	held := s.call("POST", "/locks", `{"resources":["c","b","a"]}`).wants(http.StatusConflict).problem("lock-held")
	if held.Resource != "b" || held.HeldDetails == nil || held.Holder != "w1" || held.FencingToken != one.FencingToken {
		t.Errorf("refusal %+v does not tell that b is in the way", held)
	}
	for _, resource := range []string{"a", "c"} {
		if decode[wire.Lock](s.call("GET", "/locks/"+resource, "").wants(http.StatusOK)).Held {
			t.Errorf("%s stayed behind", resource)
		}
	}
	timeout := s.call("POST", "/locks", `{"resources":["c","b","a"],"wait_ms":50}`).wants(http.StatusConflict).problem("wait-timeout")
	if timeout.Resource != "b" || timeout.WaitDetails == nil || timeout.WaitedMS < 50 {
		t.Errorf("refusal %+v %+v", timeout, timeout.WaitDetails)
	}
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+one.LeaseID).wants(http.StatusNoContent)

	all := decode[wire.Lease](s.call("POST", "/locks", `{"resources":["c","b","a"],"holder":"w2","metadata":7}`, "Idempotency-Key: k").wants(http.StatusCreated))
	if len(all.Resources) != 3 || all.Resources[0].Resource != "a" || all.Resources[1].FencingToken <= one.FencingToken || all.Holder != "w2" || string(all.Metadata) != "7" {
		t.Errorf("lease %+v", all)
	}
	again := decode[wire.Lease](s.call("POST", "/locks", `{"resources":["a","b","c"],"holder":"w2","metadata":7}`, "Idempotency-Key: k").wants(http.StatusOK))
	if again.LeaseID != all.LeaseID || !slices.Equal(again.Resources, all.Resources) {
		t.Errorf("the retry got %+v, the first try %+v", again, all)
	}
	s.call("POST", "/locks", `{"resources":["a","b"]}`, "Idempotency-Key: k").wants(http.StatusUnprocessableEntity).problem("idempotency-mismatch")

	const path = "/leases/current"
	id := "Fencelock-Lease: " + all.LeaseID
	now := decode[wire.Lease](s.call("GET", path, "", id).wants(http.StatusOK))
	extended := decode[wire.Lease](s.call("POST", path+"/extend", `{"ttl_ms":50000}`, id).wants(http.StatusOK))
	if now.LeaseID != all.LeaseID || extended.LeaseID != all.LeaseID || extended.ValidityMS <= 40000 || !slices.Equal(extended.Resources, all.Resources) {
		t.Errorf("now %+v, extended %+v", now, extended)
	}
	// To lose one of them is to lose the lease.
	s.breaks("b").wants(http.StatusNoContent)
	s.call("POST", path+"/extend", "", id).wants(http.StatusNotFound).problem("lease-not-held")
	s.call("GET", path, "", id).wants(http.StatusNotFound).problem("lease-not-held")
	s.call("DELETE", path, "", id).wants(http.StatusNotFound).problem("lease-not-held") // which releases the others
	for _, resource := range []string{"a", "b", "c"} {
		if decode[wire.Lock](s.call("GET", "/locks/"+resource, "").wants(http.StatusOK)).Held {
			t.Errorf("%s stayed behind", resource)
		}
	}
}

// TestRealLargestLeaseID sends the longest lease id there is through the limits
// of headers and paths.
func TestRealLargestLeaseID(t *testing.T) {
	s := newRealService(t)
	names := make([]string, lockcore.MaxBundle)
	for i := range names {
		names[i] = fmt.Sprintf("%02d", i) + strings.Repeat("x", lockcore.MaxResourceBytes-2)
	}
	body, err := json.Marshal(map[string]any{"resources": names, "holder": strings.Repeat("h", 256)})
	if err != nil {
		t.Fatal(err)
	}
	lease := decode[wire.Lease](s.call("POST", "/locks", string(body)).wants(http.StatusCreated))
	t.Logf("the lease id of %d resources of %d bytes has %d characters", len(names), len(names[0]), len(lease.LeaseID))
	const path = "/leases/current"
	id := "Fencelock-Lease: " + lease.LeaseID
	s.call("GET", path, "", id).wants(http.StatusOK)
	s.call("POST", path+"/extend", "", id).wants(http.StatusOK)
	s.call("DELETE", path, "", id).wants(http.StatusNoContent)
}

// TestRealSeveralInAnyOrder: callers that name the same resources in different
// orders all get their turn.
func TestRealSeveralInAnyOrder(t *testing.T) {
	s := newRealService(t)
	var callers sync.WaitGroup
	for i := range 6 {
		names := []string{"x", "y", "z"}
		for range i % 3 {
			names = append(names[1:], names[0])
		}
		body := `{"resources":["` + strings.Join(names, `","`) + `"],"wait_ms":60000}`
		callers.Go(func() {
			for range 3 {
				a := s.call("POST", "/locks", body)
				if a.status != http.StatusCreated {
					t.Errorf("%d %s", a.status, a.body)
					return
				}
				if a := s.call("DELETE", a.header.Get("Location"), "", "Fencelock-Lease: "+decode[wire.Lease](a).LeaseID); a.status != http.StatusNoContent {
					t.Errorf("%d %s", a.status, a.body)
				}
			}
		})
	}
	callers.Wait()
}

// TestRealSeveralLosesAPart: a part that is broken while the caller waits for
// the rest is taken again.
func TestRealSeveralLosesAPart(t *testing.T) {
	t.Parallel()
	s := newRealService(t)
	b := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"b"}`).wants(http.StatusCreated))
	var both answered
	var waiting sync.WaitGroup
	waiting.Go(func() { both = s.call("POST", "/locks", `{"resources":["a","b"],"ttl_ms":3000,"wait_ms":60000}`) })
	eventually(t, "the caller has a and waits for b", func() bool { return s.inspect("b").Waiters == 1 })
	taken := s.inspect("a").FencingToken
	s.breaks("a").wants(http.StatusNoContent)
	eventually(t, "a is taken again", func() bool { return s.inspect("a").FencingToken > taken })
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+b.LeaseID).wants(http.StatusNoContent)
	waiting.Wait()
	lease := decode[wire.Lease](both.wants(http.StatusCreated))
	if len(lease.Resources) != 2 || lease.Resources[0].FencingToken <= taken || lease.Resources[1].FencingToken <= b.FencingToken {
		t.Errorf("lease %+v", lease)
	}
}
