// Package sets is the lock service over one or several sets of nodes, each a quorum of its
// own. It finds the set of a resource, and changes the sets while leases are held.
package sets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/compose"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// Locker takes leases over quorums of nodes. It is safe for concurrent use, and
// any number of Lockers may serve the same nodes: they share nothing else.
//
// Resources spread over one or several independent sets of nodes, for more load
// than one set can serve. Each set is a cluster of its own, with its own quorum. A
// set that is down stops its own resources and no other. A resource belongs to the
// set that wins its rendezvous (Thaler and Ravishankar, 1998): a new set takes only
// the resources that it wins. Every server must have the same sets, and Config.Next
// while they are changed (ApplyNext). The rendezvous
// is a few lines on hash/fnv and no library: the place of a resource must never
// change with a library's version.
type Locker struct {
	*compose.Service
	router *router
	cfg    Config
}

var _ lockcore.Service = (*Locker)(nil)

// New makes a Locker over sets of 1, 3, 5 or 7 nodes each. It grants nothing until
// Run has seen a quorum of them admitted.
func New(cfg Config, sets ...[]node.Node) (*Locker, error) {
	cfg = cfg.WithDefaults()
	limits := cfg.Limits()
	r, err := newRouter(cfg, sets)
	if err = errors.Join(limits.Validate(), err); err != nil {
		return nil, fmt.Errorf("lock service: %w", err)
	}
	return &Locker{Service: compose.New(limits, r, cfg.NodeTimeout), router: r, cfg: cfg}, nil
}

// Run observes the nodes, quarantines and admits them, and serves the queue, until
// ctx ends. It then ends every wait, and gives the releases under way two seconds.
func (l *Locker) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, s := range l.router.sets {
		wg.Go(func() { s.Run(ctx) })
	}
	wg.Wait()
	return ctx.Err()
}

// StopWaiting ends every waiting Acquire with ErrStopping, and every later one that would have to wait. Call
// it before a server stops.
func (l *Locker) StopWaiting() {
	for _, s := range l.router.sets {
		s.StopWaiting()
	}
}

// Waiting counts the requests that wait in the queue at this server, by set.
func (l *Locker) Waiting() []redlock.Waiting {
	waiting := make([]redlock.Waiting, len(l.router.sets))
	for i, s := range l.router.sets {
		waiting[i] = s.Waiting()
	}
	return waiting
}

// Statuses returns the states of the nodes as Run last observed them, by set.
func (l *Locker) Statuses() []lockcore.ClusterStatus {
	statuses := make([]lockcore.ClusterStatus, len(l.router.sets))
	for i, s := range l.router.sets {
		statuses[i] = s.Members().Status()
		if statuses[i].Ready && l.router.isNew(s) {
			statuses[i].Ready, statuses[i].Reason = false, newSet
		}
	}
	return statuses
}

// Observe observes every node now, and returns the combined states.
func (l *Locker) Observe(ctx context.Context) lockcore.ClusterStatus {
	var wg sync.WaitGroup
	for _, s := range l.router.sets {
		wg.Go(func() { s.Members().Observe(ctx) })
	}
	wg.Wait()
	return l.Status()
}

// Status combines the sets' states. It is ready if every set that has resources is.
func (l *Locker) Status() lockcore.ClusterStatus {
	statuses := l.Statuses()
	joined := statuses[0]
	if len(statuses) > 1 {
		joined.Sets, joined.Nodes = statuses, slices.Clone(joined.Nodes)
	}
	joined.Ready = joined.Ready || !l.router.serves(l.router.sets[0])
	for i, status := range statuses[1:] {
		serves := l.router.serves(l.router.sets[i+1])
		if !status.Ready && serves {
			joined.Reason = strings.Trim(joined.Reason+fmt.Sprintf("; node set %d: %s", i+2, status.Reason), "; ")
		}
		joined.Ready = joined.Ready && (status.Ready || !serves)
		joined.Quorum += status.Quorum
		joined.Voting += status.Voting
		joined.Nodes = append(joined.Nodes, status.Nodes...)
	}
	return joined
}

// RotateSecret gives the nodes of every set a new secret, see redlock.Locker.RotateSecret.
func (l *Locker) RotateSecret(ctx context.Context, force bool) error {
	for _, s := range l.router.sets {
		if err := s.RotateSecret(ctx, force); err != nil {
			return err
		}
	}
	return nil
}
