package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// One caller alone sends one request for each call, and so do two callers.
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

// The calls of further callers are sent in one request. Each call in it has its own outcome and key: one that is
// refused does not make the others fail.
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

// The calls of one caller are sent in their order, each after the response to the one before.
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

// No call waits longer than 5 ms for others: it does not wait for requests that get no response.
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

// Three kinds of calls are sent as single requests: a wait in the queue, a call that is too large for a batch, and a
// call with a lease id that JSON would change.
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

// A batch has at most 128 operations, and a body that servers accept.
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

// If a server, or a proxy, does not accept batches, the client sends it single requests for a minute.
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

// A response to a batch as a whole is the response to each of its calls.
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

// A call is sent with the credential that its own context gave, so calls with different credentials are in different
// batches.
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

// Close ends the acquires of a batch, and waits until the leases that they were granted are released. Other calls get
// their responses. No goroutine is left, else the bubble would not end.
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

// Leases that are kept alive are extended together, each in time.
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

// A single lease that is kept alive is extended when a third of its TTL has passed.
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

// A 404 to a release is success if an earlier try may have released the lease: after a 500 or 503, but not after a
// try that was refused before it could take effect.
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
