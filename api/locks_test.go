package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

func grant(resource string) lockcore.Lease {
	return lockcore.Lease{
		Resource:         resource,
		ID:               leaseID,
		Token:            34,
		TTL:              10 * time.Second,
		Validity:         9897*time.Millisecond + 999*time.Microsecond,
		MaxHoldRemaining: time.Hour - time.Microsecond,
		Holder:           "worker-7",
		Metadata:         json.RawMessage(`{"job": 1234}`),
	}
}

func TestAcquire(t *testing.T) {
	var asked lockcore.Request
	s := newService(t, &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		asked = req
		return grant(req.Resource), nil
	}})
	a := s.call("POST", "/locks", `{"resource":"orders/42","ttl_ms":10000,"wait_ms":0,"holder":"worker-7","metadata":{"job": 1234}}`,
		"Idempotency-Key: k-1", "X-Request-Id: checkout-7").wants(http.StatusCreated)
	want(t, "resource", asked.Resource, "orders/42")
	want(t, "ttl", asked.TTL, 10*time.Second)
	want(t, "wait", asked.Wait, 0)
	want(t, "holder", asked.Holder, "worker-7")
	want(t, "metadata", string(asked.Metadata), `{"job": 1234}`)
	want(t, "key", asked.IdempotencyKey, "k-1")
	want(t, "Location", a.header.Get("Location"), "/leases/current")
	want(t, "Fencing-Token", a.header.Get("Fencing-Token"), "34")
	want(t, "Cache-Control", a.header.Get("Cache-Control"), "no-store")
	want(t, "X-Request-Id", a.header.Get(wire.HeaderRequestID), "checkout-7")
	want(t, "body", strings.TrimSpace(a.body), `{"kind":"lease","resource":"orders/42","lease_id":"`+leaseID+`","fencing_token":34,"ttl_ms":10000,"validity_ms":9897,"waited_ms":0,"max_hold_remaining_ms":3599999,"holder":"worker-7","metadata":{"job":1234}}`)
}

func TestAcquireWithTheLeast(t *testing.T) {
	var asked lockcore.Request
	s := newService(t, &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		asked = req
		return lockcore.Lease{Resource: req.Resource, ID: leaseID, Token: 1, TTL: time.Second, Validity: -time.Second, MaxHoldRemaining: -1, Existing: true}, nil
	}})
	a := s.call("POST", "/locks", `{"resource":"a","metadata":null}`, "Content-Type: application/json; charset=UTF-8").wants(http.StatusOK)
	lease := decode[wire.Lease](a)
	if asked.TTL != limits.DefaultTTL || asked.Wait != 0 || asked.Metadata != nil || asked.IdempotencyKey != "" {
		t.Errorf("asked for %+v, want the defaults", asked)
	}
	if lease.MaxHoldRemainingMS != nil || string(lease.Metadata) != "null" || lease.ValidityMS != 0 {
		t.Errorf("lease %+v: want an unbounded hold, null metadata, and no negative validity", lease)
	}
}

