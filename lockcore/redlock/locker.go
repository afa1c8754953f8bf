package redlock

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
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
	cfg   Config
	sets  []*set // those of both maps
	atlas *atlas
}

var _ lockcore.Service = (*Locker)(nil)

// New makes a Locker over sets of 1, 3, 5 or 7 nodes each. It grants nothing until
// Run has seen a quorum of them admitted.
func New(cfg Config, sets ...[]node.Node) (*Locker, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(cfg.validate(), validateSets(sets), validateNext(sets, cfg.Next)); err != nil {
		return nil, fmt.Errorf("redlock: %w", err)
	}
	l := &Locker{cfg: cfg, atlas: newAtlas(sets, cfg.Next)}
	for _, nodes := range sets {
		l.atlas.present.sets = append(l.atlas.present.sets, l.addSet(nodes))
	}
	for _, nodes := range cfg.Next {
		l.atlas.next.sets = append(l.atlas.next.sets, l.addSet(nodes))
	}
	return l, nil
}

// addSet makes the set of these nodes, or returns the one that there is.
func (l *Locker) addSet(nodes []node.Node) *set {
	cluster := membership.ClusterOf(nodes)
	for _, s := range l.sets {
		if s.members.Cluster() == cluster {
			return s
		}
	}
	s := newSet(l.cfg, nodes, random.Source{Reader: l.cfg.Random(len(l.sets))}, l)
	l.sets = append(l.sets, s)
	return s
}

// weight is the weight of a set for a resource. FNV alone gives similar names similar
// weights, so its bits are mixed (the finaliser of MurmurHash3).
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

// Run observes the nodes, quarantines and admits them, and serves the queue, until
// ctx ends. It then ends every wait, and gives the releases under way two seconds.
func (l *Locker) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, s := range l.sets {
		wg.Go(func() { s.run(ctx) })
	}
	wg.Wait()
	return ctx.Err()
}

// StopWaiting ends every waiting Acquire with ErrStopping, and every later one
// that would wait. Call it before a server stops.
func (l *Locker) StopWaiting() {
	for _, s := range l.sets {
		s.queue.Stop()
	}
}

// Waiting counts the requests in the queue of a node set at one server.
type Waiting struct {
	Requests int
	NoQuorum int // of these, those that cannot be granted now: too few nodes vote, or answered the last try
}

// Waiting counts the requests that wait in the queue at this server, by set.
func (l *Locker) Waiting() []Waiting {
	waiting := make([]Waiting, len(l.sets))
	for i, s := range l.sets {
		waiting[i] = s.waiting()
	}
	return waiting
}

// waiting: a waiter that found its resource held may not try again for 15 s, so the
// loss of the quorum shows in the status first.
func (s *set) waiting() Waiting {
	w := Waiting{Requests: s.queue.Len(), NoQuorum: s.queue.NoQuorum()}
	if !s.members.Status().Ready {
		w.NoQuorum = w.Requests
	}
	return w
}

// Statuses are the states of the nodes as Run last observed them, by set.
func (l *Locker) Statuses() []lockcore.ClusterStatus {
	statuses := make([]lockcore.ClusterStatus, len(l.sets))
	for i, s := range l.sets {
		statuses[i] = s.members.Status()
	}
	return statuses
}

// Observe observes every node now, and returns the joined states.
func (l *Locker) Observe(ctx context.Context) lockcore.ClusterStatus {
	var wg sync.WaitGroup
	for _, s := range l.sets {
		wg.Go(func() { s.members.Observe(ctx) })
	}
	wg.Wait()
	return l.Status()
}

