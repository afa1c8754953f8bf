package redlock

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

var (
	errNoAnswer    = errors.New("no answer in time")
	errImplausible = errors.New("it granted a token that no cluster can have reached")
)

// set is one set of nodes: a cluster of its own, with its own quorum. It takes
// leases of one resource each; a Locker routes to it.
type set struct {
	cfg      Config
	random   random.Source
	nodes    []node.Node
	meters   []Meter
	quorum   int
	cleaner  *cleaner
	queue    *waitqueue.Queue
	inFlight inFlight
	members  *membership.Controller
	mapName  string // of the map by which this copy of the set counts votes (rule 30)
	*setState
}

// setState is what the copies of a set share, one for each map that the nodes had.
type setState struct {
	keys     atomic.Pointer[Keys] // of the cluster's secrets; nil before a quorum has shown them
	present  atomic.Pointer[set]  // the copy for the map that the nodes have
	siblings func() []*set        // all sets
}

// now is the copy of the set for the map that its nodes have.
func (s *set) now() *set { return s.present.Load() }

func newSet(cfg Config, nodes []node.Node, from random.Source, l *Locker) *set {
	s := &set{setState: &setState{siblings: func() []*set { return l.sets }}, cfg: cfg, random: from, nodes: nodes, quorum: quorum.Of(len(nodes)), meters: cfg.metersOf(nodes), cleaner: newCleaner(nodes), inFlight: make(inFlight, cfg.MaxInFlight)}
	s.members = membership.New(cfg.membership(s, l.atlas), nodes)
	s.queue = waitqueue.New(waitqueue.Config{
		Nodes: nodes, NodeTimeout: cfg.NodeTimeout, MaxWaiters: cfg.MaxWaiters, Random: from, Epoch: s.members.Epoch,
		Map:    func() string { return s.now().mapName },
		Suffix: l.atlas.suffix(), Unlisted: cfg.Unlisted,
		Cleanup: func(i int, op node.Op, until time.Time) { s.cleaner.send(i, op, until, recheckNever) },
	})
	s.present.Store(s)
	return s
}

// run is Locker.Run.
func (s *set) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.members.Run(ctx) })
	wg.Go(func() { s.queue.Run(ctx) })
	wg.Go(func() { s.interruptWithoutQuorum(ctx) })
	wg.Wait()
	s.queue.Stop()
	const closeLimit = 2 * time.Second
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	s.cleaner.close(closing)
}

// request is an AcquireRequest for one resource.
type request struct {
	lockcore.AcquireRequest
	caller string // see lockcore.WithCaller
	terms  string // see termsOf
	scope  string // what the idempotency key is used for
	began  time.Time
	isSlot bool // the resource is one of several slots that the request may get
}

// termsOf is what a request asks for besides its resources and its wait, which a retry
// shortens; "" without an idempotency key. It takes the request as it was sent: servers may
// have other defaults.
func termsOf(req *lockcore.AcquireRequest) string {
	if req.IdempotencyKey == "" {
		return ""
	}
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%d %d %d %d %q %s", req.Slots, req.TTL.Milliseconds(), req.MinHold.Milliseconds(), req.MaxHold.Milliseconds(), req.Holder, req.Metadata)
	const termsBytes = 9 // nobody gains from two requests of theirs that look alike
	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:termsBytes])
}

// scopeFor is what the request's idempotency key is used for: these resources on its terms.
// Its lease is not given to a request that asks for another. Names have no control characters.
func (r *request) scopeFor(resources string) string { return resources + "\x1f" + r.terms }

// part is one resource of a lease.
type part struct {
	set   *set // that granted it
	id    leaseID
	lease lockcore.Lease
	asked time.Duration // the TTL of its own votes; the lease that a key found may have another
	at    time.Time
}

// The tries of an Acquire without a wait. The pauses, jittered, are a few round
// trips long, so that two callers that split the votes do not meet again.
const (
	maxTries        = 8
	splitFirstPause = time.Millisecond
	splitMaxPause   = 32 * time.Millisecond
)

// acquire and what it calls take and return pointers. Requests and leases are
// large, and a request in the queue has them on its stack at every level. With
// small frames 4 KB of stack are enough for each of ten thousand waiters.
func (s *set) acquire(ctx context.Context, req *request) (*part, error) {
	if req.Slots > 0 {
		return s.acquireSlot(ctx, req)
	}
	if req.Wait > 0 {
		return s.acquireQueued(ctx, req)
	}
	s.giveUpPlace(ctx, req)
	return s.acquireNow(ctx, req)
}