func TestPrefer(t *testing.T) {
	var last lockcore.Request
	s := newService(t, &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		last = req
		return grant(req.Resource), nil
	}})
	acquire := func(body string, prefer ...string) answered {
		for i := range prefer {
			prefer[i] = "Prefer: " + prefer[i]
		}
		return s.call("POST", "/locks", body, prefer...)
	}
	for _, prefer := range []string{"wait=0", `respond-async, Wait="0"; x=1`, " wait = 0"} {
		a := acquire(`{"resource":"a"}`, prefer).wants(http.StatusCreated)
		want(t, prefer, a.header.Get("Preference-Applied"), "wait=0")
	}
	for _, prefer := range []string{"respond-async", "waiting=5", ""} {
		a := acquire(`{"resource":"a"}`, prefer).wants(http.StatusCreated)
		want(t, prefer, a.header.Get("Preference-Applied"), "")
	}
	a := acquire(`{"resource":"a","wait_ms":0}`, "wait=0").wants(http.StatusCreated)
	want(t, "wait_ms overrides Prefer", a.header.Get("Preference-Applied"), "")
	for _, c := range []struct {
		wait          time.Duration
		key           bool
		prefer        string
		poll          time.Duration
		applied, what string
	}{
		{time.Minute, true, "wait=45", 45 * time.Second, "wait=45", "a poll"},
		{time.Minute, false, "wait=45", 0, "", "without a key there is no place to keep"},
		{time.Minute, true, "wait=60", 0, "", "no shorter than the wait"},
		{time.Minute, true, "wait=0", 0, "", "no wait at all"},
		{time.Minute, true, "", 0, "", "no preference"},
	} {
		header := []string{"Prefer: " + c.prefer}
		if c.key {
			header = append(header, "Idempotency-Key: k")
		}
		a := s.call("POST", "/locks", fmt.Sprintf(`{"resource":"a","wait_ms":%d}`, c.wait.Milliseconds()), header...).wants(http.StatusCreated)
		want(t, c.what, a.header.Get("Preference-Applied"), c.applied)
		want(t, c.what, last.Poll, c.poll)
		want(t, c.what, last.Wait, c.wait)
	}
	for _, prefer := range []string{"wait=-1", "wait=x", "wait", "wait=1.5"} {
		acquire(`{"resource":"a"}`, prefer).refusedField("Prefer")
	}
}

func TestWait(t *testing.T) {
	var asked time.Duration
	s := newService(t, &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		asked = req.Wait
		return grant(req.Resource), nil
	}})
	s.call("POST", "/locks", `{"resource":"a","wait_ms":1500}`).wants(http.StatusCreated)
	want(t, "wait", asked, 1500*time.Millisecond)
	a := s.call("POST", "/locks", `{"resource":"a"}`, "Prefer: wait=600").wants(http.StatusCreated)
	want(t, "wait", asked, 600*time.Second)
	want(t, "Preference-Applied", a.header.Get("Preference-Applied"), "wait=600")
	for _, long := range []string{"601", "3600", "9223372036854775808", strings.Repeat("9", 300)} {
		a := s.call("POST", "/locks", `{"resource":"a"}`, "Prefer: wait="+long).wants(http.StatusCreated)
		want(t, "wait", asked, 600*time.Second)
		want(t, "Preference-Applied", a.header.Get("Preference-Applied"), "wait=600")
	}
	s.call("POST", "/locks", `{"resource":"a","wait_ms":0}`, "Prefer: wait=600").wants(http.StatusCreated)
	want(t, "wait", asked, 0)
}

func TestRefusalsOfLocks(t *testing.T) {
	held := &lockcore.HeldError{Resource: "a", Holder: "b", Token: 7, Remaining: 1200*time.Millisecond + 1, Waiters: 3}
	quorum := &lockcore.QuorumError{Resource: "a", Quorum: 2, Answered: 2, Granted: 1, RetryAfter: 1500 * time.Millisecond,
		Nodes: []lockcore.NodeOutcome{{Node: "n1", Reason: "granted"}, {Node: "n2", Reason: "not admitted: restarted"}, {Node: "n3", Reason: "timeout"}}}
	cases := []struct {
		err        error
		status     int
		slug       string
		retryAfter string
		members    string // of the body, in order
	}{
		{held, 409, "lock-held", "2", `"resource":"a","holder":"b","fencing_token":7,"remaining_ms":1201,"waiters":3`},
		{&lockcore.HeldError{Resource: "a"}, 409, "lock-held", "1", `"resource":"a","holder":"","remaining_ms":0,"waiters":0`},
		{quorum, 503, "no-quorum", "2", `"resource":"a","asked":3,"answered":2,"granted":1,"quorum":2,"nodes":[{"node":"n1","reason":"granted"},{"node":"n2","reason":"not admitted: restarted"},{"node":"n3","reason":"timeout"}]`},
		{&lockcore.WaitTimeoutError{HeldError: *held, Position: 2, Waited: 5 * time.Second, Kept: true}, 409, "wait-timeout", "1",
			`"resource":"a","holder":"b","fencing_token":7,"remaining_ms":1201,"waiters":3,"queued":true,"position":2,"waited_ms":5000`},
		{lockcore.ErrTooManyWaiters, 503, "too-many-waiters", "1", ""},
		{lockcore.ErrStopping, 503, "server-stopping", "1", ""},
		{lockcore.ErrIdempotencyMismatch, 422, "idempotency-mismatch", "", ""},
		{lockcore.ErrTokensExhausted, 409, "tokens-exhausted", "", ""},
		{errors.Join(&lockcore.FieldError{Field: "holder", Reason: "is odd"}), 400, "invalid-request", "", `"detail":"holder is odd","field":"holder"`},
		{errors.New("redis: password hunter2 rejected"), 500, "internal-error", "", ""},
	}
	for _, c := range cases {
		t.Run(c.slug, func(t *testing.T) {
			s := newService(t, &fake{acquire: func(context.Context, lockcore.Request) (lockcore.Lease, error) {
				return lockcore.Lease{}, c.err
			}})
			a := s.call("POST", "/locks", `{"resource":"a"}`).wants(c.status)
			a.problem(c.slug)
			want(t, "Retry-After", a.header.Get("Retry-After"), c.retryAfter)
			if !strings.Contains(a.body, c.members) {
				t.Errorf("%s lacks %s", a.body, c.members)
			}
			if strings.Contains(a.body, "hunter2") {
				t.Errorf("the answer tells an inner error: %s", a.body)
			}
			if logged := strings.Contains(s.log.String(), "hunter2"); logged != (c.status == 500) {
				t.Errorf("inner error logged: %v, status %d", logged, c.status)
			}
		})
	}
}

