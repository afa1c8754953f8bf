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
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// lifecycle surrounds the Service's calls that begin, extend and end leases. Before a call it checks the
// limits of the caller and of this server. After the call, one method (acquired, extended, released)
// reports the result to all sinks: metrics, activity, events, and the table of live leases. No other code
// reports to them.
type lifecycle struct {
	service lockcore.Service
	live    leases.Table
	waits   *places.Table
	metrics *lockMetrics
	events  *events.Hub
	tracer  trace.Tracer // nil for none

	activity activity.Log
}

// Acquire is Service.Acquire on behalf of who, within who's limits. who is nil without access control. It
// may also return a *access.LimitError.
func (l *lifecycle) Acquire(ctx context.Context, who *access.Identity, req *lockcore.Request) (lease lockcore.Lease, err error) {
	done, err := l.admit(ctx, who, req)
	if err != nil {
		return l.findBeyond(ctx, err, who, req)
	}
	defer func() { done(err) }()
	began := time.Now()
	ctx, span := startAcquire(ctx, l.tracer, req)
	waiting := beginWaiting(l.events, req)
	lease, err = l.service.Acquire(ctx, *req)
	waiting.end(err == nil)
	outcome := l.acquired(who, req, &lease, err, time.Since(began))
	endAcquire(span, &lease, outcome)
	return lease, err
}

// acquired reports the result of an acquire and its duration to the sinks. It returns the outcome.
func (l *lifecycle) acquired(who *access.Identity, req *lockcore.Request, lease *lockcore.Lease, err error, took time.Duration) (outcome string) {
	outcome = outcomeOf(err)
	switch {
	case err == nil && lease.Existing:
		outcome = outcomeExisting
	case outcome == outcomeTimeout && req.Poll > 0:
		outcome = outcomePolled
	}
	l.metrics.acquired(req, outcome, took)
	l.remember(req, outcome, lease, err, took)
	switch outcome {
	case outcomeGranted:
		l.events.Granted(lease)
		l.follow(req.Caller, who, lease, time.Now()) // the present time is more exact than lease.Acquired
	case outcomeExisting:
		l.follow(req.Caller, who, lease, lease.Acquired)
	}
	return outcome
}

// findBeyond is an acquire of a caller that has reached a limit. It succeeds only if the request repeats an
// earlier one that was granted, because it then takes no further resource.
func (l *lifecycle) findBeyond(ctx context.Context, limit error, who *access.Identity, req *lockcore.Request) (lockcore.Lease, error) {
	if req.IdempotencyKey == "" {
		return lockcore.Lease{}, limit
	}
	lease, err := l.service.Find(ctx, *req)
	switch {
	case errors.Is(err, lockcore.ErrNotHeld):
		return lockcore.Lease{}, limit
	case err != nil:
		return lockcore.Lease{}, err
	}
	l.acquired(who, req, &lease, nil, 0)
	return lease, nil
}

// Cancel calls Service.Cancel.
func (l *lifecycle) Cancel(ctx context.Context, _ *access.Identity, req *lockcore.Request) error {
	ended, err := l.service.Cancel(ctx, *req)
	l.events.Released(ended)
	l.waits.Drop(req.Caller.Name(), placesKey(req))
	for _, part := range ended {
		if lease := l.live.LimitedOf(part.Resource); lease.Caller == req.Caller {
			l.live.Free(lease.ID)
		}
	}
	return err
}

// Break is Service.Break, whoever holds the lease. It gives a caller with a limit room again, even if the
// resource was only kept taken by the minimum hold of a released lease.
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

// leaseToBreak returns the token and the holder of the lease that a break ends, as far as they are known.
// Only events need them.
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
	opened, err := named.open(ctx, l.service)
	if err == nil {
		lease, err = opened.Extend(ctx, ttl)
	}
	l.extended(who, &named, &lease, err)
	return lease, err
}

// extended reports the result of an extend to the sinks.
func (l *lifecycle) extended(who *access.Identity, of *named, lease *lockcore.Lease, err error) {
	outcome := outcomeOf(err)
	l.metrics.extensions.count(outcome)
	switch outcome {
	case outcomeGranted:
		l.events.Extended(lease)
		l.follow(of.caller, who, lease, lease.Acquired)
	case outcomeNotHeld:
		l.live.Remove(of.id)
		if of.opened != nil { // the id is valid, so the lease was granted once
			l.metrics.lost[lostByExtend].Inc()
		}
	}
	if rest, ok := errors.AsType[*lockcore.EndedError](err); ok {
		l.events.Released(rest.Ended)
	}
}

