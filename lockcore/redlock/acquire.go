package redlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/internal/pause"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/cleanup"
	"github.com/fencelock/fencelock/lockcore/redlock/order"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

var (
	errNoAnswer    = errors.New("no response in time")
	errImplausible = errors.New("it granted a token that no cluster can have reached")
)

// The tries of an Acquire without a wait. The pauses, jittered, are a few round
// trips long, so that two callers that split the votes do not meet again.
const (
	maxTries        = 8
	splitFirstPause = time.Millisecond
	splitMaxPause   = 32 * time.Millisecond
)

// Acquire grants a lease of the resource or of one of its slots, at once or waiting in its
// queue. Errors: *HeldError, *WaitTimeoutError, ErrIdempotencyMismatch, ErrTokensExhausted,
// ErrTooManyWaiters, ErrStopping, *QuorumError. After one, it retracts in the background
// what nodes granted.
//
// It repeats a few times by itself when votes split between callers that came at the same
// time, or when the epoch changed. It and what it calls take and return pointers: requests
// and leases are large, and a request in the queue has them on its stack at every level.
// With small frames 4 KB of stack are enough for each of ten thousand waiters.
func (l *Mapped) Acquire(ctx context.Context, req *Request) (*Part, error) {
	if req.Slots > 0 {
		return l.acquireSlot(ctx, req)
	}
	if req.Wait > 0 {
		return l.acquireQueued(ctx, req)
	}
	l.giveUpPlace(ctx, req)
	return l.acquireNow(ctx, req)
}

// giveUpPlace gives up the place that a request under the same key had in the queue.
func (l *Locker) giveUpPlace(ctx context.Context, req *Request) {
	if req.IdempotencyKey == "" || l.queue.Len() == 0 { // no ticket is worth the hash of its id
		return
	}
	if id, err := l.ticketID(ctx, req); err == nil {
		l.queue.GiveUp(req.Resource, id)
	}
}

// acquireNow acquires without a wait.
func (l *Mapped) acquireNow(ctx context.Context, req *Request) (*Part, error) {
	var wait time.Duration
	for try := 1; ; try++ {
		taken, lost := l.try(ctx, req, node.Op{})
		if lost == nil {
			return taken, nil
		}
		if lost.kind != lossSplit || try == maxTries || pause.For(ctx, l.random.Jitter(pause.Grow(&wait, splitFirstPause, splitMaxPause))) != nil {
			return nil, lost.err
		}
	}
}

// try acquires with an operation of which the ticket, and whether it is patient, are set.
func (l *Mapped) try(ctx context.Context, req *Request, op node.Op) (*Part, *loss) {
	if err := l.inFlight.enter(ctx); err != nil {
		return nil, &loss{lossFinal, err}
	}
	defer l.inFlight.leave()
	epoch, keys, err := l.voting(ctx)
	if err != nil {
		return nil, &loss{lossNoQuorum, err}
	}
	described := meta{acquired: time.Now(), holder: req.Holder, metadata: req.Metadata}
	op.Kind, op.Epoch, op.Map, op.Resource = node.OpAcquire, epoch, l.name, req.Resource
	op.TTL, op.Meta, op.Scope = req.TTL, described.String(), req.Scope
	earlier := l.grants.Before(op.Resource)
	former := l.chooseOwner(&op, req, keys)
	res := l.runAttempt(ctx, op)
	if owner := res.ownerAmong(former); owner != "" {
		op.Owner = owner
		res = l.runAttempt(ctx, op)
	}
	l.trace(ctx, &res)
	if res.verdict != quorum.Won {
		return nil, l.explainLoss(ctx, req, &res)
	}
	p := l.newPart(req, &op, &res, described)
	p.Lease.Waited = described.acquired.Sub(req.Began) // before the round that granted
	if p.Lease.Validity <= 0 || ctx.Err() != nil {
		l.retract(&op, res.ttl)
		return nil, l.tooLate(ctx, req.Resource, &res)
	}
	l.grants.Add(earlier, order.Grant{Resource: op.Resource, Owner: op.Owner, Token: res.token})
	return p, nil
}

