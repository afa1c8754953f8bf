package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// counter is a transport on which the test answers each request.
type counter struct{ arrived chan *customer }

// customer is a request that waits for its answer.
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

// next is the next request; it fails the test if none comes.
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

// single is an operation as a request of its own would be: the resource, or the lease id, and the key.
type single struct{ what, of, key string }

// operations are those of the request, which is a batch or one operation.
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

// grantOf is the answer to an operation that succeeds: the lease of r has the id id-r.
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

// grants answers with success, or as except says for the resource or lease id.
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

// atCounter makes a client of servers whose requests come to the counter.
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

// take begins to acquire, and lets it come as far as it comes.
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

// gets fails the test unless the lease comes.
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

// busy has two requests under way, which are answered by free.
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

// A caller alone sends a request a call, and so do two.
func TestACallerAloneSendsSingleRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		for range 3 {
			a := take(t, c, "r")
			b := take(t, c, "s")
			for range 2 {
				came := at.next(t)
				wantPath(t, came, "POST /locks")
				came.grants(t, nil)
			}
			a.gets(t, "r")
			b.gets(t, "s")
			for _, call := range []func(context.Context) error{a.lease.Extend, a.lease.Release} {
				answered := make(chan error, 1)
				go func() { answered <- call(t.Context()) }()
				came := at.next(t)
				if strings.HasSuffix(came.URL.Path, "/batch") {
					t.Errorf("%s comes", came)
				}
				came.grants(t, nil)
				if err := <-answered; err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// What other callers ask for meanwhile is one request, in which each has its own outcome and key: one
// that is refused does not fail the others.
func TestCallsShareARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one", client.WithPatience(0))
		held := take(t, c, "held-before")
		at.next(t).grants(t, nil)
		held.gets(t, "held-before")
		free := busy(t, c, at)
		names := []string{"a", "taken", "forbidden", "down", "b"}
		var all []*taking
		for _, name := range names {
			all = append(all, take(t, c, name))
		}
		extended, released := make(chan error, 1), make(chan error, 1)
		go func() { extended <- held.lease.Extend(t.Context()) }()
		synctest.Wait()
		go func() { released <- c.Release(t.Context(), "id-other") }()
		synctest.Wait()
		free()
		batch := at.next(t)
		wantPath(t, batch, "POST /locks/batch")
		operations := batch.operations(t)
		keys := make(map[string]bool)
		if want := (single{"extend", "id-held-before", ""}); operations[0] != want {
			t.Errorf("operation %v, want %v first", operations[0], want)
		}
		for i, o := range operations[1 : len(names)+1] {
			if keys[o.key] = true; o.what != "acquire" || o.of != names[i] || o.key == "" {
				t.Errorf("operation %d is %v", i, o)
			}
		}
		if len(keys) != len(names) || len(operations) != len(names)+2 {
			t.Fatalf("operations %v", operations)
		}
		if want := (single{"release", "id-other", ""}); operations[len(names)+1] != want {
			t.Errorf("operations %v, want %v at the end", operations, want)
		}
		limited := refusal(http.StatusServiceUnavailable, "no-quorum")
		limited.RetryAfterS = 3
		batch.grants(t, map[string]wire.BatchResult{
			"taken": refusal(http.StatusConflict, "lock-held"), "forbidden": refusal(http.StatusForbidden, "forbidden"), "down": limited,
			"id-other": refusal(http.StatusNotFound, "lease-not-held"),
		})
		all[0].gets(t, "a")
		all[1].fails(t, client.ErrHeld)
		all[2].fails(t, client.ErrDenied)
		all[3].fails(t, client.ErrUnavailable)
		if problem, ok := asType[*client.ProblemError](all[3].err); !ok || problem.RetryAfter != 3*time.Second || problem.URL != "http://one" {
			t.Errorf("the problem is %+v", problem)
		}
		cancel := at.next(t) // the node that did not answer may have granted it
		wantPath(t, cancel, "POST /cancel")
		cancel.answer <- response(cancel.Request, http.StatusNoContent, nil)
		all[4].gets(t, "b")
		if err := <-extended; err != nil {
			t.Error(err)
		}
		if err := <-released; !errors.Is(err, client.ErrLeaseLost) {
			t.Errorf("release: %v", err)
		}
		at.none(t)
	})
}

