package lockcore

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// Service grants leases. It is the interface that the API calls, independent of where locks are kept. Its
// methods may be called from any goroutine. Every error is one of those named, wraps ctx.Err(), or is
// ErrNoCaller.
//
// sets.Locker implements it.
type Service interface {
	// Limits returns the bounds of requests.
	Limits() Limits
	// Acquire grants a lease or returns why not. It checks the request (Limits.Check) unless that has been
	// done. It gets its own copy. Errors: a *FieldError for each field out of bounds, *HeldError,
	// ErrIdempotencyMismatch, ErrTokensExhausted, *QuorumError (safe to repeat). With req.Wait it waits in the
	// queue for that long, and may also return *WaitTimeoutError and ErrStopping. Without
	// it, Acquire never overtakes the queue. With req.Resources it grants all of them or none. After an error
	// nothing stays granted.
	Acquire(ctx context.Context, req Request) (Lease, error)
	// Cancel ends everything that exists under the request's IdempotencyKey for its resources: a lease, the
	// parts of a bundle that were taken so far, and the place in the queue. Use it for a request whose
	// response was lost or is no longer wanted. It reads only the resources and the key of the request. It
	// returns the released parts, possibly none. An acquire under the key that is still in progress may be
	// granted afterwards. Errors: *FieldError, *QuorumError (safe to repeat).
	Cancel(ctx context.Context, req Request) ([]LeasePart, error)
	// ForgetPlace ends the place in the queue that a request under an idempotency key has left (see
	// Request.IdempotencyKey), unless the request was repeated, at this or another server. Errors:
	// *FieldError, *QuorumError (the place may be kept).
	ForgetPlace(ctx context.Context, req Request) error
	// Find returns the live lease of the request's IdempotencyKey, as Acquire would, but grants none. Errors:
	// *FieldError, ErrNotHeld, ErrIdempotencyMismatch, *QuorumError.
	Find(ctx context.Context, req Request) (Lease, error)
	// Open verifies a lease id. It does not check whether the lease is still alive. Errors: ErrNotHeld (the id
	// is not one of the caller's), *QuorumError.
	Open(ctx context.Context, caller Caller, leaseID string) (OpenedLease, error)
	// Inspect returns the public state of a resource. Errors: *FieldError, *QuorumError.
	Inspect(ctx context.Context, resource string) (LockState, error)
	// List returns a page of the held resources. Errors: *FieldError, *QuorumError.
	List(ctx context.Context, req ListRequest) (LockPage, error)
	// Break ends the lease with this token on the resource, and no later one, so it is safe to repeat. With
	// token 0 it ends any lease that holds the resource, and a repetition ends the next one, too. The next
	// token is still larger. Errors: *FieldError, ErrNotHeld, *OtherLeaseError (another lease holds the
	// resource), *QuorumError (the lease may have ended).
	Break(ctx context.Context, resource string, token fencing.Token) error
	// Observe checks the nodes and returns the Status of this moment. It takes a fraction of a second if a
	// node does not respond.
	Observe(ctx context.Context) ClusterStatus
	// Status reports whether the service may grant anything, and why not.
	Status() ClusterStatus
}

// OpenedLease is a lease whose id was verified for its caller. Its methods do not verify it again.
type OpenedLease interface {
	// ID is the lease id.
	ID() string
	// Terms returns the content of the id.
	Terms() LeaseTerms
	// Extend gives the lease a new TTL, counted from now. With 0 it uses the last TTL, and returns ErrNotHeld
	// if the lease has expired. The token stays the same. For several resources it extends all, or ends all
	// (*EndedError). Errors: *FieldError, ErrNotHeld (final), ErrMaxHold (the lease ends with its present
	// TTL), *QuorumError (safe to repeat).
	Extend(ctx context.Context, ttl time.Duration) (Lease, error)
	// Release ends the lease and returns the parts that it released; after an error, possibly only some. If
	// MinHold has not passed, the resource stays locked until then. Errors: ErrNotHeld, *QuorumError (safe to
	// repeat).
	Release(ctx context.Context) ([]LeasePart, error)
	// Now returns the lease in its present state. Errors: ErrNotHeld, *QuorumError.
	Now(ctx context.Context) (Lease, error)
	// End returns how a lease ended whose release was not seen. Errors: *QuorumError.
	End(ctx context.Context) (End, error)
}
