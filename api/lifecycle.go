package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/activity"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/leases"
	"github.com/fencelock/fencelock/api/places"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// lifecycle surrounds the Service's calls that begin, extend and end leases with
// limits, spans, metrics, events, and the table of live leases.
type lifecycle struct {
	service lockcore.Service
	live    leases.Table
	waits   *places.Table
	metrics *lockMetrics
	events  *events.Hub
	tracer  trace.Tracer // nil for none

	activity activity.Log
}

// Acquire is Service.Acquire on behalf of who, within who's limits. who is nil
// without access control. Errors besides: *access.LimitError.
func (l *lifecycle) Acquire(ctx context.Context, who *access.Identity, req *lockcore.AcquireRequest) (lease lockcore.Lease, err error) {
	done, err := l.admit(ctx, who, req)
	if err != nil {
		return l.findBeyond(ctx, err, who, req)
	}
	defer func() { done(err) }()
	began := time.Now()
	ctx, span := startAcquire(onBehalfOf(ctx, who), l.tracer, req)
	waiting := beginWaiting(l.events, req)
	lease, err = l.service.Acquire(ctx, *req)
	waiting.end(err == nil)
	outcome := outcomeOf(err)
	switch {
	case err == nil && lease.Existing:
		outcome = outcomeExisting
	case outcome == outcomeTimeout && req.Poll > 0:
		outcome = outcomePolled
	}
	endAcquire(span, &lease, outcome)
	took := time.Since(began)
	l.metrics.acquired(req, outcome, took)
	l.remember(req, outcome, &lease, err, took)
	if err != nil {
		return lease, err
	}
	granted := lease.Acquired
	if !lease.Existing {
		granted = time.Now() // more exact than Acquired
		l.events.Granted(&lease)
	}
	l.follow(who, &lease, granted)
	return lease, nil
}

// findBeyond is an acquire of a caller that has reached a limit: only a request that
// repeats another one gets an answer, since it takes nothing more.
func (l *lifecycle) findBeyond(ctx context.Context, limit error, who *access.Identity, req *lockcore.AcquireRequest) (lockcore.Lease, error) {
	if req.IdempotencyKey == "" {
		return lockcore.Lease{}, limit
	}
	lease, err := l.service.Find(onBehalfOf(ctx, who), *req)
	switch {
	case errors.Is(err, lockcore.ErrNotHeld):
		return lockcore.Lease{}, limit
	case err != nil:
		return lockcore.Lease{}, err
	}
	l.metrics.acquired(req, outcomeExisting, 0)
	l.follow(who, &lease, lease.Acquired)
	return lease, nil
}

// Cancel is Service.Cancel on behalf of who.
func (l *lifecycle) Cancel(ctx context.Context, who *access.Identity, req *lockcore.AcquireRequest) error {
	ended, err := l.service.Cancel(onBehalfOf(ctx, who), *req)
	l.waits.Drop(ownerOf(who), placesKey(req))
	for _, part := range ended {
		if lease := l.live.LimitedOf(part.Resource); lease.Owner == ownerOf(who) {
			l.live.Free(lease.ID)
		}
	}
	return err
}

// Break is Service.Break, whoever has the lease. A limited caller has room again, also if
// the resource was taken by the minimum hold of a released lease.
func (l *lifecycle) Break(ctx context.Context, resource string, token fencing.Token) error {
	lease := l.live.LimitedOf(resource)
	ends, holder := l.leaseToBreak(ctx, resource, token)
	err := l.service.Break(ctx, resource, token)
	if err == nil {
		l.live.Free(lease.ID)
		l.metrics.breaks.Inc()
		l.events.Broken(resource, ends, holder)
	}
	return err
}

