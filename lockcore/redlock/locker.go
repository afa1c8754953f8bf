package redlock

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Locker takes leases over quorums of nodes. It is safe for concurrent use, and
// any number of Lockers may serve the same nodes: they share nothing else.
//
// Resources spread over one or several independent sets of nodes, to scale out
// beyond what one set can serve. Each set is a cluster of its own, with its own
// quorum: a set that is down stops its share of the resources and no other. A
// resource belongs to the set that wins its rendezvous (Thaler and Ravishankar,
// 1998): adding a set moves only the resources that the new one wins. Every server
// must be configured with the same sets; changing them while leases are held moves
// resources away from their locks (the guard still refuses stale tokens, since
// floors follow the clock), so do it at rest. The rendezvous is a few lines on
// hash/fnv and no library: where a resource belongs must never change with a
// library's version.
type Locker struct {
	cfg  Config
	sets []*set
}

var _ lockcore.Service = (*Locker)(nil)

// New makes a Locker over sets of 1, 3, 5 or 7 nodes each. It grants nothing before
// Run has found a quorum of them admitted.
func New(cfg Config, sets ...[]node.Node) (*Locker, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(cfg.validate(), validateSets(sets)); err != nil {
		return nil, fmt.Errorf("redlock: %w", err)
	}
	l := &Locker{cfg: cfg}
	for _, nodes := range sets {
		l.sets = append(l.sets, newSet(cfg, nodes))
	}
	return l, nil
}

func validateSets(sets [][]node.Node) error {
	if len(sets) == 0 {
		return errors.New("no set of nodes")
	}
	var errs []error
	seen := make(map[string]bool)
	for _, nodes := range sets {
		errs = append(errs, validateNodes(nodes))
		for _, n := range nodes {
			if seen[n.Name()] {
				errs = append(errs, fmt.Errorf("node %s is listed twice: each node must be a server of its own", n.Name()))
			}
			seen[n.Name()] = true
		}
	}
	return errors.Join(errs...)
}

// of is the resource's set.
func (l *Locker) of(resource string) *set {
	best, most := l.sets[0], uint64(0)
	if len(l.sets) == 1 {
		return best
	}
	for _, s := range l.sets {
		if w := weight(s.members.Cluster().Hash, resource); w >= most {
			best, most = s, w
		}
	}
	return best
}

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

// Run watches the nodes, quarantines what restarted and admits it again, and
// keeps the line moving, until ctx ends. It then answers who still waits, and
// waits itself, within a bound, for the releases under way.
func (l *Locker) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, s := range l.sets {
		wg.Go(func() { s.run(ctx) })
	}
	wg.Wait()
	return ctx.Err()
}

// StopWaiting answers every waiting Acquire with ErrStopping, and every later
// one that would wait. Call it before a server stops.
func (l *Locker) StopWaiting() {
	for _, s := range l.sets {
		s.queue.Stop()
	}
}

// Waiting is how many requests stand in the queue at this server, set by set.
func (l *Locker) Waiting() []int {
	waiting := make([]int, len(l.sets))
	for i, s := range l.sets {
		waiting[i] = s.queue.Len()
	}
	return waiting
}

// Statuses are the states of the nodes as Run last saw them, set by set.
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