func TestLeases(t *testing.T) {
	var extendedBy []time.Duration
	f := &fake{
		lease: func(id string) (lockcore.Lease, error) { return grant("orders/" + id), nil },
		extend: func(_ string, ttl time.Duration) (lockcore.Lease, error) {
			extendedBy = append(extendedBy, ttl)
			return grant("orders/42"), nil
		},
		release: func(context.Context, string) error { return nil },
	}
	s := newService(t, f)
	a := s.call("GET", "/leases/current", "", "Fencelock-Lease: "+leaseID).wants(http.StatusOK)
	want(t, "resource", decode[wire.Lease](a).Resource, "orders/"+leaseID)
	want(t, "Fencing-Token", a.header.Get("Fencing-Token"), "34")
	want(t, "Cache-Control", a.header.Get("Cache-Control"), "no-store")

	s.call("POST", "/leases/current/extend", `{"ttl_ms":5000}`, "Fencelock-Lease: "+leaseID).wants(http.StatusOK)
	s.call("POST", "/leases/current/extend", `{}`, "Fencelock-Lease: "+leaseID).wants(http.StatusOK)
	s.call("POST", "/leases/current/extend", ``, "Fencelock-Lease: "+leaseID).wants(http.StatusOK)
	if len(extendedBy) != 3 || extendedBy[0] != 5*time.Second || extendedBy[1] != 0 || extendedBy[2] != 0 {
		t.Errorf("extended by %v, want 5s and twice the default", extendedBy)
	}

	a = s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+leaseID).wants(http.StatusNoContent)
	want(t, "body", a.body, "")
	want(t, "Cache-Control", a.header.Get("Cache-Control"), "no-store")
}

func TestRefusalsOfLeases(t *testing.T) {
	var err error
	s := newService(t, &fake{
		lease:   func(string) (lockcore.Lease, error) { return lockcore.Lease{}, err },
		extend:  func(string, time.Duration) (lockcore.Lease, error) { return lockcore.Lease{}, err },
		release: func(context.Context, string) error { return err },
	})
	calls := [][2]string{{"GET", ""}, {"POST", "/extend"}, {"DELETE", ""}}
	for _, c := range calls {
		err = lockcore.ErrNotHeld
		s.call(c[0], "/leases/current"+c[1], "", "Fencelock-Lease: "+leaseID).wants(http.StatusNotFound).problem("lease-not-held")
		err = &lockcore.QuorumError{Quorum: 1}
		s.call(c[0], "/leases/current"+c[1], "", "Fencelock-Lease: "+leaseID).wants(http.StatusServiceUnavailable).problem("no-quorum")
	}
	err = lockcore.ErrMaxHold
	s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+leaseID).wants(http.StatusConflict).problem("max-hold-reached")
}

