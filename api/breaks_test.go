package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

func TestBreak(t *testing.T) {
	var asked fencing.Token
	var err error
	s := newService(t, &fake{brk: func(resource string, token fencing.Token) error {
		want(t, "resource", resource, "a/../b c")
		asked = token
		return err
	}})
	const one = `{"resource":"a/../b c","fencing_token":34}`
	s.call("POST", "/breaks", one).wants(http.StatusNoContent)
	want(t, "the token", asked, 34)
	s.breaks("a/../b c").wants(http.StatusNoContent)
	want(t, "any token", asked, 0)
	err = lockcore.ErrNotHeld
	s.call("POST", "/breaks", one).wants(http.StatusNotFound).problem("lock-not-held")
	err = &lockcore.QuorumError{Quorum: 1}
	s.call("POST", "/breaks", one).wants(http.StatusServiceUnavailable).problem("no-quorum")
	err = &lockcore.OtherLeaseError{HeldError: lockcore.HeldError{Resource: "a/../b c", Holder: "w", Token: 36, Remaining: 1500e6}, Named: 34}
	a := s.call("POST", "/breaks", one).wants(http.StatusPreconditionFailed)
	p := a.problem("other-lease")
	if p.Resource != "a/../b c" || p.HeldDetails == nil || p.FencingToken != 36 || p.Holder != "w" || p.RemainingMS != 1500 ||
		!strings.Contains(p.Detail, "34") || !strings.Contains(p.Detail, "36") || a.header.Get("Retry-After") != "" {
		t.Errorf("%s, Retry-After %q", a.body, a.header.Get("Retry-After"))
	}
}

// Exactly one of the token and any: nothing is broken by a request that is not understood.
func TestBreakRequestsThatAreRefused(t *testing.T) {
	s := newService(t, &fake{}) // whose Break fails the test
	for body, field := range map[string]string{
		`{}`:                                "resource",
		`{"fencing_token":1}`:               "resource",
		`{"resource":"","fencing_token":1}`: "resource",
		`{"resource":"a\u0000","any":true}`: "resource",
		`{"resource":"` + strings.Repeat("a", 257) + `"}`: "resource",
		`{"resource":"r"}`:                                       "fencing_token",
		`{"resource":"r","fencing_token":0}`:                     "fencing_token",
		`{"resource":"r","fencing_token":-1}`:                    "fencing_token",
		`{"resource":"r","fencing_token":9007199254740992}`:      "fencing_token",
		`{"resource":"r","fencing_token":1.5}`:                   "fencing_token",
		`{"resource":"r","fencing_token":"1"}`:                   "fencing_token",
		`{"resource":"r","fencing_token":null}`:                  "fencing_token",
		`{"resource":"r","any":false}`:                           "any",
		`{"resource":"r","any":1}`:                               "any",
		`{"resource":"r","fencing_token":1,"any":true}`:          "any",
		`{"resource":"r","fencing_token":1,"any":false}`:         "any",
		`{"resource":"r","fencing_token":1,"force":true}`:        "force",
		`{"resource":"r","fencing_token":1,"fencing_token":2}`:   "body",
		`{"resource":"r","resources":["r"],"fencing_token":1}`:   "resources",
		`{"resource":"r","fencing_token":1} {"resource":"more"}`: "body",
		"": "body",
	} {
		p := s.call("POST", "/breaks", body).wants(http.StatusBadRequest).problem("invalid-request")
		want(t, body, p.Field, field)
	}
	s.call("POST", "/breaks", `{"resource":"r","any":true}`, "Content-Type: text/plain").wants(http.StatusUnsupportedMediaType)
}

// The request of earlier drafts ended whatever lease there was, ?fencing_token=1 or not.
func TestLocksAreNotDeleted(t *testing.T) {
	s := newService(t, &fake{})
	for _, path := range []string{"/locks/r", "/locks/r?fencing_token=1", "/locks/breaks"} {
		a := s.call("DELETE", path, "").wants(http.StatusMethodNotAllowed)
		a.problem("method-not-allowed")
		want(t, "Allow", a.header.Get("Allow"), "GET, HEAD")
	}
	want(t, "Allow", s.call("DELETE", "/breaks", "").wants(http.StatusMethodNotAllowed).header.Get("Allow"), "POST")
}

// The steps of the defect: a break that comes twice ended the lease of the next caller.
func TestBreakThatComesTwice(t *testing.T) {
	s := newRealService(t)
	first := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"orders/42"}`).wants(http.StatusCreated))
	body := `{"resource":"orders/42","fencing_token":` + fencing.Token(first.FencingToken).String() + `}`
	s.call("POST", "/breaks", body).wants(http.StatusNoContent)
	s.call("POST", "/breaks", body).wants(http.StatusNotFound).problem("lock-not-held")
	next := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"orders/42","holder":"next"}`).wants(http.StatusCreated))
	p := s.call("POST", "/breaks", body).wants(http.StatusPreconditionFailed).problem("other-lease")
	want(t, "the token that holds it", p.FencingToken, next.FencingToken)
	s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+next.LeaseID).wants(http.StatusOK)
	s.breaks("orders/42").wants(http.StatusNoContent)
	s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+next.LeaseID).wants(http.StatusNotFound)
}

// An event names the lease that was broken, and no holder of another one.
func TestBrokenEvent(t *testing.T) {
	held := lockcore.LockState{Resource: "r", Held: true, Token: 7, Holder: "w"}
	f := &fake{
		brk:     func(string, fencing.Token) error { return nil },
		inspect: func(string) (lockcore.LockState, error) { return held, nil },
	}
	_, withHub := withEvents(t)
	s := newService(t, f, withHub)
	l := listen(t, s, "/events")
	for body, wanted := range map[string]wire.Event{
		`{"resource":"r","any":true}`:        {Resource: "r", FencingToken: 7, Holder: "w"},
		`{"resource":"r","fencing_token":7}`: {Resource: "r", FencingToken: 7, Holder: "w"},
		`{"resource":"r","fencing_token":6}`: {Resource: "r", FencingToken: 6},
	} {
		s.call("POST", "/breaks", body).wants(http.StatusNoContent)
		got := l.next(wire.EventBroken)
		want(t, body, got.Resource == wanted.Resource && got.FencingToken == wanted.FencingToken && got.Holder == wanted.Holder, true)
	}
}
