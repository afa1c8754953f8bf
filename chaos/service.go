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
	// probeEvery is the interval of the probes of each server.
	probeEvery = 50 * time.Millisecond
	// noService is the shortest time without any service that counts as a gap.
	noService = 500 * time.Millisecond
)

// probe records when the service was available. One goroutine per server takes and releases a lock that no
// other client uses.
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

// ruler measures how busy the machine is. It queries a Redis without faults, behind a proxy like the nodes'
// proxies, as often as the probes query the servers. If that Redis responds later than half of the time that a
// server gives a node, the machine was too busy to judge the service.
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

// lates returns the moments at which the machine was too busy.
func (r *ruler) lates() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.late)
}

// lastLate returns when the machine was last too busy.
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

// gaps adds up the times without service until end. It returns the sum, the longest gap, and the longest gap
// in which the machine was not too busy.
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
	earlier := func(t time.Duration) bool { return t < all[0].from } // those of earlier rounds
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

// since returns how long after a moment the service was available again; ok is false if it never was.
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
