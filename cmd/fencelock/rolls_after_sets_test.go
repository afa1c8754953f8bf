package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

// repeaters wait for a few locks under idempotency keys. A caller whose request ends without a lease repeats it at
// the next server within 50 ms. So no queue stands still for lack of a waiter.
type repeaters struct {
	mu    sync.Mutex
	last  map[string]time.Time // grants
	stood map[string]time.Duration
}

const repeatAfter = 20 * time.Millisecond

func (r *repeaters) granted(resource string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if last, ok := r.last[resource]; ok {
		r.stood[resource] = max(r.stood[resource], now.Sub(last))
	}
	r.last[resource] = now
}

// longest returns the longest time without a grant in any queue since the last call.
func (r *repeaters) longest() (stood time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for resource, d := range r.stood {
		stood = max(stood, d, time.Since(r.last[resource]))
	}
	clear(r.stood)
	return stood
}

func (r *repeaters) wait(ctx context.Context, urls []string, resource, name string) {
	const hold = 10 * time.Millisecond
	send := func(v any, at int, method, path, body, header string) int {
		p := &process{url: urls[at%len(urls)], client: http.DefaultClient}
		resp, err := p.try(context.WithoutCancel(ctx), v, method, path, body, header)
		if err != nil {
			return 0
		}
		return resp.StatusCode
	}
	body := fmt.Sprintf(`{"resource":%q,"ttl_ms":9000,"wait_ms":20000}`, resource)
	for round, at := 0, 0; ctx.Err() == nil; round++ {
		key := fmt.Sprintf("Idempotency-Key: %s-%d", name, round)
		var lease wire.Lease
		for send(&lease, at, "POST", "/locks", body, key) != http.StatusCreated {
			at++
			<-time.After(repeatAfter)
		}
		r.granted(resource)
		<-time.After(hold)
		for ; send(nil, at, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID) != http.StatusNoContent; at++ {
			<-time.After(repeatAfter)
		}
	}
}

// After a change of node sets, a rolling restart stops no queue for longer than before the change, because every
// waiter repeats its request at once.
func TestRollsAfterAChangeOfSets(t *testing.T) {
	testenv.Long(t, "a queue that stands after a change of sets although somebody waits")
	t.Parallel()
	nodes := testenv.StartRedisN(t, 9)
	two := [][]*testenv.Redis{nodes[:3], nodes[3:6]}
	three := [][]*testenv.Redis{nodes[:3], nodes[3:6], nodes[6:]}
	f := newFleet(t, 3, changeOf(two, nil)...)
	urls := strings.Split(f.direct(), ",")
	ctx, stop := context.WithCancel(t.Context())
	r := &repeaters{last: map[string]time.Time{}, stood: map[string]time.Duration{}}
	var ended sync.WaitGroup
	const queues, each = 4, 4
	for i := range queues * each {
		ended.Go(func() { r.wait(ctx, urls, fmt.Sprint("queue/", i%queues), fmt.Sprint("waiter-", i)) })
	}
	defer func() { stop(); ended.Wait() }()
	roll := func() time.Duration {
		r.longest()
		for i := range f.servers {
			f.restart(i)
			<-time.After(3 * time.Second / 2) // as in the operator's loop
		}
		return r.longest()
	}
	before := roll()
	changing := changeOf(two, three)
	f.restartWith(append(slices.Clone(changing), "FENCELOCK_BOOTSTRAP=new")) // the third set is new
	runSets(t, changing, printed(t, changing, "apply")...).wants(t, "apply", 0, "the next node sets are in force", "")
	f.env = changeOf(three, nil)
	for range 2 {
		after := roll()
		t.Logf("the longest that a queue stood: %s before the change, %s after it, on a machine late by %s", before, after, f.machine.Longest())
		if bound := max(waitqueue.LingerTime*3/4, 3*before) + 3*f.machine.Longest(); after > bound {
			t.Errorf("a queue stood for %s; %s before the change of sets", after, before)
		}
	}
}
