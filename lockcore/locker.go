package lockcore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

var (
	errNoAnswer    = errors.New("no answer in time")
	errImplausible = errors.New("named a token that no cluster can have reached")
)

// Locker takes leases over a quorum of nodes. It is safe for concurrent use,
// and any number of Lockers may serve the same nodes: they share nothing else.
type Locker struct {
	cfg     Config
	nodes   []Node
	meters  []Meter
	quorum  int
	view    knownView
	clean   *cleaner
	line    *line
	rounds  rounds
	members *membership
	// route finds the Locker of a resource's node set, and sets gives all of them;
	// this one, if it is the only one.
	route func(resource string) *Locker
	sets  func() []*Locker
}

// New makes a Locker over 1, 3, 5 or 7 nodes. It grants nothing before Run has
// found a quorum of them admitted.
func New(nodes []Node, cfg Config) (*Locker, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(cfg.validate(), validateNodes(nodes)); err != nil {
		return nil, fmt.Errorf("lockcore: %w", err)
	}
	l := &Locker{cfg: cfg, nodes: nodes, quorum: QuorumOf(len(nodes)), clean: newCleaner(nodes), rounds: make(rounds, cfg.MaxRounds)}
	l.line = newLine(cfg, nodes, l.clean, l.view.view)
	l.members = newMembership(cfg, nodes, &l.view)
	l.meters = l.members.meters
	l.route = func(string) *Locker { return l }
	l.sets = func() []*Locker { return []*Locker{l} }
	for _, n := range nodes {
		n.Join(l.members.cluster)
	}
	return l, nil
}

// Run watches the nodes, quarantines what restarted and admits it again, and
// keeps the line moving, until ctx ends. It then answers who still waits, and
// waits itself, within a bound, for the releases under way.
func (l *Locker) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { l.members.run(ctx) })
	wg.Go(func() { l.line.run(ctx) })
	wg.Wait()
	l.StopWaiting()
	const tidy = 2 * time.Second
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidy)
	defer cancel()
	l.clean.close(closing)
	return ctx.Err()
}

// StopWaiting answers every waiting Acquire with ErrStopping, and every later
// one that would wait. Call it before a server stops.
func (l *Locker) StopWaiting() { l.line.stop() }

// Waiting is how many requests stand in line at this server.
func (l *Locker) Waiting() int {
	l.line.mu.Lock()
	defer l.line.mu.Unlock()
	return l.line.waiting
}

// Status is the state of the nodes as Run last saw it.
func (l *Locker) Status() ClusterStatus { return l.members.status() }

// Acquire takes a lease, or says why not: *HeldError, *QuorumError, a
// *FieldError for each field out of bounds, ErrIdempotencyMismatch,
// ErrTokensExhausted, or an error that wraps ctx.Err(). After any error no
// vote stays behind: what was granted is taken back in the background.
//
// With req.Wait it stands in line for that long: first come, first served
// over all servers; then also *WaitTimeoutError, ErrTooManyWaiters and
// ErrStopping. Without, it never overtakes the line. With req.Resources it
// takes all of them or none.
//
// Votes split between callers that came at the same time, and votes that met a
// change of view, are asked for again a few times before it gives up.
func (l *Locker) Acquire(ctx context.Context, req AcquireRequest) (Lease, error) {
	lease, err := l.acquire(ctx, &req)
	if err != nil {
		return Lease{}, err
	}
	return *lease, nil
}

// acquire and what it calls take and return pointers: requests and leases are
// large, and whoever waits in line has them on its stack at every level. Ten
// thousand may wait, and with small frames 4 KB are enough for each.
func (l *Locker) acquire(ctx context.Context, req *AcquireRequest) (*Lease, error) {
	if err := l.cfg.checkAcquire(req); err != nil {
		return nil, err
	}
	req.owner = OwnerOf(ctx)
	take := l.acquireOne
	if req.Resources != nil {
		take = l.acquireBundle
	}
	lease, err := take(ctx, req)
	if err == nil {
		lease.ID = l.seal(req.owner, lease.ids)
	}
	return lease, err
}

