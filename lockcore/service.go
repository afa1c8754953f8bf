package lockcore

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// Service takes leases: what the API calls, whatever keeps the locks. Its methods
// may be called from any goroutine. Every error is one of those named, or wraps
// ctx.Err(). A call acts for the caller that ctx names (WithCaller).
//
// sets.Locker is one.
type Service interface {
	// Limits are what a request may ask for.
	Limits() Limits
	// Acquire grants a lease, or says why not: a *FieldError for each field out of
	// bounds, *HeldError, ErrIdempotencyMismatch, ErrTokensExhausted, *QuorumError
	// (safe to repeat). With req.Wait it waits in the queue for that long: then also
	// *WaitTimeoutError, ErrTooManyWaiters and ErrStopping. Without, it never
	// overtakes the queue. With req.Resources it grants all of them or none. After an
	// error nothing stays granted.
	Acquire(ctx context.Context, req AcquireRequest) (Lease, error)
	// Cancel ends all that the request's IdempotencyKey has of its resources: a lease, what
	// was taken of several resources, and the place in the queue. It is for a request whose
	// answer is not known, or not wanted any more; of the request it reads the resources and
	// the key. It returns what it released, which may be nothing. An acquire under the key
	// that is still under way may be granted after it. Errors: *FieldError, *QuorumError
	// (safe to repeat).
	Cancel(ctx context.Context, req AcquireRequest) ([]LeasePart, error)
	// ForgetPlace ends the place in the queue that a request under an idempotency key has
	// left (see AcquireRequest.IdempotencyKey), unless the request has come again, here or
	// at another server. Errors: *FieldError, *QuorumError (the place may be kept).
	ForgetPlace(ctx context.Context, req AcquireRequest) error
	// Find returns the live lease that the request's IdempotencyKey has, as Acquire would,
	// and grants none. Errors: *FieldError, ErrNotHeld, ErrIdempotencyMismatch, *QuorumError.
	Find(ctx context.Context, req AcquireRequest) (Lease, error)
	// Open verifies a lease id; whether the lease still lives is another question. Errors:
	// ErrNotHeld (the id is not one of the caller's), *QuorumError.
	Open(ctx context.Context, leaseID string) (OpenedLease, error)
	// Inspect returns the public state of a resource. Errors: *FieldError, *QuorumError.
	Inspect(ctx context.Context, resource string) (LockState, error)
	// List returns a page of the held resources. Errors: *FieldError, *QuorumError.
	List(ctx context.Context, req ListRequest) (LockPage, error)
	// Break ends the lease of the resource that has the token, and no later one: it is
	// safe to repeat. With token 0 it ends whatever lease holds the resource, and repeated
	// it ends the next one, too. The next token is still larger. Errors: *FieldError,
	// ErrNotHeld, *OtherLeaseError (another lease holds the resource), *QuorumError (the
	// lease may have ended).
	Break(ctx context.Context, resource string, token fencing.Token) error
	// Observe looks at what the service depends on, which takes a fraction of a second
	// where a node does not answer, and returns the Status of this moment.
	Observe(ctx context.Context) ClusterStatus
	// Status says whether the service may grant anything, and why not.
	Status() ClusterStatus
}

// OpenedLease is a lease whose id was verified for its caller. Its methods do not verify it
// again.
type OpenedLease interface {
	// ID is the lease id.
	ID() string
	// Terms are what the id says.
	Terms() LeaseTerms
	// Extend gives the lease a new TTL, counted from now; 0 is its last one, and
	// ErrNotHeld once it has expired. The token stays. Of several resources it extends
	// all, or ends all. Errors: *FieldError, ErrNotHeld (final), ErrMaxHold (the lease ends
	// with its present TTL), *QuorumError (safe to repeat).
	Extend(ctx context.Context, ttl time.Duration) (Lease, error)
	// Release ends the lease. Before its MinHold the resource stays taken until then.
	// Errors: ErrNotHeld, *QuorumError (safe to repeat).
	Release(ctx context.Context) error
	// Now is the lease as it is now. Errors: ErrNotHeld, *QuorumError.
	Now(ctx context.Context) (Lease, error)
	// End returns how the lease ended that was not seen to be released. Errors: *QuorumError.
	End(ctx context.Context) (End, error)
}
