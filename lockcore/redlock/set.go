package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

var (
	errNoAnswer    = errors.New("no answer in time")
	errImplausible = errors.New("named a token that no cluster can have reached")
)

// set is one set of nodes: a cluster of its own, with its own quorum. It takes
// leases of one resource each; a Locker routes to it.
type set struct {
	cfg      Config
	nodes    []node.Node
	meters   []Meter
	quorum   int
	clean    *cleaner
	keys     atomic.Pointer[Keys] // of the cluster's secrets; nil before a quorum has shown them
	queue    *waitqueue.Queue
	inFlight inFlight
	members  *membership.Controller
}

func newSet(cfg Config, nodes []node.Node) *set {
	l := &set{cfg: cfg, nodes: nodes, quorum: quorum.Of(len(nodes)), meters: cfg.metersOf(nodes), clean: newCleaner(nodes), inFlight: make(inFlight, cfg.MaxInFlight)}
	l.members = membership.New(cfg.membership(l), nodes)
	l.queue = waitqueue.New(waitqueue.Config{
		Nodes: nodes, NodeTimeout: cfg.NodeTimeout, MaxWaiters: cfg.MaxWaiters, Random: cfg.Random, Epoch: l.members.Epoch,
		Cleanup: func(i int, op node.Op, until time.Time) { l.clean.send(i, op, until, recheckNever) },
	})
	return l
}

// run is Locker.Run.
func (l *set) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { l.members.Run(ctx) })
	wg.Go(func() { l.queue.Run(ctx) })
	wg.Wait()
	l.queue.Stop()
	const tidy = 2 * time.Second
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidy)
	defer cancel()
	l.clean.close(closing)
}

// request is an AcquireRequest of one resource on its way to the nodes.
type request struct {
	lockcore.AcquireRequest
	caller string // see WithCaller
	scope  string // what the idempotency key is used for
}

// part is one resource of a lease, taken.
type part struct {
	id      leaseID
	lease   lockcore.Lease
	attempt string // that took it under an idempotency key; "" without one
	at      time.Time
}

// acquire and what it calls take and return pointers: requests and leases are
// large, and whoever waits in the queue has them on its stack at every level. Ten
// thousand may wait, and with small frames 4 KB are enough for each.
func (l *set) acquire(ctx context.Context, req *request) (*part, error) {
	if req.Wait > 0 {
		return l.acquireQueued(ctx, req)
	}
	wait := splitFirstPause
	for try := 1; ; try++ {
		taken, err := l.tryAcquire(ctx, req, node.Ticket{})
		var again *retryError
		if !errors.As(err, &again) {
			return taken, err
		}
		if try == maxTries {
			return nil, again.give
		}
		if err := pause.For(ctx, l.cfg.Random.Jitter(wait)); err != nil {
			return nil, again.give
		}
		wait = min(2*wait, splitMaxPause)
	}
}

// The tries of one Acquire. The pauses, jittered, are a few round trips long:
// two callers that split the votes do not meet again.
const (
	maxTries        = 8
	splitFirstPause = time.Millisecond
	splitMaxPause   = 32 * time.Millisecond
)

// retryError asks Acquire to try once more, and what to say when it will not.
type retryError struct{ give error }

func (e *retryError) Error() string { return e.give.Error() }

func (l *set) tryAcquire(ctx context.Context, req *request, ticket node.Ticket) (*part, error) {
	if err := l.inFlight.enter(ctx); err != nil {
		return nil, err
	}
	defer l.inFlight.leave()
	keys, err := l.currentKeys(ctx)
	if err != nil {
		return nil, err
	}
	id := leaseID{resource: req.Resource, acquired: time.Now(), terms: terms{minHold: req.MinHold, maxHold: req.MaxHold}}
	attempt, former := "", []string(nil)
	if req.IdempotencyKey == "" {
		id.value = l.cfg.Random.Word()
	} else {
		values := keys.leaseValues(req.caller, req.IdempotencyKey)
		id.value, former = values[0], values[1:]
		attempt = l.cfg.Random.Word()[:8]
	}
	described := meta{acquired: id.acquired, holder: req.Holder, metadata: req.Metadata}
	op := node.Op{
		Kind: node.OpAcquire, Epoch: l.members.Epoch(), Resource: req.Resource, Owner: id.value,
		TTL: req.TTL, Meta: described.String(), Attempt: attempt, Scope: req.scope, Ticket: ticket,
	}
	res := l.ask(ctx, op)
	if value := res.inTheWay(former); value != "" {
		id.value, op.Owner = value, value
		res = l.ask(ctx, op)
	}
	l.trace(ctx, &res)
	if res.verdict != quorum.Won {
		return nil, l.explainLoss(ctx, req, &res)
	}
	id.token = res.token
	if res.existing {
		described = describeExisting(res.meta, described)
		id.acquired = described.acquired
	}
	lease := l.leaseOf(id, described, res.ttl, res.validity)
	lease.Existing = res.existing
	if lease.Validity <= 0 || ctx.Err() != nil {
		l.retract(id, attempt, res.ttl)
		return nil, l.tooLate(ctx, req.Resource, &res)
	}
	return &part{id: id, lease: lease, attempt: attempt, at: time.Now()}, nil
}

