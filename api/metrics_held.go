package api

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/lockcore"
)

// Ends tells how a lease ended that nobody here saw the end of.
type Ends interface {
	// EndOf looks at the nodes. Errors: lockcore.ErrNotHeld,
	// *lockcore.QuorumError (the nodes cannot tell now), ctx.Err().
	EndOf(ctx context.Context, leaseID string) (lockcore.End, error)
}

// ledger knows the leases that were granted or extended through this server and
// have not been given back through it. A lease whose TTL is over was lost by its
// holder, or went on by way of another server: the nodes are asked which.
type ledger struct {
	m    *lockMetrics
	ends Ends

	mu     sync.Mutex
	leases map[string]entry // by lease id
	first  time.Time        // no lease ends before; zero when there is none
}

type entry struct {
	granted time.Time // or first seen
	over    time.Time // when its TTL has passed, unless it is extended
	group   int       // of lockMetrics.groups
	owner   string    // "" without access control
}

func newLedger(m *lockMetrics, ends Ends, registry prometheus.Registerer) *ledger {
	l := &ledger{m: m, ends: ends, leases: make(map[string]entry)}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fencelock_leases_held",
		Help: "Leases granted or last extended through this server that are neither released nor over.",
	}, func() float64 { return float64(l.size()) }))
	return l
}

func (l *ledger) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.leases)
}

// granted notes a grant. One that an idempotency key found is as old as it was.
func (l *ledger) granted(lease *lockcore.Lease, group int, owner string) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known := l.leases[lease.ID]
	if !known {
		e = entry{granted: now, group: group, owner: owner}
	}
	l.note(lease, e, now)
}

// extended notes an extension, perhaps of a lease that another server granted.
func (l *ledger) extended(lease *lockcore.Lease, owner string) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known := l.leases[lease.ID]
	if !known {
		e = entry{granted: lease.Acquired, group: l.m.group(firstResource(lease)), owner: owner}
	}
	l.note(lease, e, now)
}

func firstResource(lease *lockcore.Lease) string {
	if len(lease.Parts) > 0 {
		return lease.Parts[0].Resource
	}
	return lease.Resource
}

// note keeps the entry; l.mu is held. The nodes may have counted the TTL from a
// moment before now, never after.
func (l *ledger) note(lease *lockcore.Lease, e entry, now time.Time) {
	e.over = now.Add(lease.TTL)
	l.leases[lease.ID] = e
	if l.first.IsZero() || e.over.Before(l.first) {
		l.first = e.over
	}
}

// forget takes a lease out that has ended, and tells how long it was held.
func (l *ledger) forget(leaseID string) (group int, held time.Duration, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known := l.leases[leaseID]
	delete(l.leases, leaseID)
	return e.group, max(0, time.Since(e.granted)), known
}

// The pace of looking for leases that are over, and how many of them the nodes
// are asked about at most each time; the others count as unseen.
const (
	ledgerPause = 250 * time.Millisecond
	ledgerSlack = 100 * time.Millisecond // for a release that is on its way
	ledgerAsks  = 250
)

// run looks until ctx ends.
func (l *ledger) run(ctx context.Context) {
	tick := time.NewTicker(ledgerPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			l.settle(ctx, l.takeOver(now.Add(-ledgerSlack)))
		}
	}
}

// overLease is a lease that is over.
type overLease struct{ id, owner string }

// takeOver takes out the leases that were over before the instant.
func (l *ledger) takeOver(before time.Time) (over []overLease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first.IsZero() || !l.first.Before(before) {
		return nil
	}
	l.first = time.Time{}
	for id, e := range l.leases {
		switch {
		case e.over.Before(before):
			over = append(over, overLease{id: id, owner: e.owner})
			delete(l.leases, id)
		case l.first.IsZero() || e.over.Before(l.first):
			l.first = e.over
		}
	}
	return over
}

// settle finds out what became of leases that are over.
func (l *ledger) settle(ctx context.Context, over []overLease) {
	for i, lease := range over {
		if i >= ledgerAsks || l.ends == nil || ctx.Err() != nil {
			l.m.unseen.Add(float64(len(over) - i))
			return
		}
		switch end, err := l.ends.EndOf(lockcore.WithOwner(ctx, lease.owner), lease.id); {
		case err != nil || end == lockcore.EndUnknown:
			l.m.unseen.Inc()
		case end == lockcore.EndExpired:
			l.m.countLost(lostByExpiry)
		}
	}
}

// RunMetrics keeps the metrics of leases that end by themselves, until ctx ends.
func (s *Server) RunMetrics(ctx context.Context) { s.ledger.run(ctx) }