// Release releases a lease, and returns how long its resources stay taken. Errors: those of Service.Open
// and of OpenedLease.Release.
func (l *lifecycle) Release(ctx context.Context, named named) (taken time.Duration, err error) {
	var ended []lockcore.LeasePart
	opened, err := named.open(ctx, l.service)
	if err == nil {
		ended, err = opened.Release(ctx)
	}
	return l.released(&named, ended, err), err
}

// released reports the result of a release to the sinks. A release that fails may have ended some of
// several resources. It returns how long the resources stay taken.
func (l *lifecycle) released(of *named, ended []lockcore.LeasePart, err error) (taken time.Duration) {
	outcome := outcomeOf(err)
	if err == nil {
		outcome = outcomeReleased
	}
	l.metrics.releases.count(outcome)
	l.events.Released(ended)
	switch outcome {
	case outcomeReleased:
		terms, now := of.opened.Terms(), time.Now()
		taken = takenFor(terms)
		if lease, known := l.live.Release(of.id, now.Add(taken), now); known {
			l.ended(lease.Resource, lease.Granted)
		} else { // granted by another server, or before a restart of this one
			l.ended(terms.Parts[0].Resource, terms.Granted)
		}
	case outcomeNotHeld:
		// A repeated release does not find the lease either, so a lease counts as lost only if this server
		// still had it as held.
		if _, known := l.live.Remove(of.id); known {
			l.metrics.lost[lostByRelease].Inc()
		}
	}
	return taken
}

// takenFor returns the rest of the minimum hold. It allows for a granting server whose clock is ahead of
// this server's.
func takenFor(terms lockcore.LeaseTerms) time.Duration {
	return max(0, min(terms.MinHold, terms.MinHold-time.Since(terms.Granted)))
}

// admit begins an acquire within the limits of its caller and of this server. Call done when it ends.
// Errors: *access.LimitError, lockcore.ErrTooManyWaiters.
func (l *lifecycle) admit(ctx context.Context, who *access.Identity, req *lockcore.Request) (done func(error), err error) {
	leave := func(error) {}
	if req.Wait > 0 {
		if leave, err = l.enterQueue(ctx, who, req); err != nil {
			return nil, err
		}
	}
	if who == nil || who.MaxHeld() == 0 {
		return leave, nil
	}
	caller, resources := req.Caller, max(1, len(req.Resources)) // the request itself would go to the heap
	if !l.live.Reserve(caller, resources, who.MaxHeld(), time.Now()) {
		leave(nil)
		return nil, who.TooManyHeld()
	}
	return func(err error) {
		l.live.Unreserve(caller, resources)
		leave(err)
	}, nil
}