// chooseOwner sets the ownership value: a random one, or that of the idempotency
// key. It returns the key's values under secrets that were replaced, and under those of
// the other sets: the resource may have moved.
func (l *Locker) chooseOwner(op *node.Op, req *Request, keys *keyring.Ring) (former []string) {
	if req.IdempotencyKey == "" {
		op.Owner = l.random.Word()
		return nil
	}
	owners := l.owners(req, keys)
	op.Owner, op.Attempt = owners[0], l.random.Word()[:8]
	return owners[1:]
}

// owners are the ownership values of the request's idempotency key, that of this Locker first.
func (l *Locker) owners(req *Request, ring *keyring.Ring) []string {
	owners := ring.Owners(req.Caller, req.IdempotencyKey)
	if l.cfg.Keys != nil { // all sets have the same
		return owners
	}
	for _, other := range l.cfg.Map.others() {
		owners = append(owners, other.Owners(req.Caller, req.IdempotencyKey)...)
	}
	return owners
}

// runAttempt is one attempt at a lease.
func (l *Locker) runAttempt(ctx context.Context, op node.Op) acquired {
	a := l.newAcquisition(ctx, op, l.cfg.roundLimit(len(l.nodes), op.TTL))
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
func (l *Mapped) newPart(req *Request, op *node.Op, res *acquired, described meta) *Part {
	if res.existing != nil {
		if kept := parseMeta(res.existing.Meta); !kept.acquired.IsZero() {
			described = kept
		}
	}
	id := keyring.LeaseID{
		Resource: op.Resource, Owner: op.Owner, Token: res.token, Acquired: described.acquired, Attempt: op.Attempt,
		Terms: keyring.Terms{MinHold: req.MinHold, MaxHold: req.MaxHold},
	}
	lease := l.leaseOf(id, described, res.ttl, res.validity)
	lease.Existing = res.existing != nil
	return &Part{from: l.Locker, ID: id, Lease: lease, asked: op.TTL, At: time.Now()}
}

func (l *Locker) leaseOf(id keyring.LeaseID, m meta, ttl, validity time.Duration) lockcore.Lease {
	return lockcore.Lease{
		Resource: id.Resource, Token: id.Token, TTL: ttl, Validity: validity,
		Acquired: id.Acquired, MaxHoldRemaining: l.maxHoldRemaining(id), Holder: m.holder, Metadata: m.metadata,
	}
}

func (l *Locker) maxHoldRemaining(id keyring.LeaseID) time.Duration {
	longest := l.cfg.MaxHold
	if id.MaxHold > 0 && (longest <= 0 || id.MaxHold < longest) {
		longest = id.MaxHold
	}
	if longest <= 0 {
		return -1
	}
	return max(0, longest-time.Since(id.Acquired))
}

// retract retracts the votes of an attempt that won a lease, with that TTL, which is not
// used. Another attempt under the idempotency key may have returned the same lease: its
// votes stay.
func (l *Locker) retract(acquire *node.Op, ttl time.Duration) {
	for i := range l.nodes {
		l.cleaner.Send(i, retraction(acquire, 0), time.Now().Add(max(ttl, acquire.TTL)), cleanup.Always)
	}
}

// retractLater retracts the votes when the place of a request that was broken off is
// given up, too. A server that stops before that leaves them to their TTL.
func (l *Locker) retractLater(acquire *node.Op, ttl time.Duration) {
	for i := range l.nodes {
		l.cleaner.SendAfter(waitqueue.LingerTime, i, retraction(acquire, 0), time.Now().Add(max(ttl, acquire.TTL)), cleanup.Always)
	}
}

// inFlight bounds the acquires that ask the nodes at the same time.
//
// A round has a time limit that is small against a lease (rule 18). Thousands at
// once would each wait in the nodes' input for longer than that: all would fail.
// So an acquire beyond the bound waits before its clock starts, first come, first
// served. Extends and releases never wait: an extend has no time to lose, and there
// is one release at most for an acquire.
type inFlight chan struct{}

// enter waits for a place. It returns ctx's cause when ctx ends first.
func (f inFlight) enter(ctx context.Context) error {
	select {
	case f <- struct{}{}:
		return nil
	default:
	}
	select {
	case f <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f inFlight) leave() { <-f }
