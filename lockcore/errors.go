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
	// ErrNoQuorum: fewer than a quorum of nodes answered in time. The call may
	// have taken effect on some nodes; it is cleaned up in the background.
	// Safe to retry. See QuorumError.
	ErrNoQuorum = errors.New("no quorum of nodes")
	// ErrOtherLease: another lease holds the resource than the one to break. See
	// OtherLeaseError.
	ErrOtherLease = errors.New("another lease holds the resource")
	// ErrNotHeld: the lease has ended, or never was: the text is not a lease id, or one
	// of another caller or cluster, or was edited. Not worth a retry.
	ErrNotHeld = errors.New("lease not held")
	// ErrMaxHold: the lease is at its maximum hold time.
	ErrMaxHold = errors.New("lease has reached its maximum hold time")
	// ErrIdempotencyMismatch: the idempotency key has a lease of another request, of which
	// something other than Wait and Poll differs.
	ErrIdempotencyMismatch = errors.New("the idempotency key has the lease of a request with other parameters: use a new key for each acquisition")
	// ErrWaitTimeout: the wait ended without a grant. See WaitTimeoutError.
	ErrWaitTimeout = errors.New("the wait ended without a grant")
	// ErrTooManyWaiters: this server's queue is full (Config.MaxWaiters).
	ErrTooManyWaiters = errors.New("this server already has the maximum number of waiting requests (FENCELOCK_MAX_WAITERS): try again later, or at another server")
	// ErrStopping: this server stops, and no request may wait at it. Try another one.
	ErrStopping = errors.New("this server is stopping: send the request to another one")
	// ErrTokensExhausted: the resource's counter has reached fencing.MaxToken.
	ErrTokensExhausted = errors.New("the resource has used up its fencing tokens: use another name for it")
)

// FieldError refuses a request whose field breaks its documented bounds.
type FieldError struct {
	Field  string // the JSON name: "resource", "ttl_ms", …
	Reason string // what is allowed, as half a sentence
}

func (e *FieldError) Error() string { return e.Field + " " + e.Reason }

// HeldError is ErrHeld with the public state of the lease in the way. It may be
// outdated when it is read.
type HeldError struct {
	Resource  string
	Holder    string        // the label the holder gave itself; may be empty
	Token     fencing.Token // 0 when no quorum agreed on a holder (a split vote)
	Remaining time.Duration // when the lease in the way ends unless extended
	Waiters   int
	Queued    bool // no lease holds it, but others are first in the queue
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

// OtherLeaseError is ErrOtherLease with the lease that holds the resource, which may be
// outdated when it is read. The lease with the token Named has ended, or never was.
type OtherLeaseError struct {
	HeldError
	Named fencing.Token
}

func (e *OtherLeaseError) Error() string {
	return fmt.Sprintf("the lease with token %d does not hold the resource: %s", e.Named, e.HeldError.Error())
}

// Is makes errors.Is(err, ErrOtherLease) true.
func (e *OtherLeaseError) Is(target error) bool { return target == ErrOtherLease }

// WaitTimeoutError is ErrWaitTimeout with the lease in the way. The HeldError has no
// Token when the resource was free then, with others first in the queue.
type WaitTimeoutError struct {
	HeldError
	Position int           // place in the queue when it ended; 1 is the first
	Waited   time.Duration // since the request began
	Kept     bool          // a Poll ended, and not the Wait: nobody passes it for two seconds
}

func (e *WaitTimeoutError) Error() string {
	return fmt.Sprintf("waited %s without a grant, at place %d of the queue: %s", e.Waited.Round(time.Millisecond), e.Position, e.HeldError.Error())
}

// Is makes errors.Is(err, ErrWaitTimeout) true.
func (e *WaitTimeoutError) Is(target error) bool { return target == ErrWaitTimeout }

// QuorumError is ErrNoQuorum with every node's part in it.
type QuorumError struct {
	Resource   string // empty for a call that concerns no single resource
	Quorum     int
	Answered   int // nodes that answered at all, whatever they said
	Granted    int // nodes that agreed
	Nodes      []NodeOutcome
	RetryAfter time.Duration // when it may be worth trying again, at the earliest
	Cause      error         // a context's error, when the caller gave up; may be nil
}

// NodeOutcome is one node's part in a failed round.
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
