package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/servicetest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestService holds the API against the suite of what it serves.
func TestService(t *testing.T) {
	var lines []string
	for _, caller := range servicetest.Callers {
		lines = append(lines, line(caller, "admin=*"))
	}
	servicetest.Run(t, func(t *testing.T) lockcore.Service {
		t.Helper()
		s := newRealService(t, withAccess(t, lines...))
		return &remote{Service: s.handler.Service, s: s}
	})
}

// remote is a lockcore.Service over HTTP. What HTTP does not have it takes from the
// Service behind the API: Open, OpenedLease.End, Status and ListRequest.Show.
type remote struct {
	lockcore.Service
	s *service
}

// call sends a request on behalf of the caller, and reads the answer.
func (r *remote) call(ctx context.Context, caller, method, path string, body any, into any, header ...string) (status int, err error) {
	text := []byte(nil)
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return 0, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, r.s.url+path, strings.NewReader(string(text)))
	if err != nil {
		return 0, err
	}
	for _, l := range append(header, "Content-Type: application/json", bearer(caller)) {
		name, value, _ := strings.Cut(l, ": ")
		req.Header.Set(name, value)
	}
	resp, err := r.s.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return resp.StatusCode, errorOf(answer)
	}
	if into != nil {
		err = json.Unmarshal(answer, into)
	}
	return resp.StatusCode, err
}

// errorOf is the error that the problem was made of.
func errorOf(answer []byte) error {
	var p wire.Problem
	if err := json.Unmarshal(answer, &p); err != nil {
		return err
	}
	held := lockcore.HeldError{Resource: p.Resource}
	if p.HeldDetails != nil {
		held.Holder, held.Token, held.Remaining, held.Waiters = p.Holder, fencing.Token(p.FencingToken), ms(p.RemainingMS), p.Waiters
	}
	switch strings.TrimPrefix(p.Type, wire.ProblemPrefix) {
	case "invalid-request":
		return &lockcore.FieldError{Field: p.Field, Reason: p.Detail}
	case "lock-held":
		return &held
	case "wait-timeout":
		return &lockcore.WaitTimeoutError{HeldError: held, Position: p.Position, Waited: ms(p.WaitedMS), Kept: p.Queued}
	case "other-lease":
		return &lockcore.OtherLeaseError{HeldError: held}
	case "lease-not-held", "lock-not-held":
		return lockcore.ErrNotHeld
	case "idempotency-mismatch":
		return lockcore.ErrIdempotencyMismatch
	}
	return errors.New(string(answer))
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func millisOf(d time.Duration) *int64 {
	n := d.Milliseconds()
	if n == 0 {
		return nil
	}
	return &n
}

func leaseOf(w wire.Lease, existing bool) lockcore.Lease {
	l := lockcore.Lease{
		Resource: w.Resource, ID: w.LeaseID, Token: fencing.Token(w.FencingToken), TTL: ms(w.TTLMS), Validity: ms(w.ValidityMS),
		Waited: ms(w.WaitedMS), Holder: w.Holder, Metadata: w.Metadata, Existing: existing, MaxHoldRemaining: -1,
	}
	if w.MaxHoldRemainingMS != nil {
		l.MaxHoldRemaining = ms(*w.MaxHoldRemainingMS)
	}
	for _, part := range w.Resources {
		l.Parts = append(l.Parts, lockcore.LeasePart{Resource: part.Resource, Token: fencing.Token(part.FencingToken)})
	}
	return l
}

func stateOf(w wire.Lock) lockcore.LockState {
	s := lockcore.LockState{Resource: w.Resource, Held: w.Held, Token: fencing.Token(w.FencingToken), Metadata: w.Metadata, Waiting: w.Waiters}
	if w.Held {
		s.Holder, s.Remaining, s.TTL = *w.Holder, ms(*w.RemainingMS), ms(*w.TTLMS)
	}
	for _, waiter := range w.Queue {
		s.Waiters = append(s.Waiters, lockcore.Waiter{Holder: waiter.Holder, WaitingFor: ms(waiter.WaitingMS)})
	}
	return s
}

func (r *remote) Acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	var granted wire.Lease
	status, err := r.call(ctx, req.Caller.Name(), "POST", "/locks", bodyOf(req), &granted, keyOf(req)...)
	return leaseOf(granted, status == http.StatusOK), err
}

