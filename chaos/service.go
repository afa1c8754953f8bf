package chaos

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

const (
	// probeEvery is how often each server is asked whether there is service.
	probeEvery = 50 * time.Millisecond
	// noService is how long nobody may be served before it counts.
	noService = 500 * time.Millisecond
)

// probe notes when the service served: one goroutine a server takes and
// gives back a lock that nobody else wants.
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
	p.stand.send(context.WithoutCancel(ctx), server, request{method: http.MethodDelete, path: "/leases/" + o.Lease})
}

// gap is a time without service.
type gap struct{ from, to time.Duration }

func (g gap) length() time.Duration { return g.to - g.from }

// gaps sums the times without service up to the end, and returns the longest.
func (p *probe) gaps(end time.Duration) (sum time.Duration, longest gap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	times := append(slices.Sorted(slices.Values(p.served)), end)
	for i, t := range times[1:] {
		g := gap{from: times[i], to: t}
		if g.length() > noService {
			sum += g.length()
		}
		if g.length() > longest.length() {
			longest = g
		}
	}
	return sum, longest
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