// One caller's calls are sent in their order, each after the answer to the one before.
func TestTheOrderOfACallersCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one", client.WithBatchAfter(0))
		const callers, rounds = 20, 5
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for range rounds {
					l, err := c.TryAcquire(t.Context(), fmt.Sprint(i))
					if err == nil {
						err = errors.Join(l.Extend(t.Context()), l.Release(t.Context()))
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		next := make(map[string]int)
		for n := 0; n < callers*rounds*3; {
			batch := at.next(t)
			for _, o := range batch.operations(t) {
				of := strings.TrimPrefix(o.of, "id-")
				if want := []string{"acquire", "extend", "release"}[next[of]%3]; o.what != want {
					t.Fatalf("%v comes, want %s", o, want)
				}
				next[of]++
				n++
			}
			batch.grants(t, nil)
		}
		all.Wait()
	})
}

// No call waits longer than 5 ms for others: requests that nobody answers hold none up.
func TestNoCallWaitsLongForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		free := busy(t, c, at)
		begun := time.Now()
		a, b := take(t, c, "a"), take(t, c, "b")
		batch := at.next(t)
		if waited := time.Since(begun); waited > 5*time.Millisecond {
			t.Errorf("they waited for %s", waited)
		}
		wantPath(t, batch, "POST /locks/batch")
		batch.grants(t, nil)
		a.gets(t, "a")
		b.gets(t, "b")
		lone := take(t, c, "lone")
		came := at.next(t)
		wantPath(t, came, "POST /locks")
		came.grants(t, nil)
		lone.gets(t, "lone")
		free()
	})
}

// A wait is a request of its own, and so is what is too large for a batch, and a lease id that JSON would change.
func TestWhatIsSentAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one", client.WithBatchAfter(0))
		go func() { _, _ = c.Acquire(t.Context(), "r", client.Wait(time.Minute)) }()
		came := at.next(t)
		wantPath(t, came, "POST /locks")
		came.grants(t, nil)
		large := json.RawMessage(`"` + strings.Repeat("x", 4000) + `"`)
		a := take(t, c, "s", client.Metadata(large))
		came = at.next(t)
		wantPath(t, came, "POST /locks")
		came.grants(t, nil)
		a.gets(t, "s")
		go func() { _ = c.Release(t.Context(), "id-\xff") }()
		came = at.next(t)
		wantPath(t, came, "DELETE /leases/current")
		came.grants(t, nil)
	})
}

// A batch has 128 operations, and a body that servers take.
func TestLimitsOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		for _, metadata := range []string{`1`, `"` + strings.Repeat("x", 3000) + `"`} {
			free := busy(t, c, at)
			var all []*taking
			for i := range 300 {
				all = append(all, take(t, c, fmt.Sprint(i), client.Metadata(json.RawMessage(metadata))))
			}
			free()
			for n := 0; n < len(all); {
				batch := at.next(t)
				operations := len(batch.operations(t))
				if n += operations; operations > 128 || len(batch.body) > 64<<10 {
					t.Errorf("a batch has %d operations in %d bytes", operations, len(batch.body))
				}
				batch.grants(t, nil)
			}
			for i, a := range all {
				a.gets(t, fmt.Sprint(i))
			}
		}
	})
}

// Who gives up leaves the batch to the others; the lease that it was granted is released.
func TestACancelledCallInABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		free := busy(t, c, at)
		leaves, stays := take(t, c, "leaves"), take(t, c, "stays")
		free()
		batch := at.next(t)
		wantPath(t, batch, "POST /locks/batch")
		leaves.cancel()
		leaves.fails(t, context.Canceled)
		cancel := at.next(t)
		wantPath(t, cancel, "POST /cancel")
		cancel.answer <- response(cancel.Request, http.StatusNoContent, nil)
		if err := batch.Context().Err(); err != nil {
			t.Errorf("the batch: %v", err)
		}
		batch.grants(t, nil)
		stays.gets(t, "stays")
		release := at.next(t)
		if got := release.operations(t); !slices.Equal(got, []single{{"release", "id-leaves", ""}}) {
			t.Errorf("%v comes", got)
		}
		release.grants(t, nil)
		at.none(t)
	})
}

// Whose batch gets no answer, after it was given up, is ended again: the batch may have taken effect in between.
func TestACancelledCallInABatchWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one", client.WithPatience(0))
		free := busy(t, c, at)
		leaves, stays := take(t, c, "leaves"), take(t, c, "stays")
		free()
		batch := at.next(t)
		key := batch.operations(t)[0].key
		leaves.cancel()
		leaves.fails(t, context.Canceled)
		ended := func() {
			t.Helper()
			cancel := at.next(t)
			wantPath(t, cancel, "POST /cancel")
			if got := cancel.Header.Get(wire.HeaderIdempotencyKey); got == key {
				key = ""
			}
			cancel.answer <- response(cancel.Request, http.StatusNoContent, nil)
		}
		ended()
		if key != "" {
			t.Error("another call was ended")
		}
		key = batch.operations(t)[0].key
		batch.answer <- nil
		stays.fails(t, client.ErrUnavailable)
		ended()
		ended() // that of stays
		if key != "" {
			t.Error("it was not ended again")
		}
		at.none(t)
	})
}