// Cancel does not get to know what it ended.
func (r *remote) Cancel(ctx context.Context, req lockcore.Request) ([]lockcore.LeasePart, error) {
	_, err := r.call(ctx, req.Caller.Name(), "POST", "/cancel", bodyOf(req), nil, keyOf(req)...)
	return nil, err
}

func bodyOf(req lockcore.Request) wire.AcquireRequest {
	return wire.AcquireRequest{
		Resource: req.Resource, Resources: req.Resources, Slots: req.Slots, TTLMS: millisOf(req.TTL), WaitMS: millisOf(req.Wait),
		MinHoldMS: millisOf(req.MinHold), MaxHoldMS: millisOf(req.MaxHold), Holder: req.Holder, Metadata: req.Metadata,
	}
}

func keyOf(req lockcore.Request) []string {
	if req.IdempotencyKey == "" {
		return nil
	}
	header := []string{"Idempotency-Key: " + req.IdempotencyKey}
	if req.Poll > 0 {
		header = append(header, fmt.Sprintf("Prefer: wait=%d", int(req.Poll.Seconds())))
	}
	return header
}

// Open returns a lease with the error, too: see servicetest.
func (r *remote) Open(ctx context.Context, caller lockcore.Caller, id string) (lockcore.OpenedLease, error) {
	opened, err := r.Service.Open(ctx, caller, id)
	return &remoteLease{OpenedLease: opened, remote: r, caller: caller.Name(), id: "Fencelock-Lease: " + id}, err
}

// remoteLease is a lease over HTTP, which has the server open its id with each request.
type remoteLease struct {
	lockcore.OpenedLease // nil if the id does not open
	remote               *remote
	caller               string
	id                   string // as a header
}

func (l *remoteLease) Extend(ctx context.Context, ttl time.Duration) (lockcore.Lease, error) {
	var lease wire.Lease
	_, err := l.remote.call(ctx, l.caller, "POST", "/leases/current/extend", wire.ExtendRequest{TTLMS: millisOf(ttl)}, &lease, l.id)
	return leaseOf(lease, false), err
}

// Release does not get to know what it ended.
func (l *remoteLease) Release(ctx context.Context) ([]lockcore.LeasePart, error) {
	_, err := l.remote.call(ctx, l.caller, "DELETE", "/leases/current", nil, nil, l.id)
	return nil, err
}

func (l *remoteLease) Now(ctx context.Context) (lockcore.Lease, error) {
	var lease wire.Lease
	_, err := l.remote.call(ctx, l.caller, "GET", "/leases/current", nil, &lease, l.id)
	return leaseOf(lease, false), err
}

func (r *remote) Inspect(ctx context.Context, resource string) (lockcore.LockState, error) {
	var lock wire.Lock
	_, err := r.call(ctx, servicetest.Callers[0], "GET", "/locks/"+url.PathEscape(resource), nil, &lock)
	return stateOf(lock), err
}

func (r *remote) List(ctx context.Context, req lockcore.ListRequest) (page lockcore.LockPage, err error) {
	if req.Show != nil {
		return r.Service.List(ctx, req)
	}
	query := url.Values{"prefix": {req.Prefix}, "limit": {fmt.Sprint(req.Limit)}}
	if req.Cursor != "" {
		query.Set("cursor", req.Cursor)
	}
	var w wire.LockPage
	_, err = r.call(ctx, req.Caller.Name(), "GET", "/locks?"+query.Encode(), nil, &w)
	for _, lock := range w.Locks {
		page.Locks = append(page.Locks, stateOf(lock))
	}
	page.NextCursor = w.NextCursor
	return page, err
}

func (r *remote) Break(ctx context.Context, resource string, token fencing.Token) error {
	_, err := r.call(ctx, servicetest.Callers[0], "POST", "/breaks", wire.BreakRequest{Resource: resource, FencingToken: int64(token), Any: token == 0}, nil)
	return err
}