// leaseToBreak is the token and the holder of the lease that a break with the token ends, as
// far as is known; they are for readers of events.
func (l *lifecycle) leaseToBreak(ctx context.Context, resource string, token fencing.Token) (ends fencing.Token, holder string) {
	if !l.events.Listened() {
		return token, ""
	}
	if held, err := l.service.Inspect(ctx, resource); err == nil && held.Held && (token == 0 || token == held.Token) {
		return held.Token, held.Holder
	}
	return token, ""
}

// Extend extends a lease on behalf of who. Errors: of Service.Open and of OpenedLease.Extend.
func (l *lifecycle) Extend(ctx context.Context, who *access.Identity, named named, ttl time.Duration) (lease lockcore.Lease, err error) {
	ctx = onBehalfOf(ctx, who)
	opened, err := named.open(ctx, l.service)
	if err == nil {
		lease, err = opened.Extend(ctx, ttl)
	}
	outcome := outcomeOf(err)
	l.metrics.extensions.count(outcome)
	switch outcome {
	case outcomeGranted:
		l.events.Extended(&lease)
		l.follow(who, &lease, lease.Acquired)
	case outcomeNotHeld:
		l.live.Remove(named.id)
		if opened != nil { // it was once granted
			l.metrics.lost[lostByExtend].Inc()
		}
	}
	return lease, err
}

// Release releases a lease on behalf of who, and returns for how long its resources stay
// taken. The Service publishes the event (sets.Config.Released), with the resources and
// tokens. Errors: of Service.Open and of OpenedLease.Release.
func (l *lifecycle) Release(ctx context.Context, who *access.Identity, named named) (taken time.Duration, err error) {
	ctx = onBehalfOf(ctx, who)
	opened, err := named.open(ctx, l.service)
	if err == nil {
		err = opened.Release(ctx)
	}
	outcome := outcomeOf(err)
	if err == nil {
		outcome = outcomeReleased
	}
	l.metrics.releases.count(outcome)
	switch outcome {
	case outcomeReleased:
		terms, now := opened.Terms(), time.Now()
		taken = takenFor(terms)
		if lease, known := l.live.Release(named.id, now.Add(taken), now); known {
			l.ended(lease.Resource, lease.Granted)
		} else { // granted by another server, or before a restart
			l.ended(terms.Parts[0].Resource, terms.Granted)
		}
	case outcomeNotHeld:
		// A repeated release finds nothing, too: a lease counts as lost only if this
		// server took it to be held.
		if _, known := l.live.Remove(named.id); known {
			l.metrics.lost[lostByRelease].Inc()
		}
	}
	return taken, err
}

// takenFor is what is left of the minimum hold. The granting server's clock may be ahead of
// this one's.
func takenFor(terms lockcore.LeaseTerms) time.Duration {
	return max(0, min(terms.MinHold, terms.MinHold-time.Since(terms.Granted)))
}

// admit begins an acquire within the limits of its caller and of this server; done must be
// called when it ends. Errors: *access.LimitError, lockcore.ErrTooManyWaiters.
func (l *lifecycle) admit(ctx context.Context, who *access.Identity, req *lockcore.AcquireRequest) (done func(error), err error) {
	leave := func(error) {}
	if req.Wait > 0 {
		if leave, err = l.enterQueue(ctx, who, req); err != nil {
			return nil, err
		}
	}
	if who == nil || who.MaxHeld() == 0 {
		return leave, nil
	}
	if !l.live.Reserve(who.Name(), who.MaxHeld(), time.Now()) {
		leave(nil)
		return nil, who.TooManyHeld()
	}
	return func(err error) {
		l.live.Unreserve(who.Name())
		leave(err)
	}, nil
}