// When all have left, nobody reads the answer: the request is cancelled, as a single one is.
func TestACancelledBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		free := busy(t, c, at)
		a, b := take(t, c, "a"), take(t, c, "b")
		free()
		batch := at.next(t)
		a.cancel()
		b.cancel()
		a.fails(t, context.Canceled)
		b.fails(t, context.Canceled)
		synctest.Wait()
		if batch.Context().Err() == nil {
			t.Error("the batch was not cancelled")
		}
		for range 3 { // the first is ended again, since its batch may have taken effect in between
			cancel := at.next(t)
			wantPath(t, cancel, "POST /cancel")
			cancel.answer <- response(cancel.Request, http.StatusNoContent, nil)
		}
		at.none(t)
	})
}

// A call that was cancelled before it was sent sends nothing.
func TestACallThatIsCancelledBeforeItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		free := busy(t, c, at)
		a, b, d := take(t, c, "a"), take(t, c, "b"), take(t, c, "d")
		b.cancel()
		b.fails(t, context.Canceled)
		free()
		batch := at.next(t)
		if got := batch.operations(t); len(got) != 2 || got[0].of != "a" || got[1].of != "d" {
			t.Errorf("%v comes", got)
		}
		batch.grants(t, nil)
		a.gets(t, "a")
		d.gets(t, "d")
		at.none(t)
	})
}

// A try in a batch whose answer is overdue is given up, and the next server asked with the same
// key. What the batch is granted after that is released, unless it is the same lease.
func TestAnOverdueBatch(t *testing.T) {
	for name, late := range map[string]int64{"another lease": 8, "the same lease": 7} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, at := atCounter(t, "http://one,http://two", client.WithBatchAfter(0), client.WithTimeout(20*time.Second))
				release := func(id string) (answered chan error) {
					answered = make(chan error, 1)
					go func() { answered <- c.Release(t.Context(), id) }()
					synctest.Wait()
					return answered
				}
				slow := release("slow") // answers take 200 ms, so one is overdue after 800 ms; an acquire has 500 ms for the first server
				came := at.next(t)
				time.Sleep(200 * time.Millisecond)
				came.grants(t, nil)
				if err := <-slow; err != nil {
					t.Fatal(err)
				}
				a, stays := take(t, c, "a"), release("x")
				batch := at.next(t)
				again := at.next(t)
				if again.URL.Host != "two" || !slices.Equal(again.operations(t), batch.operations(t)[:1]) {
					t.Errorf("%v comes to %s, after %v", again.operations(t), again.URL, batch.operations(t))
				}
				again.grants(t, nil)
				a.gets(t, "a")
				if err := batch.Context().Err(); err != nil {
					t.Errorf("the batch: %v", err)
				}
				batch.grants(t, map[string]wire.BatchResult{"a": grantOf(single{"acquire", "a", ""}, late)})
				if err := <-stays; err != nil {
					t.Error(err)
				}
				if late == int64(a.lease.Token()) {
					at.none(t)
					return
				}
				end := at.next(t)
				if got := end.operations(t); !slices.Equal(got, []single{{"release", "id-a", ""}}) {
					t.Errorf("%v comes", got)
				}
				end.grants(t, nil)
			})
		})
	}
}

// A server, or a proxy, that takes no batches is sent single requests for a minute.
func TestAServerWithoutBatches(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusForbidden, http.StatusRequestEntityTooLarge, http.StatusNotImplemented} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, at := atCounter(t, "http://one")
				crowd := func() {
					t.Helper()
					free := busy(t, c, at)
					var all []*taking
					for i := range 3 {
						all = append(all, take(t, c, fmt.Sprint(i)))
					}
					free()
					for i := range all {
						came := at.next(t)
						if i == 0 && came.String() == "POST /locks/batch" {
							came.answer <- response(came.Request, status, "a page")
							came = at.next(t)
						}
						wantPath(t, came, "POST /locks")
						came.grants(t, nil)
					}
					for i, a := range all {
						a.gets(t, fmt.Sprint(i))
					}
				}
				crowd()
				begun := time.Now()
				for time.Since(begun) < 59*time.Second {
					free := busy(t, c, at)
					for i := range 3 {
						a := take(t, c, fmt.Sprint(i))
						came := at.next(t)
						wantPath(t, came, "POST /locks")
						came.grants(t, nil)
						a.gets(t, fmt.Sprint(i))
					}
					free()
					time.Sleep(10 * time.Second)
				}
				free := busy(t, c, at)
				a, b := take(t, c, "a"), take(t, c, "b")
				free()
				batch := at.next(t)
				wantPath(t, batch, "POST /locks/batch")
				batch.grants(t, nil)
				a.gets(t, "a")
				b.gets(t, "b")
			})
		})
	}
}