func TestInspect(t *testing.T) {
	s := newService(t, &fake{inspect: func(resource string) (lockcore.LockState, error) {
		if resource == "free" {
			return lockcore.LockState{Resource: resource}, nil
		}
		return lockcore.LockState{
			Resource: resource, Held: true, Token: 9, Remaining: time.Millisecond + 1, TTL: time.Minute, HeldFor: time.Second,
			Waiting: 5, Waiters: []lockcore.Waiter{{Holder: "first", WaitingFor: time.Second}, {Holder: "second"}},
		}, nil
	}})
	a := s.call("GET", "/locks/free", "").wants(http.StatusOK)
	want(t, "free", strings.TrimSpace(a.body), `{"resource":"free","held":false,"waiters":0,"queue":[]}`)
	a = s.call("GET", "/locks/a", "").wants(http.StatusOK)
	want(t, "held", strings.TrimSpace(a.body), `{"resource":"a","held":true,"holder":"","fencing_token":9,"remaining_ms":2,"ttl_ms":60000,"held_ms":1000,"metadata":null,`+
		`"waiters":5,"queue":[{"holder":"first","waiting_ms":1000},{"holder":"second","waiting_ms":0}]}`)
}

func TestResourcesInPaths(t *testing.T) {
	var asked string
	s := newService(t, &fake{inspect: func(resource string) (lockcore.LockState, error) {
		asked = resource
		return lockcore.LockState{Resource: resource}, nil
	}})
	for path, resource := range map[string]string{
		"orders/42":              "orders/42",
		"orders%2F42":            "orders/42",
		"orders%2f42":            "orders/42",
		"a%20b+c":                "a b+c",
		"%C3%A9":                 "é",
		"%F0%9F%94%92":           "🔒",
		strings.Repeat("x", 256): strings.Repeat("x", 256),
		"%3F%23%25":              "?#%",
		"50%25":                  "50%",
		"..a/.b/c..":             "..a/.b/c..",
		"a%255":                  "a%5",
	} {
		asked = ""
		s.call("GET", "/locks/"+path, "").wants(http.StatusOK)
		want(t, path, asked, resource)
	}
}

// What a proxy may make another name of is served only with the header, whose name
// counts as much as the path's.
func TestResourcesThatProxiesChange(t *testing.T) {
	var asked string
	s := newService(t, &fake{inspect: func(resource string) (lockcore.LockState, error) {
		asked = resource
		return lockcore.LockState{Resource: resource}, nil
	}})
	for path, resource := range map[string]string{
		"orders%252F42":           "orders%2F42", // decoded once
		"orders//42":              "orders//42",
		"orders%2F%2F42":          "orders//42",
		"orders/":                 "orders/",
		"%2Fvar/lock":             "/var/lock",
		"a/./b":                   "a/./b",
		"a%2F..%2Fb":              "a/../b",
		"%2E%2E/..":               "../..",
		"..":                      "..",
		"a%5Cb":                   `a\b`,
		strings.Repeat("%2F", 10): strings.Repeat("/", 10),
	} {
		p := s.call("GET", "/locks/"+path, "").wants(http.StatusBadRequest).problem("invalid-request")
		if p.Field != "resource" || !strings.Contains(p.Detail, wire.HeaderResource) {
			t.Errorf("%s: %+v", path, p)
		}
		asked = ""
		s.call("GET", "/locks/"+path, "", wire.HeaderResource+": "+url.PathEscape(resource)).wants(http.StatusOK)
		want(t, path, asked, resource)
	}
	asked = ""
	for _, c := range []struct{ method, path, header string }{
		{"GET", "/locks/b", "a%2F..%2Fb"},
		{"GET", "/guarded/b", "a%2F..%2Fb"},
		{"PUT", "/guarded/b", "a%2F..%2Fb"},
		{"POST", "/guarded/b", "a%2F..%2Fb"},
		{"POST", "/guarded/b", "b%2Fclaim"},
		{"GET", "/locks/b", ""},
		{"GET", "/locks/b", "%FF"},
		{"GET", "/locks/b", "%zz"},
		{"GET", "/locks/b", "B"},
	} {
		p := s.call(c.method, c.path, "", wire.HeaderResource+": "+c.header, "Fencing-Token: 1").wants(http.StatusBadRequest).problem("invalid-request")
		want(t, c.method+" "+c.path, p.Field, wire.HeaderResource)
	}
	p := s.call("GET", "/locks/b", "", wire.HeaderResource+": b", wire.HeaderResource+": b").wants(http.StatusBadRequest).problem("invalid-request")
	want(t, "sent twice", p.Field, wire.HeaderResource)
	want(t, "asked", asked, "")
}

