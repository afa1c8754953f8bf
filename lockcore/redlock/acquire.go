package redlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore"
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

// The attempts of an Acquire without a wait. The pauses, jittered, are a few round trips long, so that two
// callers that split the votes do not collide again.
const (
	maxTries        = 8
	splitFirstPause = time.Millisecond
	splitMaxPause   = 32 * time.Millisecond
)

// Acquire grants a lease of the resource or of one of its slots, at once or after waiting in its queue.
// Errors: *HeldError, *WaitTimeoutError, ErrIdempotencyMismatch, ErrTokensExhausted, ErrStopping,
// *QuorumError. After an error it retracts the nodes' grants in the background.
// It repeats an attempt a few times if votes split between callers that came at the same time, or if the
// epoch changed.
// This function and those that it calls pass requests and leases by pointer. These are large, and a
// request in the queue would have them on its stack at every level. With small frames, 4 KB of stack are
// enough for each of ten thousand waiters.
func (l *Mapped) Acquire(ctx context.Context, req *lockcore.Request) (*Grant, error) {
	if req.Slots > 0 {
		return l.acquireSlot(ctx, req)
	}
	if req.Wait > 0 {
		return l.acquireQueued(ctx, time.Now().Add(req.AnswerWithin()), req)
	}
	l.giveUpPlace(ctx, req)
	return l.acquireNow(ctx, req)
}

// Grant is a resource that a quorum has granted: a whole lease, or one part of several. The caller has it
// until the lease's TTL ends, or until it retracts the Grant.
type Grant struct {
	ID    keyring.LeaseID
	Lease lockcore.Lease // without an id
	At    time.Time      // when it was granted
	asked time.Duration  // the TTL of its own votes; a lease that a key found may have another
	from  *Locker        // the Locker that granted it
}

// Ring returns the present keys of the quorum that granted it: they seal its lease id.
func (g *Grant) Ring() *keyring.Ring { return g.from.Ring() }

// Retract retracts the votes that won the Grant. If another attempt under the idempotency key returned
// the same lease, its votes stay.
func (g *Grant) Retract() { g.from.retract(g.acquire(), g.Lease.TTL) }

// RetractLater retracts the votes when the kept place of an interrupted request is given up. A server that
// stops before that leaves the votes to their TTL.
func (g *Grant) RetractLater() { g.from.retractLater(g.acquire(), g.Lease.TTL) }

// acquire returns the operation that took it, with the fields that a retraction needs.
func (g *Grant) acquire() *node.Op {
	return &node.Op{Resource: g.ID.Resource, Owner: g.ID.Owner, Attempt: g.ID.Attempt, TTL: g.asked}
}

// giveUpPlace gives up the place that a request under the same key had in the queue.
func (l *Locker) giveUpPlace(ctx context.Context, req *lockcore.Request) {
	if req.IdempotencyKey == "" || l.queue.Len() == 0 { // without tickets here, computing the id's hash is not worth it
		return
	}
	if id, err := l.ticketID(ctx, req); err == nil {
		l.queue.GiveUp(req.Resource, id)
	}
}

// acquireNow acquires without a wait.
func (l *Mapped) acquireNow(ctx context.Context, req *lockcore.Request) (*Grant, error) {
	var wait time.Duration
	for try := 1; ; try++ {
		taken, lost := l.try(ctx, req, node.Op{})
		if lost == nil {
			return taken, nil
		}
		if lost.kind != lossSplit || try == maxTries || !pause.For(ctx, l.random.Jitter(pause.Grow(&wait, splitFirstPause, splitMaxPause))) {
			return nil, lost.err
		}
	}
}

// try acquires with an operation whose ticket and patience are set.
func (l *Mapped) try(ctx context.Context, req *lockcore.Request, op node.Op) (*Grant, *loss) {
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
	g := l.grantOf(req, &op, &res, described)
	g.Lease.Waited = described.acquired.Sub(req.Began) // before the round that granted
	if g.Lease.Validity <= 0 || ctx.Err() != nil {
		l.retract(&op, g.Lease.TTL)
		return nil, l.tooLate(ctx, req.Resource, &res)
	}
	l.grants.Add(earlier, order.Grant{Resource: op.Resource, Owner: op.Owner, Token: g.Lease.Token})
	return g, nil
}