// What is answered to a batch as a whole is answered to each of its calls.
func TestAnswersToAWholeBatch(t *testing.T) {
	problem := func(status int, kind string) *http.Response {
		return response(nil, status, wire.Problem{Type: wire.ProblemPrefix + kind, Title: kind, Status: status})
	}
	for name, c := range map[string]struct {
		answer *http.Response // nil for a connection that breaks
		want   error
	}{
		"401":                 {problem(http.StatusUnauthorized, "unauthorized"), client.ErrDenied},
		"429":                 {problem(http.StatusTooManyRequests, "too-many-requests"), client.ErrUnavailable},
		"503":                 {problem(http.StatusServiceUnavailable, "server-stopping"), client.ErrUnavailable},
		"a proxy's 502":       {response(nil, http.StatusBadGateway, "a page"), client.ErrUnavailable},
		"no answer":           {nil, client.ErrUnavailable},
		"too few results":     {response(nil, http.StatusOK, wire.BatchResults{Results: []wire.BatchResult{{Status: http.StatusNoContent}}}), nil},
		"not an answer of it": {response(nil, http.StatusOK, lease(time.Minute)), nil},
		"a redirect":          {response(nil, http.StatusFound, "a page"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl, at := atCounter(t, "http://one", client.WithPatience(0))
				free := busy(t, cl, at)
				a, b := take(t, cl, "a"), take(t, cl, "b")
				free()
				batch := at.next(t)
				wantPath(t, batch, "POST /locks/batch")
				if c.answer != nil {
					c.answer.Request = batch.Request
				}
				batch.answer <- c.answer
				for _, of := range []*taking{a, b} {
					<-of.done
					if of.err == nil || c.want != nil && !errors.Is(of.err, c.want) {
						t.Errorf("got %v, %v, want %v", of.lease, of.err, c.want)
					}
				}
				synctest.Wait()
				for len(at.arrived) > 0 {
					cancel := at.next(t)
					wantPath(t, cancel, "POST /cancel")
					cancel.answer <- response(cancel.Request, http.StatusNoContent, nil)
				}
			})
		})
	}
}

// A call has the credential that it asked for with its own context, so calls with different ones are in different batches.
func TestCredentialsInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type user struct{}
		c, at := atCounter(t, "http://one", client.WithBearerTokenFunc(func(ctx context.Context) (string, error) {
			name, _ := ctx.Value(user{}).(string)
			if name == "fails" {
				return "", client.ErrInvalid
			}
			return name, nil
		}))
		free := busy(t, c, at)
		got := make(map[string]string)
		var all sync.WaitGroup
		for i := range 12 {
			name := []string{"ann", "bob", "fails"}[i%3]
			all.Go(func() {
				_, err := c.TryAcquire(context.WithValue(t.Context(), user{}, name), fmt.Sprint(name, i))
				if (err != nil) != (name == "fails") {
					t.Errorf("%s: %v", name, err)
				}
			})
			synctest.Wait()
		}
		free()
		for range 2 {
			batch := at.next(t)
			wantPath(t, batch, "POST /locks/batch")
			for _, o := range batch.operations(t) {
				got[o.of] = batch.Header.Get("Authorization")
			}
			batch.grants(t, nil)
		}
		all.Wait()
		if len(got) != 8 {
			t.Errorf("came: %v", got)
		}
		for resource, credential := range got {
			if name := strings.TrimPrefix(credential, "Bearer "); !strings.HasPrefix(resource, name) {
				t.Errorf("%s came with %q", resource, credential)
			}
		}
	})
}