// Status joins the sets' states. It is ready when every set is that has resources.
func (l *Locker) Status() lockcore.ClusterStatus {
	statuses := l.Statuses()
	joined := statuses[0]
	if len(statuses) > 1 {
		joined.Sets, joined.Nodes = statuses, slices.Clone(joined.Nodes)
	}
	joined.Ready = joined.Ready || !l.atlas.serves(l.sets[0])
	for i, status := range statuses[1:] {
		serves := l.atlas.serves(l.sets[i+1])
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

// Acquire is lockcore.Service's. After an error it retracts in the background what
// nodes granted. It repeats a few times by itself when votes split between callers
// that came at the same time, or when the epoch changed.
func (l *Locker) Acquire(ctx context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
	terms := termsOf(&req)
	if err := l.cfg.checkAcquire(&req); err != nil {
		return lockcore.Lease{}, err
	}
	one := &request{AcquireRequest: req, caller: lockcore.CallerOf(ctx), terms: terms, began: time.Now()}
	one.scope = one.scopeFor(req.Resource)
	if req.Resources != nil {
		return l.acquireBundle(ctx, one)
	}
	taken, err := l.acquire(ctx, one)
	if err != nil {
		return lockcore.Lease{}, err
	}
	return seal(one.caller, []*part{taken}), nil
}

// acquire acquires one resource, wherever it is. What moves while it waits is waited for
// again, at the end of its new queue.
func (l *Locker) acquire(ctx context.Context, req *request) (*part, error) {
	began := time.Now()
	return at(ctx, l, req.Resource, func(s *set) (*part, error) {
		if waited := time.Since(began); req.Wait > 0 && waited > 0 && l.atlas.next.sets != nil {
			again := *req
			again.Wait = max(time.Millisecond, req.Wait-waited)
			if req.polls() {
				again.Poll = max(time.Millisecond, req.Poll-waited)
			}
			return s.acquire(ctx, &again)
		}
		return s.acquire(ctx, req)
	})
}

// Extend is lockcore.Service's. When it succeeds, no acquisition with a larger
// token had completed when it was sent.
func (l *Locker) Extend(ctx context.Context, lease string, ttl time.Duration) (lockcore.Lease, error) {
	parts, err := l.openLease(ctx, lease)
	if err != nil {
		return lockcore.Lease{}, err
	}
	if ttl == 0 {
		last, err := l.look(ctx, lease, parts)
		if errors.Is(err, lockcore.ErrNotHeld) { // nobody knows its TTL any more
			return lockcore.Lease{}, l.endAll(ctx, parts)
		}
		if err != nil {
			return lockcore.Lease{}, err
		}
		ttl = min(last.TTL, l.cfg.MaxTTL)
	}
	if ttl, err = l.cfg.checkTTL(ttl); err != nil {
		return lockcore.Lease{}, err
	}
	extended, err := l.extendAll(ctx, lease, parts, ttl)
	if errors.Is(err, lockcore.ErrNotHeld) && len(parts) > 1 {
		err = l.endAll(ctx, parts)
	}
	return extended, err
}

// extendAll extends the parts of a lease. A part that has ended
// counts more than one without a quorum: the lease has ended.
func (l *Locker) extendAll(ctx context.Context, lease string, parts []leaseID, ttl time.Duration) (lockcore.Lease, error) {
	leases, errs := l.eachPart(ctx, parts, func(s *set, id leaseID) (lockcore.Lease, error) { return s.extend(ctx, id, ttl) })
	if err := first(errs, lockcore.ErrNotHeld, lockcore.ErrMaxHold, lockcore.ErrNoQuorum); err != nil {
		return lockcore.Lease{}, err
	}
	return together(lease, leases), nil
}

// endAll ends what is left of a lease, before its holder is told that it has ended:
// no part of it stays locked, and none can be extended (rule 5). It returns ErrNotHeld, or
// a *QuorumError while a part may be left.
func (l *Locker) endAll(ctx context.Context, parts []leaseID) error {
	if err := l.releaseAll(ctx, parts); err != nil {
		return err
	}
	return lockcore.ErrNotHeld
}

// Release is lockcore.Service's. After a *QuorumError the release continues in the
// background; the lease ends with its TTL at the latest.
func (l *Locker) Release(ctx context.Context, lease string) error {
	parts, err := l.openLease(ctx, lease)
	if err != nil {
		return err
	}
	return l.releaseAll(ctx, parts)
}

// releaseAll releases the parts of a lease. One without a quorum counts more
// than one that has ended: the release is to be repeated.
func (l *Locker) releaseAll(ctx context.Context, parts []leaseID) error {
	var tried *sync.Map // by resource
	if l.atlas.next.sets != nil {
		tried = new(sync.Map)
	}
	_, errs := l.eachPart(ctx, parts, func(s *set, id leaseID) (lockcore.Lease, error) {
		err := s.release(ctx, id, id.keepTaken())
		if tried != nil {
			if _, again := tried.LoadOrStore(id.resource, true); again && errors.Is(err, lockcore.ErrNotHeld) {
				err = nil // the lease was ended where it was before it moved
			}
		}
		if err == nil && l.cfg.Released != nil {
			l.cfg.Released(id.resource, id.token)
		}
		return lockcore.Lease{}, err
	})
	return first(errs, lockcore.ErrNoQuorum, lockcore.ErrNotHeld)
}

// Lease is lockcore.Service's. The validity counts from now.
func (l *Locker) Lease(ctx context.Context, lease string) (lockcore.Lease, error) {
	parts, err := l.openLease(ctx, lease)
	if err != nil {
		return lockcore.Lease{}, err
	}
	return l.look(ctx, lease, parts)
}

// look reads the parts of a lease.
func (l *Locker) look(ctx context.Context, lease string, parts []leaseID) (lockcore.Lease, error) {
	leases, errs := l.eachPart(ctx, parts, func(s *set, id leaseID) (lockcore.Lease, error) { return s.lease(ctx, id) })
	if err := first(errs, lockcore.ErrNotHeld, lockcore.ErrNoQuorum); err != nil {
		return lockcore.Lease{}, err
	}
	return together(lease, leases), nil
}

// Inspect is lockcore.Service's. A resource is held when a quorum holds one lease,
// or may hold it as far as the nodes that answered show.
func (l *Locker) Inspect(ctx context.Context, resource string) (lockcore.LockState, error) {
	if err := lockcore.ValidateResource(resource); err != nil {
		return lockcore.LockState{}, err
	}
	return at(ctx, l, resource, func(s *set) (lockcore.LockState, error) { return s.inspect(ctx, resource) })
}

// Break is lockcore.Service's. It also removes votes without a quorum.
func (l *Locker) Break(ctx context.Context, resource string, token fencing.Token) error {
	if err := lockcore.ValidateResource(resource); err != nil {
		return err
	}
	_, err := at(ctx, l, resource, func(s *set) (struct{}, error) { return struct{}{}, s.breakLock(ctx, resource, token) })
	return err
}

// eachPart calls f for every part side by side, with the part's set.
func (l *Locker) eachPart(ctx context.Context, parts []leaseID, f func(*set, leaseID) (lockcore.Lease, error)) ([]lockcore.Lease, []error) {
	if len(parts) == 1 {
		lease, err := at(ctx, l, parts[0].resource, func(s *set) (lockcore.Lease, error) { return f(s, parts[0]) })
		return []lockcore.Lease{lease}, []error{err}
	}
	leases, errs := make([]lockcore.Lease, len(parts)), make([]error, len(parts))
	var wg sync.WaitGroup
	for i, id := range parts {
		wg.Go(func() {
			leases[i], errs[i] = at(ctx, l, id.resource, func(s *set) (lockcore.Lease, error) { return f(s, id) })
		})
	}
	wg.Wait()
	return leases, errs
}

// first returns the error that is one of the kinds, the first kind that there is; any
// other error if there is none of these, nil without errors.
func first(errs []error, kinds ...error) error {
	for _, kind := range kinds {
		for _, err := range errs {
			if errors.Is(err, kind) {
				return err
			}
		}
	}
	return errors.Join(errs...)
}