// chooseOwner sets the ownership value: a random one, or that of the idempotency key. It returns the key's
// values under earlier secrets, and under the secrets of the other sets, because the resource may have moved.
func (l *Locker) chooseOwner(op *node.Op, req *lockcore.Request, keys *keyring.Ring) (former []string) {
	if req.IdempotencyKey == "" {
		op.Owner = l.random.Word()
		return nil
	}
	owners := l.owners(req, keys)
	op.Owner, op.Attempt = owners[0], l.random.Word()[:8]
	return owners[1:]
}

// owners returns the ownership values of the request's idempotency key. Those of this Locker come first.
func (l *Locker) owners(req *lockcore.Request, ring *keyring.Ring) []string {
	owners := ring.Owners(req.Caller.Name(), req.IdempotencyKey)
	if l.cfg.Keys != nil { // all sets have the same
		return owners
	}
	for _, other := range l.set.Others() {
		owners = append(owners, other.Owners(req.Caller.Name(), req.IdempotencyKey)...)
	}
	return owners
}

// runAttempt is one attempt at a lease.
func (l *Locker) runAttempt(ctx context.Context, op node.Op) attempt {
	a := l.newAcquisition(ctx, op, roundLimit(&l.cfg, len(l.nodes), op.TTL))
	a.start()
	a.wait(ctx)
	return a.result()
}

// ownerAmong returns the owner in owners whose lease made the attempt lose, or "". Such an owner means that
// the idempotency key has found its own lease, granted before the cluster's secret was replaced. The next
// attempt uses that owner.
func (a *attempt) ownerAmong(owners []string) string {
	if a.verdict == quorum.Won || len(owners) == 0 {
		return ""
	}
	for i := range a.replies {
		if owner := a.replies[i].Owner; slices.Contains(owners, owner) {
			return owner
		}
	}
	return ""
}

// grantOf makes the Grant of a successful attempt. For a lease that an idempotency key found, the description
// is the one that the nodes kept.
func (l *Mapped) grantOf(req *lockcore.Request, op *node.Op, won *attempt, described meta) *Grant {
	ttl, validity, existing := won.won(op.TTL)
	if existing != nil {
		if kept := parseMeta(existing.Meta); !kept.acquired.IsZero() {
			described = kept
		}
	}
	id := keyring.LeaseID{
		Resource: op.Resource, Owner: op.Owner, Token: won.tally.Token(), Acquired: described.acquired, Attempt: op.Attempt,
		Terms: keyring.Terms{MinHold: req.MinHold, MaxHold: req.MaxHold},
	}
	lease := l.leaseOf(id, described, ttl, validity)
	lease.Existing = existing != nil
	return &Grant{from: l.Locker, ID: id, Lease: lease, asked: op.TTL, At: time.Now()}
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

// retract retracts the votes of an attempt that won a lease with this TTL, if the lease is not used. If
// another attempt under the idempotency key returned the same lease, its votes stay.
func (l *Locker) retract(acquire *node.Op, ttl time.Duration) {
	for i := range l.nodes {
		l.cleaner.Send(i, retraction(acquire, 0), time.Now().Add(max(ttl, acquire.TTL)), cleanup.Always)
	}
}

// retractLater retracts the votes when the kept place of an interrupted request is given up. A server that
// stops before that leaves the votes to their TTL.
func (l *Locker) retractLater(acquire *node.Op, ttl time.Duration) {
	for i := range l.nodes {
		l.cleaner.SendAfter(waitqueue.LingerTime, i, retraction(acquire, 0), time.Now().Add(max(ttl, acquire.TTL)), cleanup.Always)
	}
}

// inFlight bounds the acquires that query the nodes at the same time.
//
// A round's time limit is short compared with a lease (rule 18). If thousands of rounds ran at once, each
// would wait longer than that in the nodes' input, and all would fail. So an acquire beyond the bound waits
// before its clock starts, first come, first served. Extends and releases never wait: an extend has no time to
// lose, and there is at most one release per acquire.
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