// ask is one acquisition, to its decision.
func (l *set) ask(ctx context.Context, op node.Op) acquired {
	a := l.newAcquisition(ctx, op, l.cfg.roundLimit(op.TTL))
	a.start()
	a.wait(ctx)
	return a.result()
}

// inTheWay gives the one of the values whose lease made the acquisition lose, ""
// if none did. They are what the idempotency key came to before the cluster's
// secret was replaced: then the key has found its own lease, and must ask for that.
func (res *acquired) inTheWay(values []string) string {
	if res.verdict == quorum.Won || len(values) == 0 {
		return ""
	}
	for i := range res.replies {
		if value := res.replies[i].Owner; res.answered.has(i) && slices.Contains(values, value) {
			return value
		}
	}
	return ""
}

// describeExisting prefers what the nodes kept over what the retry says.
func describeExisting(text string, retry meta) meta {
	if kept := parseMeta(text); !kept.acquired.IsZero() {
		return kept
	}
	return retry
}

func (l *set) leaseOf(id leaseID, m meta, ttl, validity time.Duration) lockcore.Lease {
	return lockcore.Lease{
		Resource: id.resource, Token: id.token, TTL: ttl, Validity: validity,
		Acquired: id.acquired, MaxHoldRemaining: l.maxHoldRemaining(id), Holder: m.holder, Metadata: m.metadata,
	}
}

func (l *set) maxHoldRemaining(id leaseID) time.Duration {
	longest := l.cfg.MaxHold
	if id.maxHold > 0 && (longest <= 0 || id.maxHold < longest) {
		longest = id.maxHold
	}
	if longest <= 0 {
		return -1
	}
	return max(0, longest-time.Since(id.acquired))
}

// retract retracts the votes of a lease that was won and cannot be used. Under
// an idempotency key another attempt may have answered with the same lease: its
// votes stay.
func (l *set) retract(id leaseID, attempt string, ttl time.Duration) {
	op := node.Op{Kind: node.OpRetract, Resource: id.resource, Owner: id.value, Attempt: attempt}
	for i := range l.nodes {
		l.clean.send(i, op, time.Now().Add(ttl), recheckAlways)
	}
}

// extend is Locker.Extend for one resource.
func (l *set) extend(ctx context.Context, id leaseID, ttl time.Duration) (lockcore.Lease, error) {
	if left := l.maxHoldRemaining(id); left >= 0 {
		ttl = min(ttl, left.Truncate(time.Millisecond))
	}
	if ttl < lockcore.MinTTL {
		return lockcore.Lease{}, lockcore.ErrMaxHold
	}
	op := node.Op{Kind: node.OpExtend, Resource: id.resource, Owner: id.value, Token: id.token, TTL: ttl}
	b := l.roundInEpoch(ctx, op, l.cfg.roundLimit(ttl), (*ballot).decided)
	if granted := b.count(node.Granted); granted < l.quorum {
		return lockcore.Lease{}, l.explainUnextended(id, &b)
	}
	left := quorum.Validity(ttl, ttl, b.elapsed)
	if left <= 0 {
		return lockcore.Lease{}, l.quorumError(id.resource, &b)
	}
	return l.leaseOf(id, b.meta(), ttl, left), nil
}

// explainUnextended tells a lost lease from a lost quorum. A lease is lost
// once so many nodes refused it that the others are no quorum: each has given
// the lock, or a larger counter, to somebody else, and will never give it back.
func (l *set) explainUnextended(id leaseID, b *ballot) error {
	if b.count(node.NotHeld) < quorum.Readers(len(l.nodes)) {
		return l.quorumError(id.resource, b)
	}
	op := node.Op{Kind: node.OpRelease, Resource: id.resource, Owner: id.value, Token: id.token}
	for i := range l.nodes {
		if o := b.replies[i].Outcome; o == node.Granted || o == node.Failed {
			l.clean.send(i, op, time.Now().Add(l.cfg.MaxTTL), recheckNever)
		}
	}
	return lockcore.ErrNotHeld
}

// roundInEpoch runs a poll that carries the epoch, and once more under each newer
// epoch that it meets (rule 8).
func (l *set) roundInEpoch(ctx context.Context, op node.Op, limit time.Duration, enough func(*ballot) bool) ballot {
	for try := 1; ; try++ {
		op.Epoch = l.members.Epoch()
		b := runRound(ctx, l.nodes, op, limit, enough)
		stale := l.learnFrom(b.replies[:b.n])
		if !stale || b.count(node.Granted) >= b.quorum || try == maxTries || ctx.Err() != nil {
			return b
		}
	}
}

// learnFrom adopts epochs that nodes named, wakes the watch when a node's gate
// was shut, and reports whether a vote was refused as outdated.
func (l *set) learnFrom(replies []node.Reply) (stale bool) {
	for i := range replies {
		switch replies[i].Outcome {
		case node.StaleEpoch:
			l.members.Learn(replies[i].Epoch)
			stale = true
		case node.NotAdmitted:
			l.members.Refused(i)
		}
	}
	return stale
}
