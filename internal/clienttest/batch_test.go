package clienttest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/internal/testenv"
)

// Many callers of one client share requests at a real server, where every tenth batch breaks before or
// after it has taken effect, and where callers give up at any time. They continue until enough of each has happened, however slow
// the machine is. Two never have a resource at once, tokens rise, and at the end
// every resource is free long before a TTL is over: nothing that a batch was granted is left.
func TestCrowdOfCallers(t *testing.T) {
	const callers, resources = 16, 24
	s := serve(t, newLocker(t))
	var batches atomic.Int64
	s.fault.Store(new(fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.HasSuffix(r.URL.Path, "/batch") {
			next.ServeHTTP(w, r)
			return
		}
		switch batches.Add(1) % 10 {
		case 3: // before
			panic(http.ErrAbortHandler)
		case 7: // after
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})))
	c, err := client.New([]string{s.URL})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var held [resources]atomic.Int32
	var newest [resources]atomic.Int64
	var got, gaveUp atomic.Int64
	enough := func() bool { return batches.Load() >= 100 && got.Load() >= 200 && gaveUp.Load() >= 50 }
	tooLong := time.Now().Add(2 * time.Minute)
	for caller := range callers {
		random := rand.New(rand.NewPCG(7, uint64(caller)))
		all.Go(func() {
			for !enough() && time.Now().Before(tooLong) {
				n := random.IntN(resources)
				ctx, cancel := context.WithCancel(t.Context())
				if random.IntN(3) == 0 {
					time.AfterFunc(time.Duration(random.IntN(int(8*time.Millisecond))), cancel)
				}
				lease, err := c.TryAcquire(ctx, fmt.Sprint("r", n), client.TTL(maxTTL))
				cancel()
				switch {
				case err == nil:
				case errors.Is(err, context.Canceled):
					gaveUp.Add(1)
					continue
				case errors.Is(err, client.ErrHeld), errors.Is(err, client.ErrUnavailable): // it tries for a second
					continue
				default:
					t.Error(err)
					continue
				}
				got.Add(1)
				if held[n].Add(1) != 1 {
					t.Errorf("r%d is held twice", n)
				}
				if token := int64(lease.Token()); newest[n].Swap(token) >= token {
					t.Errorf("r%d: token %d came again", n, token)
				}
				if err := lease.Extend(t.Context()); err != nil {
					t.Error(err)
				}
				held[n].Add(-1)
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if !enough() {
		t.Errorf("%d batches, %d leases, %d gave up: too few to tell", batches.Load(), got.Load(), gaveUp.Load())
	}
	testenv.Eventually(t, maxTTL/2, func() error {
		for lock, err := range c.Locks(t.Context(), "r") {
			if err != nil || lock.Held {
				return fmt.Errorf("%+v is left: %w", lock, err)
			}
		}
		return nil
	})
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