// enterQueue counts the places of a request that is about to wait.
func (l *lifecycle) enterQueue(ctx context.Context, who *access.Identity, req *lockcore.AcquireRequest) (leave func(error), err error) {
	entry := places.Request{Caller: ownerOf(who), Places: max(1, req.Slots)}
	if who != nil {
		entry.Waiters = who.MaxWaiters()
	}
	if req.IdempotencyKey != "" {
		entry.Key = placesKey(req)
		ended := lockcore.AcquireRequest{Resource: req.Resource, Resources: req.Resources, Slots: req.Slots, Holder: req.Holder, IdempotencyKey: req.IdempotencyKey}
		caller := onBehalfOf(context.WithoutCancel(ctx), who)
		entry.Forget = func() { l.forgetPlace(caller, ended) }
	}
	left, err := l.waits.Enter(entry)
	var limit *places.LimitError
	switch {
	case errors.As(err, &limit):
		return nil, access.TooManyWaiters(limit.Max)
	case err != nil:
		return nil, lockcore.ErrTooManyWaiters
	}
	return func(err error) { left(err != nil) }, nil
}

// placesKey tells a caller's requests under idempotency keys apart, as their places.
func placesKey(req *lockcore.AcquireRequest) string {
	return fmt.Sprintf("%s\x00%d\x00%s\x00%s", req.IdempotencyKey, req.Slots, req.Resource, strings.Join(req.Resources, "\x00"))
}

// forgetPlace is a moment's work: the nodes are told in the background. Without a quorum the
// place stays, and nobody is granted anything.
func (l *lifecycle) forgetPlace(ctx context.Context, req lockcore.AcquireRequest) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	_ = l.service.ForgetPlace(ctx, req)
}

// follow puts a lease into the table. The nodes may have counted its TTL from a
// moment before now, never after.
func (l *lifecycle) follow(who *access.Identity, lease *lockcore.Lease, granted time.Time) {
	entry := leases.Lease{ID: lease.ID, Resource: lease.Resource, Granted: granted}
	if len(lease.Parts) > 0 {
		entry.Resource = lease.Parts[0].Resource
	}
	entry.Owner, entry.Limited = ownerOf(who), who != nil && who.MaxHeld() > 0
	if !l.live.Put(entry, time.Now().Add(lease.TTL)) {
		l.metrics.unseen.Inc()
	}
}

// ownerOf is the caller's name in the table; "" without access control.
func ownerOf(who *access.Identity) string {
	if who == nil {
		return ""
	}
	return who.Name()
}

// How often leases whose TTL has passed are collected, and how many of them may
// wait for a request to the nodes; the others count as unseen.
const (
	expiryPause  = 250 * time.Millisecond
	maxUnsettled = 250
)

// run finds out how leases ended whose TTL passes, until ctx ends.
func (l *lifecycle) run(ctx context.Context) {
	expired := make(chan leases.Lease, maxUnsettled)
	var settling sync.WaitGroup
	settling.Go(func() {
		for lease := range expired {
			l.settle(ctx, lease)
		}
	})
	defer settling.Wait()
	defer close(expired)
	tick := time.NewTicker(expiryPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, lease := range l.live.Expired(now) {
				select {
				case expired <- lease:
				default:
					l.metrics.unseen.Inc()
				}
			}
		}
	}
}

// settle asks the nodes how a lease ended: it expired, or another server has extended
// or released it.
func (l *lifecycle) settle(ctx context.Context, lease leases.Lease) {
	opened, err := l.service.Open(lockcore.WithCaller(ctx, lease.Owner), lease.ID)
	if err != nil {
		l.metrics.unseen.Inc()
		return
	}
	switch end, err := opened.End(ctx); {
	case err != nil || end == lockcore.EndUnknown:
		l.metrics.unseen.Inc()
	case end == lockcore.EndExpired:
		l.metrics.lost[lostByExpiry].Inc()
		l.activity.Ended(time.Now(), lease.Resource, time.Since(lease.Granted))
		l.events.Expired(opened.Terms())
	}
}

// ended counts how long a lease was held that has been released now.
func (l *lifecycle) ended(resource string, granted time.Time) {
	now := time.Now()
	held := max(0, now.Sub(granted))
	l.metrics.held(resource, held)
	l.activity.Ended(now, resource, held)
}