func TestList(t *testing.T) {
	s := newService(t, &fake{list: func(prefix string, limit int, cursor string) (lockcore.LockPage, error) {
		if prefix != "orders/" || limit != 7 || cursor != "c+1" {
			t.Errorf("asked for %q, %d, %q", prefix, limit, cursor)
		}
		return lockcore.LockPage{Locks: []lockcore.LockState{{Resource: "orders/1", Held: true, Holder: "h", Token: 1}}, NextCursor: "c2"}, nil
	}})
	page := decode[wire.LockPage](s.call("GET", "/locks?prefix=orders%2F&limit=7&cursor=c%2B1", "").wants(http.StatusOK))
	if len(page.Locks) != 1 || page.Locks[0].Resource != "orders/1" || page.NextCursor != "c2" {
		t.Errorf("page %+v", page)
	}
	s = newService(t, &fake{list: func(prefix string, limit int, cursor string) (lockcore.LockPage, error) {
		if prefix != "" || limit != 100 || cursor != "" {
			t.Errorf("asked for %q, %d, %q", prefix, limit, cursor)
		}
		return lockcore.LockPage{}, nil
	}})
	want(t, "empty page", strings.TrimSpace(s.call("GET", "/locks", "").wants(http.StatusOK).body), `{"locks":[]}`)
}

// A search is in resource and holder, and reads on until the page is full.
func TestListSearches(t *testing.T) {
	locks := []lockcore.LockState{
		{Resource: "orders/1", Held: true, Holder: "Worker-7", Token: 1}, {Resource: "orders/2", Held: true, Holder: "w", Token: 1},
		{Resource: "of-worker-7", Held: true, Token: 1}, {Resource: "orders/3", Held: true, Holder: "my WORKER-7", Token: 1},
		{Resource: "orders/4", Held: true, Holder: "w", Token: 1}, {Resource: "worker-7", Held: true, Holder: "w", Token: 1},
	}
	s := newService(t, &fake{list: func(_ string, limit int, cursor string) (lockcore.LockPage, error) {
		at, _ := strconv.Atoi(cursor)
		end := min(at+limit, len(locks))
		page := lockcore.LockPage{Locks: slices.Clone(locks[at:end])}
		if end < len(locks) {
			page.NextCursor = strconv.Itoa(end)
		}
		return page, nil
	}})
	find := func(query string) (found []string, next string) {
		page := decode[wire.LockPage](s.call("GET", "/locks?"+query, "").wants(http.StatusOK))
		for _, lock := range page.Locks {
			found = append(found, lock.Resource)
		}
		return found, page.NextCursor
	}
	found, next := find("search=worker-7&limit=3")
	if !slices.Equal(found, []string{"orders/1", "of-worker-7", "orders/3"}) || next != "4" {
		t.Errorf("found %q, next %q", found, next)
	}
	found, next = find("search=WORKER-7&limit=3&cursor=" + next)
	if !slices.Equal(found, []string{"worker-7"}) || next != "" {
		t.Errorf("behind it found %q, next %q", found, next)
	}
	if found, _ = find("search=7&limit=1"); !slices.Equal(found, []string{"orders/1"}) {
		t.Errorf("with limit 1 found %q", found)
	}
	want(t, "no match", strings.TrimSpace(s.call("GET", "/locks?search=none", "").wants(http.StatusOK).body), `{"locks":[]}`)
	s.call("GET", "/locks?search=%00", "").wants(http.StatusBadRequest).problem("invalid-request")
	s.call("GET", "/locks?search="+strings.Repeat("a", 257), "").wants(http.StatusBadRequest).problem("invalid-request")
}