// enterQueue counts the places of a request that is about to wait.
func (l *lifecycle) enterQueue(ctx context.Context, who *access.Identity, req *lockcore.Request) (leave func(error), err error) {
	entry := places.Request{Caller: req.Caller.Name(), Places: max(1, req.Slots), Resources: max(1, len(req.Resources))}
	if who != nil {
		entry.Waiters = who.MaxWaiters()
	}
	if req.IdempotencyKey != "" {
		entry.Key = placesKey(req)
		left := *req
		outlasting := context.WithoutCancel(ctx)
		entry.Forget = func() { l.forgetPlace(outlasting, left) }
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

// placesKey identifies a caller's request under an idempotency key, for its places.
func placesKey(req *lockcore.Request) string {
	return fmt.Sprintf("%s\x00%d\x00%s\x00%s", req.IdempotencyKey, req.Slots, req.Resource, strings.Join(req.Resources, "\x00"))
}

// forgetPlace makes the nodes forget the request's place. It takes a moment only, because messages to nodes
// are sent in the background. Without a quorum the place stays, but then nothing is granted anyway.
func (l *lifecycle) forgetPlace(ctx context.Context, req lockcore.Request) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	_ = l.service.ForgetPlace(ctx, req)
}

// follow adds a lease to the table. The nodes may have counted its TTL from a moment earlier, never later.
func (l *lifecycle) follow(caller lockcore.Caller, who *access.Identity, lease *lockcore.Lease, granted time.Time) {
	entry := leases.Lease{ID: lease.ID, Resource: lease.Resource, Granted: granted}
	if len(lease.Parts) > 0 {
		entry.Resource = lease.Parts[0].Resource
	}
	entry.Caller = caller
	if who != nil && who.MaxHeld() > 0 {
		entry.Counts = max(1, len(lease.Parts))
	}
	if !l.live.Put(entry, time.Now().Add(lease.TTL)) {
		l.metrics.unseen.Inc()
	}
}

// How often leases whose TTL has passed are collected, and how many of them may wait for the question to the
// nodes. If there are more, the outcome of the others is counted as unseen.
const (
	expiryPause  = 250 * time.Millisecond
	maxUnsettled = 250
)

// run finds out how leases ended after their TTL had passed, until ctx ends.
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

// settle asks the nodes how a lease ended: it expired, or another server has extended or released it.
func (l *lifecycle) settle(ctx context.Context, lease leases.Lease) {
	opened, err := l.service.Open(ctx, lease.Caller, lease.ID)
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
		l.events.Expired(opened.Terms().Parts)
	}
}

// ended records how long a lease was held that has been released now.
func (l *lifecycle) ended(resource string, granted time.Time) {
	now := time.Now()
	held := max(0, now.Sub(granted))
	l.metrics.held(resource, held)
	l.activity.Ended(now, resource, held)
}

// publishWaitAfter is how long a request waits before an event reports the wait. Most requests are granted
// sooner.
const publishWaitAfter = 50 * time.Millisecond

// waiting is a request that waits while someone reads events; nil for any other request.
type waiting struct {
	hub   *events.Hub
	timer *time.Timer
	event wire.Event

	mu        sync.Mutex
	published bool
	ended     bool
}

func beginWaiting(hub *events.Hub, req *lockcore.Request) *waiting {
	if req.Wait == 0 || req.Resource == "" || !hub.Listened() { // a request for several resources waits for one after the other
		return nil
	}
	w := &waiting{hub: hub, event: wire.Event{Resource: req.Resource, Holder: req.Holder}}
	w.timer = time.AfterFunc(publishWaitAfter, w.publish)
	return w
}

func (w *waiting) publish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.published = true
		w.hub.Publish(events.Event{Kind: wire.EventWaiting, Event: w.event})
	}
}

// end publishes that a wait ended without a grant. A grant has its own event.
func (w *waiting) end(granted bool) {
	if w == nil {
		return
	}
	w.timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended = true; w.published && !granted {
		w.hub.Publish(events.Event{Kind: wire.EventLeft, Event: w.event})
	}
}

// remember records the outcome and duration of an acquire in the activity log.
func (l *lifecycle) remember(req *lockcore.Request, outcome string, lease *lockcore.Lease, err error, took time.Duration) {
	now := time.Now()
	waited := took
	if outcome == outcomeGranted {
		l.activity.Granted(now, max(1, len(lease.Parts)))
		waited = lease.Waited
	}
	switch {
	case outcome == outcomeHeld:
		waited = 0
	case req.Wait == 0 || waited < publishWaitAfter || outcome != outcomeGranted && !waitEnded(outcome):
		return
	}
	for _, resource := range inTheWay(req, err) {
		l.activity.Found(now, resource, waited)
	}
}

// inTheWay returns the resources that an acquire did not find free: the one that its refusal names,
// otherwise all.
func inTheWay(req *lockcore.Request, err error) []string {
	if held, ok := errors.AsType[*lockcore.HeldError](err); ok {
		return []string{held.Resource}
	}
	if timeout, ok := errors.AsType[*lockcore.WaitTimeoutError](err); ok {
		return []string{timeout.Resource}
	}
	if req.Resources == nil {
		return []string{req.Resource}
	}
	return req.Resources
}

// waitEnded reports whether a refusal ends a wait for a resource that another lease held.
func waitEnded(outcome string) bool {
	return outcome == outcomeTimeout || outcome == outcomePolled || outcome == outcomeGone
}
