package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// doubling is a proxy that passes every break on. deliver passes the last break on a second time, and returns its
// response.
type doubling struct {
	*httptest.Server
	target *url.URL
	last   *http.Request
	body   []byte
}

func startDoubling(t *testing.T, to string) *doubling {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	d := &doubling{target: target}
	next := httputil.NewSingleHostReverseProxy(target)
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/breaks" {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			d.last, d.body = r.Clone(t.Context()), body
		}
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(d.Close)
	return d
}

func (d *doubling) deliver(t *testing.T) int {
	t.Helper()
	w, again := httptest.NewRecorder(), d.last
	again.Body = io.NopCloser(bytes.NewReader(d.body))
	httputil.NewSingleHostReverseProxy(d.target).ServeHTTP(w, again)
	return w.Code
}

// The steps of a defect: a holder's lease is broken, the next caller gets the resource, and the same break arrives
// again, from the operator or from a proxy. That second break once ended the next caller's lease.
func TestBreakThatComesTwice(t *testing.T) {
	t.Parallel()
	p := start(t)
	operator := startDoubling(t, p.url)
	first := p.acquire(`{"resource":"orders/42","ttl_ms":60000}`)
	next := p.waits(t.Context(), "orders/42", "next", time.Minute)
	p.awaitWaiting("orders/42", 1)

	through := &process{t: t, url: operator.URL, client: p.client}
	body := fmt.Sprintf(`{"resource":"orders/42","fencing_token":%d}`, first.FencingToken)
	p.wants(through.ask(nil, "POST", "/breaks", body), http.StatusNoContent)
	turn := <-next
	if turn.status != http.StatusCreated {
		t.Fatalf("the next caller got %d", turn.status)
	}
	keeps := func(who string) {
		t.Helper()
		var lock wire.Lock
		p.wants(p.ask(&lock, "GET", "/locks/orders/42", ""), http.StatusOK)
		if !lock.Held || lock.FencingToken != turn.lease.FencingToken {
			t.Errorf("after the break of %s the resource is %+v", who, lock)
		}
		p.wants(p.ask(nil, "POST", "/leases/current/extend", "", wire.HeaderLease+": "+turn.lease.LeaseID), http.StatusOK)
	}
	if status := operator.deliver(t); status != http.StatusPreconditionFailed {
		t.Errorf("the proxy's second break got %d", status)
	}
	keeps("the proxy")
	var refused wire.Problem
	p.wants(p.ask(&refused, "POST", "/breaks", body), http.StatusPreconditionFailed)
	if refused.HeldDetails == nil || refused.FencingToken != turn.lease.FencingToken || refused.Holder != "next" {
		t.Errorf("%+v", refused)
	}
	keeps("the operator")
	p.wants(p.ask(nil, "DELETE", "/locks/orders/42?fencing_token=1", ""), http.StatusMethodNotAllowed)
	keeps("a DELETE")
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", wire.HeaderLease+": "+turn.lease.LeaseID), http.StatusNoContent)
	p.wants(p.ask(nil, "POST", "/breaks", body), http.StatusNotFound)
}