// giveUpPlace gives up the place that a request under the same key had in the queue.
func (s *set) giveUpPlace(ctx context.Context, req *request) {
	if req.IdempotencyKey == "" || s.queue.Len() == 0 { // no ticket is worth the hash of its id
		return
	}
	if id, err := s.ticketID(ctx, req); err == nil {
		s.queue.GiveUp(req.Resource, id)
	}
}

// acquireNow acquires without a wait.
func (s *set) acquireNow(ctx context.Context, req *request) (*part, error) {
	var wait time.Duration
	for try := 1; ; try++ {
		taken, err := s.tryAcquire(ctx, req, node.Ticket{})
		if err == nil {
			return taken, nil
		}
		var again *retryError
		if !errors.As(err, &again) {
			return taken, err
		}
		if try == maxTries || pause.For(ctx, s.random.Jitter(grow(&wait, splitFirstPause, splitMaxPause))) != nil {
			return nil, again.error
		}
	}
}

func (s *set) tryAcquire(ctx context.Context, req *request, ticket node.Ticket) (*part, error) {
	return s.try(ctx, req, node.Op{Ticket: ticket})
}

// try acquires with an operation of which the ticket, and whether it is patient, are set.
func (s *set) try(ctx context.Context, req *request, op node.Op) (*part, error) {
	if err := s.inFlight.enter(ctx); err != nil {
		return nil, err
	}
	defer s.inFlight.leave()
	epoch, keys, err := s.voting(ctx)
	if err != nil {
		return nil, err
	}
	described := meta{acquired: time.Now(), holder: req.Holder, metadata: req.Metadata}
	op.Kind, op.Epoch, op.Map, op.Resource = node.OpAcquire, epoch, s.mapName, req.Resource
	op.TTL, op.Meta, op.Scope = req.TTL, described.String(), req.scope
	former := s.chooseOwner(&op, req, keys)
	res := s.runAttempt(ctx, op)
	if owner := res.ownerAmong(former); owner != "" {
		op.Owner = owner
		res = s.runAttempt(ctx, op)
	}
	s.trace(ctx, &res)
	if res.verdict != quorum.Won {
		err := s.explainLoss(ctx, req.Resource, &res)
		if req.isSlot && errors.Is(err, lockcore.ErrIdempotencyMismatch) { // votes of a failed try for another slot
			err = &retryError{err}
		}
		return nil, err
	}
	p := s.newPart(req, &op, &res, described)
	p.lease.Waited = described.acquired.Sub(req.began) // before the round that granted
	if p.lease.Validity <= 0 || ctx.Err() != nil {
		s.retract(&op, res.ttl)
		return nil, s.tooLate(ctx, req.Resource, &res)
	}
	return p, nil
}

// chooseOwner sets the ownership value: a random one, or that of the idempotency
// key. It returns the key's values under secrets that were replaced, and under those of
// the other sets: the resource may have moved.
func (s *set) chooseOwner(op *node.Op, req *request, keys *Keys) (former []string) {
	if req.IdempotencyKey == "" {
		op.Owner = s.random.Word()
		return nil
	}
	owners := s.owners(req, keys)
	op.Owner, op.Attempt = owners[0], s.random.Word()[:8]
	return owners[1:]
}

// owners are the ownership values of the request's idempotency key, that of this set first.
func (s *set) owners(req *request, keys *Keys) []string {
	owners := keys.owners(req.caller, req.IdempotencyKey)
	if s.cfg.Keys != nil { // all sets have the same
		return owners
	}
	for _, other := range s.siblings() {
		if k := other.keys.Load(); k != nil && other.setState != s.setState {
			owners = append(owners, k.owners(req.caller, req.IdempotencyKey)...)
		}
	}
	return owners
}

// runAttempt is one attempt at a lease.
func (s *set) runAttempt(ctx context.Context, op node.Op) acquired {
	a := s.newAcquisition(ctx, op, s.cfg.roundLimit(len(s.nodes), op.TTL))
	a.start()
	a.wait(ctx)
	return a.result()
}

// ownerAmong returns the one of the owners whose lease made the attempt lose, ""
// if none did. The idempotency key has found its own lease then, which was granted
// before the cluster's secret was replaced. The next attempt asks for that lease.
func (res *acquired) ownerAmong(owners []string) string {
	if res.verdict == quorum.Won || len(owners) == 0 {
		return ""
	}
	for i := range res.replies {
		if owner := res.replies[i].Owner; slices.Contains(owners, owner) {
			return owner
		}
	}
	return ""
}

