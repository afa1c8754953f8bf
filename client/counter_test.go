package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// counter is a transport where the test itself responds to each request.
type counter struct{ arrived chan *customer }

// customer is a request that waits for its response.
type customer struct {
	*http.Request

	body   []byte
	answer chan *http.Response
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	came := &customer{Request: r, answer: make(chan *http.Response, 1)}
	if r.Body != nil {
		came.body, _ = io.ReadAll(r.Body)
		_ = r.Body.Close()
	}
	c.arrived <- came
	select {
	case resp := <-came.answer:
		if resp == nil {
			return nil, io.ErrUnexpectedEOF
		}
		return resp, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// next returns the next request. It fails the test if none comes.
func (c *counter) next(t *testing.T) *customer {
	t.Helper()
	select {
	case came := <-c.arrived:
		return came
	case <-time.After(time.Second):
		t.Fatal("no request comes")
		return nil
	}
}

// none fails the test if a request comes within a second.
func (c *counter) none(t *testing.T) {
	t.Helper()
	select {
	case came := <-c.arrived:
		t.Fatalf("%s comes", came)
	case <-time.After(time.Second):
	}
}

func (c *customer) String() string { return c.Method + " " + c.URL.Path }

// single is an operation as a single request would have it: the resource or the lease id, and the key.
type single struct{ what, of, key string }

// operations returns the operations of a request, which is a batch or a single operation.
func (c *customer) operations(t *testing.T) (all []single) {
	t.Helper()
	resource := func(body []byte) string {
		var acquire wire.AcquireRequest
		if err := json.Unmarshal(body, &acquire); err != nil {
			t.Fatal(err)
		}
		return acquire.Resource
	}
	switch c.String() {
	case "POST /locks":
		return []single{{"acquire", resource(c.body), c.Header.Get(wire.HeaderIdempotencyKey)}}
	case "POST /leases/current/extend":
		return []single{{"extend", c.Header.Get(wire.HeaderLease), ""}}
	case "DELETE /leases/current":
		return []single{{"release", c.Header.Get(wire.HeaderLease), ""}}
	case "POST /locks/batch":
	default:
		t.Fatalf("%s comes", c)
	}
	var batch wire.Batch
	if err := json.Unmarshal(c.body, &batch); err != nil {
		t.Fatal(err)
	}
	for _, o := range batch.Operations {
		of := o.LeaseID
		if o.Operation == wire.OperationAcquire {
			of = resource(o.Body)
		}
		all = append(all, single{o.Operation, of, o.IdempotencyKey})
	}
	return all
}

// grantOf is the response to an operation that succeeds. The lease of r has the id id-r.
func grantOf(o single, token int64) wire.BatchResult {
	if o.what == "release" {
		return wire.BatchResult{Status: http.StatusNoContent}
	}
	granted := lease(time.Minute)
	granted.Resource, granted.LeaseID, granted.FencingToken = o.of, "id-"+o.of, token
	text, err := json.Marshal(granted)
	if err != nil {
		panic(err)
	}
	return wire.BatchResult{Status: http.StatusCreated, Body: text}
}

func refusal(status int, kind string) wire.BatchResult {
	text, err := json.Marshal(wire.Problem{Type: wire.ProblemPrefix + kind, Title: kind, Status: status})
	if err != nil {
		panic(err)
	}
	return wire.BatchResult{Status: status, Body: text}
}

// grants responds with success, except for the resources and lease ids in except.
func (c *customer) grants(t *testing.T, except map[string]wire.BatchResult) {
	t.Helper()
	operations := c.operations(t)
	results := make([]wire.BatchResult, len(operations))
	for i, o := range operations {
		results[i] = grantOf(o, 7)
		if other, ok := except[o.of]; ok {
			results[i] = other
		}
	}
	if c.URL.Path == "/locks/batch" {
		c.answer <- response(c.Request, http.StatusOK, wire.BatchResults{Results: results})
		return
	}
	resp := response(c.Request, results[0].Status, nil)
	resp.Body = io.NopCloser(bytes.NewReader(results[0].Body))
	c.answer <- resp
}

// atCounter makes a client whose requests to its servers come to the counter.
func atCounter(t *testing.T, servers string, opts ...client.Option) (*client.Client, *counter) {
	t.Helper()
	at := &counter{make(chan *customer, 1000)}
	c, err := client.New(strings.Split(servers, ","), append(opts, client.WithHTTPClient(&http.Client{Transport: at}))...)
	if err != nil {
		t.Fatal(err)
	}
	return c, at
}

// taking is an acquire that is under way.
type taking struct {
	lease  *client.Lease
	err    error
	cancel context.CancelFunc
	done   chan struct{}
}

// take begins an acquire in the background, and returns when that is blocked.
func take(t *testing.T, c *client.Client, resource string, opts ...client.AcquireOption) *taking {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := &taking{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		defer cancel()
		a.lease, a.err = c.TryAcquire(ctx, resource, opts...)
	}()
	synctest.Wait()
	return a
}

// gets checks that the acquire gets its lease.
func (a *taking) gets(t *testing.T, resource string) {
	t.Helper()
	<-a.done
	if a.err != nil || a.lease.Resource() != resource {
		t.Errorf("%s: got %v, %v", resource, a.lease, a.err)
	}
}

func (a *taking) fails(t *testing.T, with error) {
	t.Helper()
	if <-a.done; !errors.Is(a.err, with) {
		t.Errorf("got %v, %v, want %v", a.lease, a.err, with)
	}
}

// busy brings two requests under way. free responds to them.
func busy(t *testing.T, c *client.Client, at *counter) (free func()) {
	t.Helper()
	first, second := take(t, c, "first"), take(t, c, "second")
	one, two := at.next(t), at.next(t)
	return func() {
		t.Helper()
		one.grants(t, nil)
		two.grants(t, nil)
		first.gets(t, "first")
		second.gets(t, "second")
		synctest.Wait()
	}
}

func wantPath(t *testing.T, c *customer, want string) {
	t.Helper()
	if c.String() != want {
		t.Fatalf("%s comes, want %s", c, want)
	}
}
