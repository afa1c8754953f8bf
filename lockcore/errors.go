package lockcore

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

var (
	// ErrHeld: another lease holds the resource. See HeldError.
	ErrHeld = errors.New("resource is held")
	// ErrNoQuorum: fewer than a quorum of nodes responded in time. The call may have taken effect on some
	// nodes; the service cleans this up in the background. Safe to retry. See QuorumError.
	ErrNoQuorum = errors.New("no quorum of nodes")
	// ErrOtherLease: a different lease than the one to break holds the resource. See OtherLeaseError.
	ErrOtherLease = errors.New("another lease holds the resource")
	// ErrNotHeld: the lease has ended or never existed. The text may also not be a lease id at all, be edited,
	// or belong to another caller or cluster. A retry cannot succeed.
	ErrNotHeld = errors.New("lease not held")
	// ErrNoCaller: the call has no caller, not even Everyone. This is a bug in the calling program.
	ErrNoCaller = errors.New("a call of the lock service without a caller")
	// ErrMaxHold: the lease is at its maximum hold time.
	ErrMaxHold = errors.New("lease has reached its maximum hold time")
	// ErrIdempotencyMismatch: the idempotency key has a lease of a request that differs from this one in more
	// than Wait and Poll.
	ErrIdempotencyMismatch = errors.New("the idempotency key has the lease of a request with other parameters: use a new key for each acquisition")
	// ErrWaitTimeout: the wait ended without a grant. See WaitTimeoutError.
	ErrWaitTimeout = errors.New("the wait ended without a grant")
	// ErrTooManyWaiters: the places in this server's queues are all taken. A Service has no such bound; api counts
	// them.
	ErrTooManyWaiters = errors.New("this server already has the maximum number of waiting requests (FENCELOCK_MAX_WAITERS): try again later, or at another server")
	// ErrStopping: this server is stopping, so no request may wait at it. Use another server.
	ErrStopping = errors.New("this server is stopping: send the request to another one")
	// ErrTokensExhausted: the resource's counter has reached fencing.MaxToken.
	ErrTokensExhausted = errors.New("the resource has used up its fencing tokens: use another name for it")
)

// FieldError says which field of a request breaks its documented bounds.
type FieldError struct {
	Field  string // the JSON name: "resource", "ttl_ms", …
	Reason string // what is allowed, as a phrase
}

func (e *FieldError) Error() string { return e.Field + " " + e.Reason }

// HeldError is ErrHeld with the public state of the lease that holds the resource. It may be outdated when it
// is read.
type HeldError struct {
	Resource  string
	Holder    string        // the holder's own label; may be empty
	Token     fencing.Token // 0 when no quorum agreed on a holder (split vote)
	Remaining time.Duration // until that lease ends, unless it is extended
	Waiters   int
	Queued    bool // no lease holds the resource, but other requests are first in the queue
}

func (e *HeldError) Error() string {
	switch {
	case e.Queued:
		return fmt.Sprintf("other requests are first in the queue for %q", e.Resource)
	case e.Token == 0:
		return fmt.Sprintf("%q is requested by several callers at once, and none has it yet", e.Resource)
	case e.Holder == "":
		return fmt.Sprintf("%q is held (token %d) for another %s", e.Resource, e.Token, e.Remaining)
	}
	return fmt.Sprintf("%q is held by %q (token %d) for another %s", e.Resource, e.Holder, e.Token, e.Remaining)
}

// Is makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// OtherLeaseError is ErrOtherLease with the lease that holds the resource. It may be outdated when it is read.
// The lease with the token Named has ended or never existed.
type OtherLeaseError struct {
	HeldError
	Named fencing.Token
}

func (e *OtherLeaseError) Error() string {
	return fmt.Sprintf("the lease with token %d does not hold the resource: %s", e.Named, e.HeldError.Error())
}

// Is makes errors.Is(err, ErrOtherLease) true.
func (e *OtherLeaseError) Is(target error) bool { return target == ErrOtherLease }

// EndedError means that an extend found a part of the lease ended and has released the others, so that no part
// stays locked. Err is ErrNotHeld, or a *QuorumError while a part may still be locked.
type EndedError struct {
	Ended []LeasePart // the parts that this call has released; may be empty
	Err   error
}

func (e *EndedError) Error() string { return e.Err.Error() }

// Unwrap gives Err.
func (e *EndedError) Unwrap() error { return e.Err }

// WaitTimeoutError is ErrWaitTimeout with the lease that held the resource. The HeldError has no Token if the
// resource was free, but other requests were first in the queue.
type WaitTimeoutError struct {
	HeldError
	Position int           // place in the queue at the end of the wait; 1 is the first
	Waited   time.Duration // since the request began
	Kept     bool          // a Poll ended, not the Wait: the place is kept for two seconds
}

func (e *WaitTimeoutError) Error() string {
	return fmt.Sprintf("waited %s without a grant, at place %d of the queue: %s", e.Waited.Round(time.Millisecond), e.Position, e.HeldError.Error())
}

// Is makes errors.Is(err, ErrWaitTimeout) true.
func (e *WaitTimeoutError) Is(target error) bool { return target == ErrWaitTimeout }

// QuorumError is ErrNoQuorum with the outcome of every node.
type QuorumError struct {
	Resource   string // empty for a call that concerns no single resource
	Quorum     int
	Answered   int // nodes that responded at all, with any outcome
	Granted    int // nodes that agreed
	Nodes      []NodeOutcome
	RetryAfter time.Duration // the earliest time at which a retry may succeed
	Cause      error         // the context's error if the caller gave up; may be nil
}

// NodeOutcome is the outcome of one node in a failed round.
type NodeOutcome struct {
	Node   string
	Reason string // "granted", "held", "timeout", "not admitted: …"
}

func (e *QuorumError) Error() string {
	parts := make([]string, len(e.Nodes))
	for i, n := range e.Nodes {
		parts[i] = n.Node + ": " + n.Reason
	}
	return fmt.Sprintf("no quorum: %d of %d nodes agreed, and %d are needed (%s)", e.Granted, len(e.Nodes), e.Quorum, strings.Join(parts, "; "))
}

// Is makes errors.Is(err, ErrNoQuorum) true.
func (e *QuorumError) Is(target error) bool { return target == ErrNoQuorum }

// Unwrap gives the context's error when the caller gave up.
func (e *QuorumError) Unwrap() error { return e.Cause }
