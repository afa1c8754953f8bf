package lockcore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"time"
)

// Sets spreads resources over several independent node sets, to scale out
// beyond what one set of nodes can serve. Each set is a cluster of its own,
// with its own quorum: a set that is down stops its share of the resources and
// no other. It has the methods of a Locker.
//
// A resource belongs to the set that wins its rendezvous (Thaler and
// Ravishankar, 1998): adding a set moves only the resources that the new one
// wins. Every server must be configured with the same sets; changing them
// while leases are held moves resources away from their locks (the guard still
// refuses stale tokens, since floors follow the clock), so do it at rest.
// The rendezvous is a few lines on hash/fnv and no library: where a resource
// belongs must never change with a library's version.
type Sets struct{ lockers []*Locker }

// NewSets makes a Locker for each set of nodes.
func NewSets(sets [][]Node, cfg Config) (*Sets, error) {
	if len(sets) == 0 {
		return nil, errors.New("lockcore: no set of nodes")
	}
	s := &Sets{}
	seen := make(map[string]bool)
	for _, nodes := range sets {
		for _, n := range nodes {
			if seen[n.Name()] {
				return nil, fmt.Errorf("lockcore: node %s is listed twice: each node must be a server of its own", n.Name())
			}
			seen[n.Name()] = true
		}
		l, err := New(nodes, cfg)
		if err != nil {
			return nil, err
		}
		l.route, l.sets = s.of, s.all
		s.lockers = append(s.lockers, l)
	}
	return s, nil
}

// of is the Locker of the resource's set.
func (s *Sets) of(resource string) *Locker {
	best, most := s.lockers[0], uint64(0)
	if len(s.lockers) == 1 {
		return best
	}
	for _, l := range s.lockers {
		if w := weight(l.members.cluster.Hash, resource); w >= most {
			best, most = l, w
		}
	}
	return best
}

func (s *Sets) all() []*Locker { return s.lockers }

// weight is the draw of a set for a resource. FNV alone leaves the draws of
// similar names similar, so its bits are mixed (the finaliser of MurmurHash3).
func weight(set, resource string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(set)) // never fails (hash.Hash)
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(resource))
	x := h.Sum64()
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// any is the Locker to give a lease id to: every one knows the secrets of all,
// and finds the Lockers of the lease's resources.
func (s *Sets) any() *Locker { return s.lockers[0] }

// Acquire is Locker.Acquire.
func (s *Sets) Acquire(ctx context.Context, req AcquireRequest) (Lease, error) {
	lease, err := s.of(req.Resource).acquire(ctx, &req)
	if err != nil {
		return Lease{}, err
	}
	return *lease, nil
}

// Extend is Locker.Extend.
func (s *Sets) Extend(ctx context.Context, lease string, ttl time.Duration) (Lease, error) {
	return s.any().Extend(ctx, lease, ttl)
}

// Release is Locker.Release.
func (s *Sets) Release(ctx context.Context, lease string) error {
	return s.any().Release(ctx, lease)
}

// Lease is Locker.Lease.
func (s *Sets) Lease(ctx context.Context, lease string) (Lease, error) {
	return s.any().Lease(ctx, lease)
}

// ReadLeaseID is Locker.ReadLeaseID.
func (s *Sets) ReadLeaseID(ctx context.Context, lease string) (resources []string, granted time.Time, err error) {
	return s.any().ReadLeaseID(ctx, lease)
}

// RotateSecret is Locker.RotateSecret for every set.
func (s *Sets) RotateSecret(ctx context.Context, force bool) error {
	for _, l := range s.lockers {
		if err := l.RotateSecret(ctx, force); err != nil {
			return err
		}
	}
	return nil
}

// Inspect is Locker.Inspect.
func (s *Sets) Inspect(ctx context.Context, resource string) (LockState, error) {
	return s.of(resource).Inspect(ctx, resource)
}

// Break is Locker.Break.
func (s *Sets) Break(ctx context.Context, resource string) error {
	return s.of(resource).Break(ctx, resource)
}

// Status joins the sets' states. It is ready when every set is.
func (s *Sets) Status() ClusterStatus {
	joined := s.lockers[0].Status()
	for i, l := range s.lockers[1:] {
		status := l.Status()
		if !status.Ready {
			joined.Reason = strings.Trim(joined.Reason+fmt.Sprintf("; node set %d: %s", i+2, status.Reason), "; ")
		}
		joined.Ready = joined.Ready && status.Ready
		joined.Quorum += status.Quorum
		joined.Voting += status.Voting
		joined.Nodes = append(joined.Nodes, status.Nodes...)
	}
	return joined
}

// Statuses are the sets' states, one by one.
func (s *Sets) Statuses() []ClusterStatus {
	statuses := make([]ClusterStatus, len(s.lockers))
	for i, l := range s.lockers {
		statuses[i] = l.Status()
	}
	return statuses
}

// Waiting is how many requests stand in line at this server, set by set.
func (s *Sets) Waiting() []int {
	waiting := make([]int, len(s.lockers))
	for i, l := range s.lockers {
		waiting[i] = l.Waiting()
	}
	return waiting
}

// StopWaiting is Locker.StopWaiting.
func (s *Sets) StopWaiting() {
	for _, l := range s.lockers {
		l.StopWaiting()
	}
}

// Run is Locker.Run for every set.
func (s *Sets) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, l := range s.lockers {
		wg.Go(func() { _ = l.Run(ctx) }) // returns the context's error, as below
	}
	wg.Wait()
	return ctx.Err()
}
