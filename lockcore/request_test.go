package lockcore

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestLimitsName(t *testing.T) {
	if err := (Limits{}).WithDefaults().Validate(); err != nil {
		t.Error(err)
	}
	for field, limits := range map[string]Limits{
		"MinTTL":     {MinTTL: MinTTL - 1},
		"MaxTTL":     {MaxTTL: MinTTL - 1},
		"DefaultTTL": {DefaultTTL: time.Hour},
	} {
		if err := limits.WithDefaults().Validate(); err == nil || !strings.HasPrefix(err.Error(), field+" ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestCheckAcquire(t *testing.T) {
	limits := Limits{}.WithDefaults()
	good := Request{Caller: Everyone, Resource: "r", TTL: time.Second + time.Microsecond, Holder: "h"}
	if err := limits.Check(&good); err != nil || good.TTL != time.Second {
		t.Errorf("a sound request: %v, TTL %s", err, good.TTL)
	}
	byDefault := Request{Caller: Everyone, Resource: "r"}
	if err := limits.Check(&byDefault); err != nil || byDefault.TTL != limits.DefaultTTL {
		t.Errorf("a request without TTL: %v, %s", err, byDefault.TTL)
	}
	for field, req := range map[string]Request{
		"resource":        {},
		"ttl_ms":          {Resource: "r", TTL: time.Millisecond},
		"wait_ms":         {Resource: "r", Wait: -1},
		"holder":          {Resource: "r", Holder: "a\x1fb"},
		"metadata":        {Resource: "r", Metadata: json.RawMessage(strings.Repeat(" ", MaxMetadataBytes+1))},
		"Idempotency-Key": {Resource: "r", IdempotencyKey: strings.Repeat("k", maxIdempotencyKey+1)},
	} {
		var bad *FieldError
		req.Caller = Everyone
		if err := limits.Check(&req); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for name, caller := range map[string]Caller{"no caller": {}, "a caller without a name": CallerNamed("")} {
		if err := limits.Check(&Request{Resource: "r", Caller: caller}); !errors.Is(err, ErrNoCaller) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A request is checked once. After that nothing changes it on its way to the nodes.
func TestACheckedRequestPassesAsItIs(t *testing.T) {
	req := Request{Caller: Everyone, Resources: []string{"b", "a"}, IdempotencyKey: "k"}
	if err := (Limits{}).WithDefaults().Check(&req); err != nil {
		t.Fatal(err)
	}
	was := req
	if err := (Limits{MaxTTL: time.Second}).WithDefaults().Check(&req); err != nil || !reflect.DeepEqual(req, was) {
		t.Errorf("%v; %+v, was %+v", err, req, was)
	}
}

// The scope of an idempotency key is computed from the request as it was sent, because another server may have
// another default TTL.
func TestTheScopeIsOfTheRequestAsItWasSent(t *testing.T) {
	scope := func(l Limits, change func(*Request)) string {
		t.Helper()
		req := Request{Caller: Everyone, Resource: "r", IdempotencyKey: "k"}
		change(&req)
		if err := l.WithDefaults().Check(&req); err != nil {
			t.Fatal(err)
		}
		return req.Scope
	}
	as := scope(Limits{}, func(*Request) {})
	if other := scope(Limits{DefaultTTL: time.Second}, func(*Request) {}); other != as {
		t.Errorf("with another default TTL the scope is %q, not %q", other, as)
	}
	if other := scope(Limits{}, func(r *Request) { r.Wait, r.Poll = time.Minute, time.Second }); other != as {
		t.Errorf("with a wait the scope is %q, not %q", other, as)
	}
	for name, change := range map[string]func(*Request){
		"the default TTL by name": func(r *Request) { r.TTL = 30 * time.Second },
		"another holder":          func(r *Request) { r.Holder = "h" },
		"a minimum hold":          func(r *Request) { r.MinHold = time.Second },
		"another resource":        func(r *Request) { r.Resource = "s" },
		"slots":                   func(r *Request) { r.Slots = 2 },
	} {
		if other := scope(Limits{}, change); other == as {
			t.Errorf("%s: the scope is the same", name)
		}
	}
}

// A service may have a longer minimum TTL than the API. Its error says why.
func TestTheShortestTTLOfAStore(t *testing.T) {
	limits := Limits{MinTTL: 250 * time.Millisecond}.WithDefaults()
	for ttl, says := range map[time.Duration]string{
		249 * time.Millisecond: "must be a whole number from 250 to 60000: the store",
		250 * time.Millisecond: "",
		time.Hour:              "must be a whole number from 250 to 60000",
		0:                      "",
	} {
		_, err := limits.CheckTTL(ttl)
		if said := fmt.Sprint(err); (err != nil) != (says != "") || !strings.Contains(said, says) {
			t.Errorf("a TTL of %s: %v", ttl, err)
		}
	}
	limits.DefaultTTL = 200 * time.Millisecond
	if err := limits.Validate(); err == nil || !strings.Contains(err.Error(), "DefaultTTL is 200ms: 250ms to MaxTTL") {
		t.Errorf("%v", err)
	}
}

func TestValidateResource(t *testing.T) {
	for _, good := range []string{"a", "orders/17", "ü 漢 🔒", strings.Repeat("x", MaxResourceBytes)} {
		if err := ValidateResource(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "a\x00", "a\n", "a\u0085b", "\xff", strings.Repeat("x", MaxResourceBytes+1)} {
		if err := ValidateResource(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// Two versions of fencelock compare scopes, so a request must have the same scope in both.
func TestScopesStayAsTheyWere(t *testing.T) {
	limits := Limits{}.WithDefaults()
	for want, req := range map[string]Request{
		"r\x1fWxheSjrYZRCz": {TTL: 10 * time.Second},
		"r\x1fWDSCvESdjwpc": {
			Slots: 3, TTL: 1500 * time.Millisecond, MinHold: time.Second, MaxHold: time.Hour,
			Holder: "wörker \"7\"\n\x00\u2028", Metadata: json.RawMessage(`{"job": "ü"}`),
		},
	} {
		req.Caller, req.Resource, req.IdempotencyKey = Everyone, "r", "key"
		req.terms = termsOf(&req)
		if got := req.scopeOf(req.Resource); got != want {
			t.Errorf("the scope is %q, want %q", got, want)
		}
	}
	req := Request{Caller: Everyone, Resource: "r", TTL: 10 * time.Second}
	if err := limits.Check(&req); err != nil || req.Scope != "" {
		t.Errorf("without a key the scope is %q (%v)", req.Scope, err)
	}
}