// Status joins the sets' states. It is ready when every set is.
func (l *Locker) Status() lockcore.ClusterStatus {
	statuses := l.Statuses()
	joined := statuses[0]
	for i, status := range statuses[1:] {
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

// Acquire takes a lease, or says why not: *HeldError, *QuorumError, a
// *FieldError for each field out of bounds, ErrIdempotencyMismatch,
// ErrTokensExhausted, or an error that wraps ctx.Err(). After any error no
// vote stays behind: what was granted is retracted in the background.
//
// With req.Wait it stands in the queue for that long: first come, first served
// over all servers; then also *WaitTimeoutError, ErrTooManyWaiters and
// ErrStopping. Without, it never overtakes the line. With req.Resources it
// takes all of them or none.
//
// Votes split between callers that came at the same time, and votes that met a
// change of epoch, are asked for again a few times before it gives up.
func (l *Locker) Acquire(ctx context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
	if err := l.cfg.checkAcquire(&req); err != nil {
		return lockcore.Lease{}, err
	}
	one := &request{AcquireRequest: req, caller: lockcore.CallerOf(ctx), scope: req.Resource}
	if req.Resources != nil {
		return l.acquireBundle(ctx, one)
	}
	taken, err := l.of(req.Resource).acquire(ctx, one)
	if err != nil {
		return lockcore.Lease{}, err
	}
	return l.sealed(one.caller, []*part{taken}), nil
}

// Extend gives the lease a new TTL, counted from now; 0 is the one that it was last
// given, or the default once it has expired.
// The token stays. Errors: *FieldError, ErrNotHeld (final:
// stop working), ErrMaxHold (the lease ends with its present TTL), *QuorumError
// (the lease goes on for what was left of it; safe to repeat).
//
// A successful extend means that no acquisition with a larger token had
// completed when it was sent.
func (l *Locker) Extend(ctx context.Context, lease string, ttl time.Duration) (lockcore.Lease, error) {
	if ttl == 0 {
		last, err := l.Lease(ctx, lease)
		if err != nil && !errors.Is(err, lockcore.ErrNotHeld) { // rule 5: one that has expired may be made again
			return lockcore.Lease{}, err
		}
		ttl = min(last.TTL, l.cfg.MaxTTL)
	}
	ttl, err := l.cfg.checkTTL(ttl)
	if err != nil {
		return lockcore.Lease{}, err
	}
	parts, err := l.openLease(ctx, lease)
	if err != nil {
		return lockcore.Lease{}, err
	}
	leases, err := l.eachPart(parts, func(s *set, id leaseID) (lockcore.Lease, error) { return s.extend(ctx, id, ttl) })
	if err != nil {
		return lockcore.Lease{}, err
	}
	return together(lease, leases), nil
}

// Release ends a lease. Errors: ErrNotHeld (it had ended
// before), *QuorumError (too few nodes answered to know; the release continues
// in the background, and the lease ends with its TTL at the latest).
func (l *Locker) Release(ctx context.Context, lease string) error {
	parts, err := l.openLease(ctx, lease)
	if err != nil {
		return err
	}
	_, err = l.eachPart(parts, func(s *set, id leaseID) (lockcore.Lease, error) {
		err := s.release(ctx, id.resource, id.value, id.token, id.keepTaken())
		if err == nil && l.cfg.Released != nil {
			l.cfg.Released(id.resource, id.token)
		}
		return lockcore.Lease{}, err
	})
	return err
}

// Lease returns a lease as it stands, its validity counted from now. Errors:
// ErrNotHeld, *QuorumError.
func (l *Locker) Lease(ctx context.Context, lease string) (lockcore.Lease, error) {
	parts, err := l.openLease(ctx, lease)
	if err != nil {
		return lockcore.Lease{}, err
	}
	leases, err := l.eachPart(parts, func(s *set, id leaseID) (lockcore.Lease, error) { return s.lease(ctx, id) })
	if err != nil {
		return lockcore.Lease{}, err
	}
	return together(lease, leases), nil
}

// Inspect returns what anyone may know of a resource. A resource counts as
// held when a quorum holds the same lease, or may hold it as far as the nodes
// that answered show. Errors: *FieldError, *QuorumError.
func (l *Locker) Inspect(ctx context.Context, resource string) (lockcore.LockState, error) {
	if err := lockcore.ValidateResource(resource); err != nil {
		return lockcore.LockState{}, err
	}
	return l.of(resource).inspect(ctx, resource)
}

// Break ends whatever lease there is on a resource, and stray votes with it.
// The next token is still higher. Errors: *FieldError, ErrNotHeld when the
// resource is free, *QuorumError.
func (l *Locker) Break(ctx context.Context, resource string) error {
	if err := lockcore.ValidateResource(resource); err != nil {
		return err
	}
	return l.of(resource).breakLock(ctx, resource)
}

// eachPart calls f for every part side by side, with its set of nodes. Of several
// errors the gravest is returned: a lost part over a part of which nothing is known.
func (l *Locker) eachPart(parts []leaseID, f func(*set, leaseID) (lockcore.Lease, error)) ([]lockcore.Lease, error) {
	leases, errs := make([]lockcore.Lease, len(parts)), make([]error, len(parts))
	if len(parts) == 1 {
		leases[0], errs[0] = f(l.of(parts[0].resource), parts[0])
		return leases, errs[0]
	}
	var wg sync.WaitGroup
	for i, id := range parts {
		wg.Go(func() { leases[i], errs[i] = f(l.of(id.resource), id) })
	}
	wg.Wait()
	for _, grave := range []error{lockcore.ErrNotHeld, lockcore.ErrMaxHold, lockcore.ErrNoQuorum} {
		for _, err := range errs {
			if errors.Is(err, grave) {
				return leases, err
			}
		}
	}
	return leases, errors.Join(errs...)
}
