package conformance

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// What the service does with a request. It follows openapi.yaml, as far as one client with one resource
// can notice.

// defaultTTL is the TTL of a lease if the request gives none.
const defaultTTL = 3 * time.Second

// answeredLease is a lease with an additional field that no client knows: later versions of the service
// may add fields.
type answeredLease struct {
	wire.Lease
	Later map[string]any `json:"added_in_a_later_version"`
}

func (v *service) act(ctx context.Context, req *request, f fault) (status int, body any) {
	switch req.call {
	case acquire:
		return v.acquire(ctx, req, f)
	case cancel:
		return v.cancel(req)
	case extend, lookup:
		return v.renew(req, f)
	case release:
		return v.release(req)
	case inspect:
		return v.inspect()
	case probe:
		return http.StatusOK, map[string]string{"status": "ok"}
	case unknown:
	}
	return http.StatusNotFound, problem(http.StatusNotFound, "not-found", "")
}

func (v *service) acquire(ctx context.Context, req *request, f fault) (status int, body any) {
	begun := time.Now()
	wait := req.waits
	if v.scenario.longestPoll > 0 {
		wait = min(wait, v.scenario.longestPoll)
	}
	for {
		status, body, until, changed := v.grant(req, begun, f)
		left := wait - time.Since(begun)
		if status != http.StatusConflict || left <= 0 || v.isFrozen(req.server) {
			return status, body
		}
		timer := time.NewTimer(min(left, time.Until(until)+time.Millisecond))
		select {
		case <-ctx.Done():
			timer.Stop()
			return status, body
		case <-v.over:
			timer.Stop()
			return status, body
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// grant tries once to grant the resource. If the resource is held, it returns the time when that lease
// ends.
func (v *service) grant(req *request, begun time.Time, f fault) (status int, body any, until time.Time, changed chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	ttl := defaultTTL
	if req.body.TTLMS != nil {
		ttl = time.Duration(*req.body.TTLMS) * time.Millisecond
	}
	if found := v.keys[req.key]; req.key != "" && found != nil && found.live() {
		v.tokens++ // a retry may raise the token
		found.token, found.until = v.tokens, time.Now().Add(found.ttl)
		return http.StatusOK, v.lease(found, begun, f), time.Time{}, nil
	}
	for _, other := range v.leases {
		if other.live() && other.resource == req.body.Resource {
			kind := "lock-held"
			if time.Since(begun) > time.Millisecond {
				kind = "wait-timeout"
			}
			refusal := problem(http.StatusConflict, kind, req.body.Resource)
			if kind == "wait-timeout" {
				refusal.WaitDetails = &wire.WaitDetails{Queued: req.waits < time.Duration(value(req.body.WaitMS))*time.Millisecond, Position: 1, WaitedMS: time.Since(begun).Milliseconds()}
			}
			return http.StatusConflict, refusal, other.until, v.changed
		}
	}
	v.tokens++
	g := &grant{
		id: fmt.Sprintf("secret-lease-%d", v.tokens), key: req.key, resource: req.body.Resource,
		token: v.tokens, ttl: ttl, until: time.Now().Add(ttl),
	}
	if v.scenario.maxHold > 0 {
		g.capped = time.Now().Add(v.scenario.maxHold)
	}
	v.leases[g.id], v.keys[g.key] = g, g
	return http.StatusCreated, v.lease(g, begun, f), time.Time{}, nil
}

// lease returns a grant as its holder sees it. The caller holds mu.
func (v *service) lease(g *grant, begun time.Time, f fault) answeredLease {
	validity := time.Until(g.until)
	if f.validity > 0 {
		validity = f.validity
		g.until = time.Now().Add(validity)
	}
	l := answeredLease{Later: map[string]any{"x": []int{1}}, Lease: wire.Lease{
		Kind: wire.KindLease, Resource: g.resource, LeaseID: g.id, FencingToken: g.token, FencingProof: "k1.secret-proof",
		TTLMS: g.ttl.Milliseconds(), ValidityMS: validity.Milliseconds(), WaitedMS: time.Since(begun).Milliseconds(),
	}}
	if !g.capped.IsZero() {
		left := max(0, time.Until(g.capped).Milliseconds())
		l.MaxHoldRemainingMS = &left
	}
	return l
}

// cancel ends the lease that was granted to the request's key.
func (v *service) cancel(req *request) (status int, body any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if found := v.keys[req.key]; found != nil && found.live() {
		found.ended = true
		v.wake()
	}
	return http.StatusNoContent, nil
}

// renew extends a lease, or reads it.
func (v *service) renew(req *request, f fault) (status int, body any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	g := v.leases[req.lease]
	if f.ends && g != nil {
		g.ended = true
		v.wake()
	}
	if g == nil || !g.live() {
		return http.StatusNotFound, problem(http.StatusNotFound, "lease-not-held", "")
	}
	if req.call == extend {
		if req.body.TTLMS != nil {
			g.ttl = time.Duration(*req.body.TTLMS) * time.Millisecond
		}
		g.until = time.Now().Add(g.ttl)
		if !g.capped.IsZero() && g.until.After(g.capped) {
			g.until = g.capped
		}
	}
	return http.StatusOK, v.lease(g, time.Now(), f)
}

func (v *service) release(req *request) (status int, body any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	g := v.leases[req.lease]
	if g == nil || !g.live() {
		return http.StatusNotFound, problem(http.StatusNotFound, "lease-not-held", "")
	}
	g.ended = true
	v.wake()
	return http.StatusNoContent, nil
}

// inspect shows the lock of the resource.
func (v *service) inspect() (status int, body any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	shown := wire.Lock{Resource: resource, Queue: []wire.Waiter{}}
	for _, g := range v.leases {
		if g.resource == resource && g.live() {
			left := time.Until(g.until).Milliseconds()
			shown.Held, shown.FencingToken, shown.RemainingMS = true, g.token, &left
		}
	}
	return http.StatusOK, shown
}

// left returns the ids of the client's leases that have not ended.
func (v *service) left() (ids []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, g := range v.leases {
		if id != another && g.live() {
			ids = append(ids, id)
		}
	}
	return ids
}

func problem(status int, kind, resource string) wire.Problem {
	return wire.Problem{
		Type: wire.ProblemPrefix + kind, Title: "A scripted refusal", Status: status, Detail: "the scenario says so", Resource: resource,
	}
}

func value(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}
