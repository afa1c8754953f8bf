package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

func TestHolds(t *testing.T) {
	var calls []string
	s := newService(t, &fake{
		hold: func(id, hold string) (lockcore.Lease, error) {
			calls = append(calls, "hold "+id+" "+hold)
			return grant("orders/42"), nil
		},
		unhold: func(id, hold string) error {
			calls = append(calls, "unhold "+id+" "+hold)
			return nil
		},
	})
	a := s.call("POST", "/leases/"+leaseID+"/holds", `{"hold":"step-2"}`).wants(http.StatusOK)
	want(t, "resource", decode[wire.Lease](a).Resource, "orders/42")
	want(t, "Fencing-Token", a.header.Get("Fencing-Token"), "34")
	a = s.call("DELETE", "/leases/"+leaseID+"/holds/step-2", "").wants(http.StatusNoContent)
	want(t, "body", a.body, "")
	s.call("DELETE", "/leases/"+leaseID+"/holds/a.b~", "").wants(http.StatusNoContent)
	if wanted := []string{"hold " + leaseID + " step-2", "unhold " + leaseID + " step-2", "unhold " + leaseID + " a.b~"}; !slices.Equal(calls, wanted) {
		t.Errorf("called %q, want %q", calls, wanted)
	}
}

func TestRefusalsOfHolds(t *testing.T) {
	var err error
	s := newService(t, &fake{
		hold:   func(string, string) (lockcore.Lease, error) { return lockcore.Lease{}, err },
		unhold: func(string, string) error { return err },
	})
	hold := func() answered { return s.call("POST", "/leases/"+leaseID+"/holds", `{"hold":"h"}`) }
	unhold := func() answered { return s.call("DELETE", "/leases/"+leaseID+"/holds/h", "") }
	err = lockcore.ErrNotHeld
	hold().wants(http.StatusNotFound).problem("lease-not-held")
	unhold().wants(http.StatusNotFound).problem("hold-not-there")
	for _, call := range []func() answered{hold, unhold} {
		err = lockcore.ErrMalformedLeaseID
		call().refusedField("lease_id")
		err = lockcore.ValidateHold("not one")
		call().refusedField("hold")
		err = &lockcore.QuorumError{Quorum: 1}
		call().wants(http.StatusServiceUnavailable).problem("no-quorum")
	}
	err = errors.Join(fmt.Errorf("one part: %w", lockcore.ErrMostHolds))
	hold().wants(http.StatusConflict).problem("too-many-holds")
}

// TestRealHolds: the lease ends with its last hold, and a retry changes nothing.
func TestRealHolds(t *testing.T) {
	s := newRealService(t)
	lease := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"a"}`).wants(http.StatusCreated))
	path := "/leases/" + lease.LeaseID
	for range 2 {
		held := decode[wire.Lease](s.call("POST", path+"/holds", `{"hold":"inner"}`).wants(http.StatusOK))
		if held.FencingToken != lease.FencingToken || held.LeaseID != lease.LeaseID || held.ValidityMS <= 0 {
			t.Errorf("held %+v, the lease is %+v", held, lease)
		}
	}
	s.call("POST", path+"/holds", `{"hold":"other"}`).wants(http.StatusOK)
	s.call("DELETE", path+"/holds/nobodys", "").wants(http.StatusNotFound).problem("hold-not-there")

	s.call("DELETE", path, "").wants(http.StatusNoContent)
	s.call("DELETE", path, "").wants(http.StatusNotFound).problem("lease-not-held") // its own hold is off
	s.call("POST", "/locks", `{"resource":"a"}`).wants(http.StatusConflict).problem("lock-held")
	s.call("DELETE", path+"/holds/inner", "").wants(http.StatusNoContent)
	s.call("DELETE", path+"/holds/inner", "").wants(http.StatusNotFound).problem("hold-not-there")
	s.call("GET", path, "").wants(http.StatusOK)
	s.call("DELETE", path+"/holds/other", "").wants(http.StatusNoContent)

	s.call("GET", path, "").wants(http.StatusNotFound).problem("lease-not-held")
	s.call("POST", path+"/holds", `{"hold":"late"}`).wants(http.StatusNotFound).problem("lease-not-held")
	next := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"a"}`).wants(http.StatusCreated))
	if next.FencingToken <= lease.FencingToken {
		t.Errorf("token %d after %d", next.FencingToken, lease.FencingToken)
	}
}

// TestRealHoldsOfSeveral: a hold is one of all the resources.
func TestRealHoldsOfSeveral(t *testing.T) {
	s := newRealService(t)
	lease := decode[wire.Lease](s.call("POST", "/locks", `{"resources":["b","a"]}`).wants(http.StatusCreated))
	path := "/leases/" + lease.LeaseID
	s.call("POST", path+"/holds", `{"hold":"inner"}`).wants(http.StatusOK)
	s.call("DELETE", path, "").wants(http.StatusNoContent)
	s.call("POST", "/locks", `{"resource":"a"}`).wants(http.StatusConflict)
	s.call("POST", "/locks", `{"resource":"b"}`).wants(http.StatusConflict)
	s.call("DELETE", path+"/holds/inner", "").wants(http.StatusNoContent)
	s.call("POST", "/locks", `{"resource":"a"}`).wants(http.StatusCreated)
	s.call("POST", "/locks", `{"resource":"b"}`).wants(http.StatusCreated)
}

func TestRealHoldsAreBounded(t *testing.T) {
	s := newRealService(t)
	lease := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"a","ttl_ms":60000}`).wants(http.StatusCreated))
	path := "/leases/" + lease.LeaseID + "/holds"
	for i := 1; i < lockcore.MostHolds; i++ {
		s.call("POST", path, fmt.Sprintf(`{"hold":"h%d"}`, i)).wants(http.StatusOK)
	}
	s.call("POST", path, `{"hold":"more"}`).wants(http.StatusConflict).problem("too-many-holds")
	s.call("POST", path, `{"hold":"h1"}`).wants(http.StatusOK)
	s.call("DELETE", path+"/h1", "").wants(http.StatusNoContent)
	s.call("POST", path, `{"hold":"more"}`).wants(http.StatusOK)
}

func TestRealHoldIDs(t *testing.T) {
	s := newRealService(t)
	lease := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"a"}`).wants(http.StatusCreated))
	path := "/leases/" + lease.LeaseID + "/holds"
	for _, hold := range []string{".", "a b", "a/b", "a,b", "é", `a\u0000`, "%", "a%2Fb"} {
		s.call("POST", path, `{"hold":"`+hold+`"}`).refusedField("hold")
	}
	for _, hold := range []string{"%2E", "a%20b", "a%2Fb", "a,b", "%C3%A9", "%00", "%FF", "%25", "a%252Fb", "%2541", strings.Repeat("h", 65)} {
		s.call("DELETE", path+"/"+hold, "").refusedField("hold")
	}
	for _, hold := range []string{"..", "-", "~", "A.z_9", strings.Repeat("h", 64)} {
		s.call("POST", path, `{"hold":"`+hold+`"}`).wants(http.StatusOK)
		s.call("DELETE", path+"/"+hold, "").wants(http.StatusNoContent)
	}
	for _, id := range []string{"x", lease.LeaseID + "A", "%00"} {
		s.call("POST", "/leases/"+id+"/holds", `{"hold":"h"}`).refusedField("lease_id")
		s.call("DELETE", "/leases/"+id+"/holds/h", "").refusedField("lease_id")
	}
}