func (l *Locker) acquireOne(ctx context.Context, req *AcquireRequest) (*Lease, error) {
	if req.Wait > 0 {
		return l.acquireInTurn(ctx, req)
	}
	pause := splitFirstPause
	for try := 1; ; try++ {
		lease, err := l.tryAcquire(ctx, req, Ticket{})
		var again *retryError
		if !errors.As(err, &again) {
			return lease, err
		}
		if try == mostTries {
			return nil, again.give
		}
		if err := sleep(ctx, l.cfg.jitter(pause)); err != nil {
			return nil, again.give
		}
		pause = min(2*pause, splitMostPause)
	}
}

// The tries of one Acquire. The pauses, jittered, are a few round trips long:
// two callers that split the votes do not meet again.
const (
	mostTries       = 8
	splitFirstPause = time.Millisecond
	splitMostPause  = 32 * time.Millisecond
)

// retryError asks Acquire to try once more, and what to say when it will not.
type retryError struct{ give error }

func (e *retryError) Error() string { return e.give.Error() }

func (l *Locker) tryAcquire(ctx context.Context, req *AcquireRequest, ticket Ticket) (*Lease, error) {
	if err := l.rounds.enter(ctx); err != nil {
		return nil, err
	}
	defer l.rounds.leave()
	keys, err := l.currentKeys(ctx)
	if err != nil {
		return nil, err
	}
	id := leaseID{resource: req.Resource, acquired: time.Now()}
	attempt, former := "", []string(nil)
	if req.IdempotencyKey == "" {
		id.value = l.cfg.newLeaseValue()
	} else {
		values := keys.leaseValues(req.owner, req.IdempotencyKey)
		id.value, former = values[0], values[1:]
		attempt = l.cfg.newLeaseValue()[:8]
	}
	described := meta{acquired: id.acquired, holder: req.Holder, metadata: req.Metadata}
	op := Op{
		Kind: OpAcquire, View: l.view.view(), Resource: req.Resource, Owner: id.value,
		TTL: req.TTL, Meta: described.String(), Attempt: attempt, Scope: cmp.Or(req.scope, req.Resource), Ticket: ticket,
	}
	res := l.ask(ctx, op)
	if value := res.inTheWay(former); value != "" {
		id.value, op.Owner = value, value
		res = l.ask(ctx, op)
	}
	l.tell(ctx, &res)
	if res.verdict != Won {
		return nil, l.explainLoss(ctx, req, &res)
	}
	id.token = res.token
	if res.existing {
		described = describeExisting(res.meta, described)
		id.acquired = described.acquired
	}
	lease := l.leaseOf(id, described, res.ttl, res.validity)
	lease.Existing, lease.attempt, lease.ids = res.existing, attempt, []leaseID{id}
	if lease.Validity <= 0 || ctx.Err() != nil {
		l.retract(id, attempt, res.ttl)
		return nil, l.tooLate(ctx, req.Resource, &res)
	}
	return &lease, nil
}

// ask is one acquisition, to its decision.
func (l *Locker) ask(ctx context.Context, op Op) acquired {
	a := l.newAcquisition(ctx, op, l.cfg.roundLimit(op.TTL))
	a.start()
	a.wait(ctx)
	return a.result()
}

