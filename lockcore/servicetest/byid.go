package servicetest

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// ByID calls a Service in a form that is convenient for tests: leases are named by their ids, and a call acts
// for the caller in its context, or for lockcore.Everyone if there is none. A test embeds it next to the
// Service.
type ByID struct{ Calls }

// Calls are the calls of a Service that name a caller.
type Calls interface {
	Acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error)
	Cancel(ctx context.Context, req lockcore.Request) ([]lockcore.LeasePart, error)
	Find(ctx context.Context, req lockcore.Request) (lockcore.Lease, error)
	ForgetPlace(ctx context.Context, req lockcore.Request) error
	Open(ctx context.Context, caller lockcore.Caller, leaseID string) (lockcore.OpenedLease, error)
}

type callerKey struct{}

// WithCaller makes calls of a ByID under ctx act for the caller of that name.
func WithCaller(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callerKey{}, lockcore.CallerNamed(name))
}

func callerOf(ctx context.Context) lockcore.Caller {
	if caller, ok := ctx.Value(callerKey{}).(lockcore.Caller); ok {
		return caller
	}
	return lockcore.Everyone
}

// Acquire implements lockcore.Service.
func (s ByID) Acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	req.Caller = callerOf(ctx)
	return s.Calls.Acquire(ctx, req)
}

// Cancel implements lockcore.Service.
func (s ByID) Cancel(ctx context.Context, req lockcore.Request) ([]lockcore.LeasePart, error) {
	req.Caller = callerOf(ctx)
	return s.Calls.Cancel(ctx, req)
}

// Find implements lockcore.Service.
func (s ByID) Find(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	req.Caller = callerOf(ctx)
	return s.Calls.Find(ctx, req)
}

// ForgetPlace implements lockcore.Service.
func (s ByID) ForgetPlace(ctx context.Context, req lockcore.Request) error {
	req.Caller = callerOf(ctx)
	return s.Calls.ForgetPlace(ctx, req)
}

// Open implements lockcore.Service.
func (s ByID) Open(ctx context.Context, id string) (lockcore.OpenedLease, error) {
	return s.Calls.Open(ctx, callerOf(ctx), id)
}

// Extend opens the lease id and extends its lease. A service over HTTP opens any id, so its server must refuse
// each request with a bad one.
func (s ByID) Extend(ctx context.Context, id string, ttl time.Duration) (lockcore.Lease, error) {
	l, err := s.Open(ctx, id)
	if l == nil {
		return lockcore.Lease{}, err
	}
	return l.Extend(ctx, ttl)
}

// Release opens the lease id and releases its lease.
func (s ByID) Release(ctx context.Context, id string) error {
	l, err := s.Open(ctx, id)
	if l == nil {
		return err
	}
	_, err = l.Release(ctx)
	return err
}

// Lease opens the lease id and returns the present state of its lease.
func (s ByID) Lease(ctx context.Context, id string) (lockcore.Lease, error) {
	l, err := s.Open(ctx, id)
	if l == nil {
		return lockcore.Lease{}, err
	}
	return l.Now(ctx)
}

// EndOf opens the lease id and returns how its lease ended.
func (s ByID) EndOf(ctx context.Context, id string) (lockcore.End, error) {
	l, err := s.Open(ctx, id)
	if l == nil {
		return lockcore.EndUnknown, err
	}
	return l.End(ctx)
}