// newPart is what an attempt won. The description of a lease that an idempotency
// key found is the one that the nodes kept.
func (s *set) newPart(req *request, op *node.Op, res *acquired, described meta) *part {
	if res.existing != nil {
		if kept := parseMeta(res.existing.Meta); !kept.acquired.IsZero() {
			described = kept
		}
	}
	id := leaseID{
		resource: op.Resource, owner: op.Owner, token: res.token, acquired: described.acquired, attempt: op.Attempt,
		terms: terms{minHold: req.MinHold, maxHold: req.MaxHold},
	}
	lease := s.leaseOf(id, described, res.ttl, res.validity)
	lease.Existing = res.existing != nil
	return &part{set: s, id: id, lease: lease, asked: op.TTL, at: time.Now()}
}

func (s *set) leaseOf(id leaseID, m meta, ttl, validity time.Duration) lockcore.Lease {
	return lockcore.Lease{
		Resource: id.resource, Token: id.token, TTL: ttl, Validity: validity,
		Acquired: id.acquired, MaxHoldRemaining: s.maxHoldRemaining(id), Holder: m.holder, Metadata: m.metadata,
	}
}

func (s *set) maxHoldRemaining(id leaseID) time.Duration {
	longest := s.cfg.MaxHold
	if id.maxHold > 0 && (longest <= 0 || id.maxHold < longest) {
		longest = id.maxHold
	}
	if longest <= 0 {
		return -1
	}
	return max(0, longest-time.Since(id.acquired))
}

// retract retracts the votes of an attempt that won a lease, with that TTL, which is not
// used. Another attempt under the idempotency key may have returned the same lease: its
// votes stay.
func (s *set) retract(acquire *node.Op, ttl time.Duration) {
	for i := range s.nodes {
		s.cleaner.send(i, retraction(acquire, 0), time.Now().Add(max(ttl, acquire.TTL)), recheckAlways)
	}
}

// retractLater retracts the votes when the place of a request that was broken off is
// given up, too. A server that stops before that leaves them to their TTL.
func (s *set) retractLater(acquire *node.Op, ttl time.Duration) {
	for i := range s.nodes {
		s.cleaner.sendAfter(waitqueue.LingerTime, i, retraction(acquire, 0), time.Now().Add(max(ttl, acquire.TTL)), recheckAlways)
	}
}

// extend is Locker.Extend for one resource.
func (s *set) extend(ctx context.Context, id leaseID, ttl time.Duration) (lockcore.Lease, error) {
	if left := s.maxHoldRemaining(id); left >= 0 {
		ttl = min(ttl, left.Truncate(time.Millisecond))
	}
	if ttl < lockcore.MinTTL {
		return lockcore.Lease{}, lockcore.ErrMaxHold
	}
	op := node.Op{Kind: node.OpExtend, Map: s.mapName, Resource: id.resource, Owner: id.owner, Attempt: id.attempt, Token: id.token, TTL: ttl}
	b := s.roundInEpoch(ctx, op)
	if b.count(node.Granted) < s.quorum {
		return lockcore.Lease{}, s.endUnextended(ctx, id, &b)
	}
	left := quorum.Validity(ttl, ttl, b.elapsed)
	if left <= 0 {
		return lockcore.Lease{}, s.quorumError(id.resource, &b)
	}
	return s.leaseOf(id, b.firstMeta(), ttl, left), nil
}

// endUnextended tells a lease that has ended from a missing quorum. A node that refused the
// lease refuses it for good (rule 5), so the lease has ended once a quorum did. What the
// other nodes have of it is released, so that it keeps nobody out.
func (s *set) endUnextended(ctx context.Context, id leaseID, b *ballot) error {
	if b.count(node.NotHeld) < s.quorum {
		return s.quorumError(id.resource, b)
	}
	if id.attempt == "" { // an attempt retracts its own votes
		s.releaseRound(ctx, id, 0)
	}
	return lockcore.ErrNotHeld
}

// roundInEpoch runs a round of an operation that carries the epoch, and repeats it
// in each newer epoch that it meets (rule 8).
func (s *set) roundInEpoch(ctx context.Context, op node.Op) ballot {
	for try := 1; ; try++ {
		op.Epoch = s.members.Epoch()
		b := runRound(ctx, s.nodes, op, s.cfg.roundLimit(len(s.nodes), op.TTL), (*ballot).grantDecided)
		stale := s.learnFrom(&b)
		if !stale || b.count(node.Granted) >= b.quorum || try == maxTries || ctx.Err() != nil {
			return b
		}
	}
}

// learnFrom adopts the epochs that nodes returned and has nodes observed that are
// not admitted. It reports whether a node refused the epoch as too old.
func (s *set) learnFrom(b *ballot) (stale bool) {
	for i := range b.replies[:b.n] {
		switch b.replies[i].Outcome {
		case node.StaleEpoch:
			s.members.Learn(b.replies[i].Epoch)
			stale = true
		case node.NotAdmitted:
			s.members.Refused(i)
		}
	}
	return stale
}