// inTheWay gives the one of the values whose lease made the acquisition lose, ""
// if none did. They are what the idempotency key came to before the cluster's
// secret was replaced: then the key has found its own lease, and must ask for that.
func (res *acquired) inTheWay(values []string) string {
	if res.verdict == Won || len(values) == 0 {
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

func (l *Locker) leaseOf(id leaseID, m meta, ttl, validity time.Duration) Lease {
	return Lease{
		Resource: id.resource, Token: id.token, TTL: ttl, Validity: validity,
		Acquired: id.acquired, MaxHoldRemaining: l.maxHoldRemaining(id), Holder: m.holder, Metadata: m.metadata,
	}
}

func (l *Locker) maxHoldRemaining(id leaseID) time.Duration {
	if l.cfg.MaxHold < 0 {
		return -1
	}
	return max(0, l.cfg.MaxHold-time.Since(id.acquired))
}

// retract takes back the votes of a lease that was won and cannot be used. Under
// an idempotency key another attempt may have answered with the same lease: its
// votes stay.
func (l *Locker) retract(id leaseID, attempt string, ttl time.Duration) {
	op := Op{Kind: OpRetract, Resource: id.resource, Owner: id.value, Attempt: attempt}
	for i := range l.nodes {
		l.clean.send(i, op, time.Now().Add(ttl), recheckAlways)
	}
}

// Extend gives the lease a new TTL, counted from now; 0 asks for the default.
// The token stays. Errors: *FieldError, ErrNotHeld (final:
// stop working), ErrMaxHold (the lease ends with its present TTL), *QuorumError
// (the lease goes on for what was left of it; safe to repeat).
//
// A successful extend means that no acquisition with a larger token had
// completed when it was sent.
func (l *Locker) Extend(ctx context.Context, lease string, ttl time.Duration) (Lease, error) {
	ttl, err := l.cfg.checkTTL(ttl)
	if err != nil {
		return Lease{}, err
	}
	parts, err := l.openLease(ctx, lease)
	if err != nil {
		return Lease{}, err
	}
	leases, err := l.eachPart(parts, func(l *Locker, id leaseID) (Lease, error) { return l.extendOne(ctx, id, ttl) })
	if err != nil {
		return Lease{}, err
	}
	return together(lease, parts, leases), nil
}

func (l *Locker) extendOne(ctx context.Context, id leaseID, ttl time.Duration) (Lease, error) {
	if left := l.maxHoldRemaining(id); left >= 0 {
		ttl = min(ttl, left.Truncate(time.Millisecond))
	}
	if ttl < MinTTL {
		return Lease{}, ErrMaxHold
	}
	op := Op{Kind: OpExtend, Resource: id.resource, Owner: id.value, Token: id.token, TTL: ttl}
	b := l.pollInView(ctx, op, l.cfg.roundLimit(ttl), (*ballot).decided)
	if granted := b.count(Granted); granted < l.quorum {
		return Lease{}, l.explainUnextended(id, &b)
	}
	left := validity(ttl, ttl, b.elapsed)
	if left <= 0 {
		return Lease{}, l.quorumError(id.resource, &b)
	}
	return l.leaseOf(id, b.meta(), ttl, left), nil
}

// explainUnextended tells a lost lease from a lost quorum. A lease is lost
// once so many nodes refused it that the others are no quorum: each has given
// the lock, or a larger counter, to somebody else, and will never give it back.
func (l *Locker) explainUnextended(id leaseID, b *ballot) error {
	if b.count(NotHeld) < ReadersOf(len(l.nodes)) {
		return l.quorumError(id.resource, b)
	}
	op := Op{Kind: OpRelease, Resource: id.resource, Owner: id.value, Token: id.token}
	for i := range l.nodes {
		if o := b.replies[i].Outcome; o == Granted || o == Failed {
			l.clean.send(i, op, time.Now().Add(l.cfg.MaxTTL), recheckNever)
		}
	}
	return ErrNotHeld
}

// pollInView runs a poll that carries the view, and once more under each newer
// view that it meets (rule 8).
func (l *Locker) pollInView(ctx context.Context, op Op, limit time.Duration, enough func(*ballot) bool) ballot {
	for try := 1; ; try++ {
		op.View = l.view.view()
		b := runPoll(ctx, l.nodes, op, limit, enough)
		stale := l.learnFrom(b.replies[:b.n])
		if !stale || b.count(Granted) >= b.quorum || try == mostTries || ctx.Err() != nil {
			return b
		}
	}
}

// learnFrom adopts views that nodes named, wakes the watch when a node's gate
// was shut, and reports whether a vote was refused as outdated.
func (l *Locker) learnFrom(replies []Reply) (stale bool) {
	for i := range replies {
		switch replies[i].Outcome {
		case StaleView:
			l.view.learn(replies[i].View)
			stale = true
		case NotAdmitted:
			l.members.refused(i)
		}
	}
	return stale
}

// sleep waits, or returns early with the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