// Close ends the acquires of a batch, and waits until what it granted them is released; the others' calls are answered. Nothing is left
// running: the bubble would not end.
func TestCloseWithBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		first, second := take(t, c, "first"), take(t, c, "second")
		one, two := at.next(t), at.next(t)
		a := take(t, c, "a")
		released := make(chan error, 1)
		go func() { released <- c.Release(t.Context(), "x") }()
		synctest.Wait()
		one.grants(t, nil)
		first.gets(t, "first")
		batch := at.next(t)
		wantPath(t, batch, "POST /locks/batch")
		closed := make(chan error, 1)
		go func() { closed <- c.Close(t.Context()) }()
		for _, of := range []*taking{a, second} {
			of.fails(t, client.ErrClosed)
		}
		if two.Context().Err() == nil {
			t.Error("a single request was not cancelled")
		}
		for range 2 {
			cancel := at.next(t)
			wantPath(t, cancel, "POST /cancel")
			cancel.answer <- response(cancel.Request, http.StatusNoContent, nil)
		}
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("closed while a grant may come: %v", err)
		default:
		}
		batch.grants(t, nil)
		if err := <-released; err != nil {
			t.Error(err)
		}
		end := at.next(t)
		if got := end.operations(t); !slices.Equal(got, []single{{"release", "id-a", ""}}) {
			t.Errorf("%v comes", got)
		}
		end.grants(t, nil)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		at.none(t)
	})
}

// Leases that are kept alive are extended together, and each in time.
func TestExtendsShareARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leases, ttl = 100, time.Minute
		c, at := atCounter(t, "http://one")
		var stops []func()
		for i := range leases {
			a := take(t, c, fmt.Sprint(i))
			at.next(t).grants(t, nil)
			a.gets(t, fmt.Sprint(i))
			_, stop := a.lease.KeepAlive(t.Context())
			stops = append(stops, stop)
			time.Sleep(ttl / 3 / leases) // so their extends are due at any time
		}
		begun, requests, extends := time.Now(), 0, 0
		last := make(map[string]time.Time)
		for time.Since(begun) < 2*ttl {
			var came *customer
			select {
			case came = <-at.arrived:
			case <-time.After(ttl / 3):
				t.Fatal("nothing is extended")
			}
			requests++
			for _, o := range came.operations(t) {
				extends++
				if since := last[o.of]; !since.IsZero() && time.Since(since) > ttl/3+10*time.Millisecond {
					t.Errorf("%s was extended after %s", o.of, time.Since(since))
				}
				last[o.of] = time.Now()
			}
			came.grants(t, nil)
			synctest.Wait()
		}
		if len(last) != leases || requests > extends/3 || extends > 8*leases {
			t.Errorf("%d extends of %d leases in %d requests", extends, len(last), requests)
		}
		for _, stop := range stops {
			stop()
		}
	})
}

// A lease that is kept alive alone is extended at a third of its TTL.
func TestALoneLeaseIsExtendedAtAThird(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		a := take(t, c, "r")
		at.next(t).grants(t, nil)
		a.gets(t, "r")
		_, stop := a.lease.KeepAlive(t.Context())
		defer stop()
		for range 4 {
			begun := time.Now()
			came := <-at.arrived
			if took := time.Since(begun); took != 20*time.Second {
				t.Errorf("extended after %s", took)
			}
			came.grants(t, nil)
			synctest.Wait()
		}
	})
}

// A lease that is old when its keep-alive begins is extended at once.
func TestAnOldLeaseIsExtendedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		a := take(t, c, "r")
		at.next(t).grants(t, nil)
		a.gets(t, "r")
		time.Sleep(30 * time.Second) // of a minute
		begun := time.Now()
		_, stop := a.lease.KeepAlive(t.Context())
		defer stop()
		came := <-at.arrived
		if took := time.Since(begun); took != 0 {
			t.Errorf("extended after %s", took)
		}
		came.grants(t, nil)
		synctest.Wait()
	})
}

// A 404 to a release is success where an earlier try may have released the lease: one that was
// answered 500 or 503, and not one that was refused before anything was done.
func TestAReleaseThatMayHaveBeenDone(t *testing.T) {
	for status, lost := range map[int]bool{
		http.StatusInternalServerError: false, http.StatusServiceUnavailable: false, http.StatusTooManyRequests: true,
	} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, at := atCounter(t, "http://one")
				a := take(t, c, "r")
				at.next(t).grants(t, nil)
				a.gets(t, "r")
				released := make(chan error, 1)
				go func() { released <- a.lease.Release(t.Context()) }()
				for _, answer := range []wire.BatchResult{refusal(status, "a kind"), refusal(http.StatusNotFound, "lease-not-held")} {
					came := <-at.arrived
					came.grants(t, map[string]wire.BatchResult{came.operations(t)[0].of: answer})
				}
				if err := <-released; errors.Is(err, client.ErrLeaseLost) != lost || (err != nil) != lost {
					t.Errorf("%v, want a lost lease: %t", err, lost)
				}
			})
		})
	}
}
