package chaos

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

const (
	// probeEvery is how often each server is asked whether there is service.
	probeEvery = 50 * time.Millisecond
	// noService is how long no client may be served before it counts.
	noService = 500 * time.Millisecond
)

// probe notes when the service served: one goroutine a server takes and
// releases a lock that no other client wants.
type probe struct {
	stand   *Stand
	running sync.WaitGroup
	mu      sync.Mutex
	served  []time.Duration
}

func (s *Stand) startProbe(ctx context.Context) *probe {
	p := &probe{stand: s, served: []time.Duration{s.now()}}
	for i := range s.servers {
		p.running.Go(func() { p.run(ctx, i) })
	}
	return p
}

func (p *probe) run(ctx context.Context, server int) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		p.try(ctx, server, fmt.Sprintf("probe/%d/%d", server, n%20))
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (p *probe) try(ctx context.Context, server int, resource string) {
	o := &op{Server: server, Resource: resource}
	body := marshal(wire.AcquireRequest{Resource: resource, TTLMS: milliseconds(time.Second)})
	a := p.stand.send(ctx, server, request{method: http.MethodPost, path: "/locks", body: body})
	o.readLease(&a)
	if o.Lease == "" {
		return
	}
	p.mu.Lock()
	p.served = append(p.served, p.stand.now())
	p.mu.Unlock()
	p.stand.send(context.WithoutCancel(ctx), server, request{method: http.MethodDelete, path: "/leases/current", header: leaseHeader(o.Lease)})
}

// ruler measures the machine beside the service: a Redis that no fault is about,
// behind a proxy as the nodes are, is asked as often as the servers. Where it is
// late for half of the time that a server gives a node, nothing shows what the
// service would have done on a machine that had time for it.
type ruler struct {
	stand  *Stand
	client *redis.Client
	mu     sync.Mutex
	late   []time.Duration
}

func startRuler(s *Stand) *ruler {
	line := testenv.StartProxy(s.t, testenv.StartRedis(s.t).Addr())
	r := &ruler{stand: s, client: redis.NewClient(&redis.Options{Addr: line.Addr(), MaxRetries: -1})}
	s.t.Cleanup(func() { _ = r.client.Close() })
	return r
}

// run measures until ctx ends.
func (r *ruler) run(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for last := r.stand.now(); ctx.Err() == nil; {
		asked := r.stand.now()
		err := r.client.Ping(context.WithoutCancel(ctx)).Err()
		now, limit := r.stand.now(), r.stand.config.NodeTimeout/2
		if err != nil || now-asked > limit || asked-last > probeEvery+limit {
			r.mu.Lock()
			r.late = append(r.late, last, now)
			r.mu.Unlock()
		}
		last = now
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// lates are the moments at which the machine had no time.
func (r *ruler) lates() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.late)
}

// lastLate is when the machine last had no time.
func (r *ruler) lastLate() (last time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.late) > 0 {
		last = r.late[len(r.late)-1]
	}
	return last
}

// gap is a time without service.
type gap struct{ from, to time.Duration }

func (g gap) length() time.Duration { return g.to - g.from }

// gaps sums the times without service up to the end, and returns the longest,
// and the longest in which the machine had time.
func (p *probe) gaps(end time.Duration, late []time.Duration) (sum time.Duration, longest, counts gap) {
	p.mu.Lock()
	served := slices.Clone(p.served)
	p.mu.Unlock()
	all := gapsBetween(append(served, end))
	for _, g := range all {
		if g.length() > noService {
			sum += g.length()
		}
	}
	earlier := func(t time.Duration) bool { return t < all[0].from } // of rounds before this one
	late = slices.DeleteFunc(slices.Clone(late), earlier)
	return sum, longestOf(all), longestOf(gapsBetween(slices.Concat(served, late, []time.Duration{end})))
}

func gapsBetween(times []time.Duration) (gaps []gap) {
	times = slices.Sorted(slices.Values(times))
	for i, t := range times[1:] {
		gaps = append(gaps, gap{from: times[i], to: t})
	}
	return gaps
}

func longestOf(gaps []gap) gap {
	return slices.MaxFunc(gaps, func(a, b gap) int { return cmp.Compare(a.length(), b.length()) })
}

// since is how long after a moment service was there, false if it never was.
func (p *probe) since(moment time.Duration) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first, found := time.Duration(0), false
	for _, t := range p.served {
		if t >= moment && (!found || t < first) {
			first, found = t, true
		}
	}
	return first - moment, found
}
