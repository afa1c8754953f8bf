package client_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

const (
	fakeID     = "secret-lease-id"
	fakeProof  = "k1.secret-proof"
	fakeBearer = "secret-bearer-token"
)

// fake responds as a service of one resource would. It is also a transport without a network, so that a test may run
// in a bubble of testing/synctest.
type fake struct {
	mu       sync.Mutex
	held     *wire.AcquireRequest               // who holds the resource; nil if it is free
	requests []string                           // method and path
	answer   func(*http.Request) *http.Response // instead of the fake's own; nil for its own
}

func (f *fake) RoundTrip(r *http.Request) (*http.Response, error) {
	var body wire.AcquireRequest
	if r.Body != nil {
		raw, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		_ = json.Unmarshal(raw, &body)
		r.Body = io.NopCloser(bytes.NewReader(raw)) // for answer
	}
	f.mu.Lock()
	f.requests = append(f.requests, r.Method+" "+r.URL.Path)
	answer, held := f.answer, f.held
	acquires := r.URL.Path == "/locks" && r.Method == http.MethodPost
	switch {
	case r.Method == http.MethodDelete:
		f.held = nil
	case acquires && held == nil:
		f.held = &body
	}
	f.mu.Unlock()
	switch {
	case answer != nil:
		if resp := answer(r); resp != nil {
			return resp, nil
		}
		<-r.Context().Done()
		return nil, r.Context().Err()
	case acquires && held != nil && body.WaitMS != nil && *body.WaitMS > time.Second.Milliseconds():
		<-r.Context().Done()
		return nil, r.Context().Err()
	case acquires && held != nil:
		return response(r, http.StatusConflict, wire.Problem{
			Type: "/problems/lock-held", Title: "The resource is locked", Status: http.StatusConflict, Resource: "r",
			HeldDetails: &wire.HeldDetails{Holder: held.Holder},
		}), nil
	case r.Method == http.MethodDelete:
		return response(r, http.StatusNoContent, nil), nil
	}
	granted := lease(time.Minute)
	if acquires {
		granted = leaseOf(body)
	}
	return response(r, http.StatusOK, granted), nil
}

// leaseOf is the lease that a request for one or several resources is granted.
func leaseOf(body wire.AcquireRequest) wire.Lease {
	granted := lease(time.Minute)
	if body.Resource != "" {
		granted.Resource = body.Resource
		return granted
	}
	granted.Kind, granted.Resource, granted.FencingToken = wire.KindBundle, "", 0
	for _, resource := range slices.Sorted(slices.Values(body.Resources)) {
		granted.Resources = append(granted.Resources, wire.LeasePart{Resource: resource, FencingToken: 34, FencingProof: fakeProof})
	}
	return granted
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resp, err := f.RoundTrip(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

// count returns how many requests of a method and path have come.
func (f *fake) count(request string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if r == request {
			n++
		}
	}
	return n
}

func (f *fake) answers(answer func(*http.Request) *http.Response) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func lease(ttl time.Duration) wire.Lease {
	return wire.Lease{
		Kind: wire.KindLease, Resource: "r", LeaseID: fakeID, FencingToken: 34, FencingProof: fakeProof,
		TTLMS: ttl.Milliseconds(), ValidityMS: ttl.Milliseconds(),
	}
}

func response(r *http.Request, status int, body any) *http.Response {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: io.NopCloser(bytes.NewReader(text)), ContentLength: int64(len(text)), Request: r,
	}
}

// connectFake makes a client of a fake.
func connectFake(t *testing.T, f *fake) *client.Client {
	t.Helper()
	c, err := client.New([]string{"http://fake"}, client.WithHTTPClient(&http.Client{Transport: f}), client.WithBearerToken(fakeBearer))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// asType is errors.AsType, which the oldest Go of this module does not have.
func asType[E error](err error) (E, bool) {
	var target E
	ok := errors.As(err, &target)
	return target, ok
}
