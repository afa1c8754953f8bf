package lockcore

import (
	"context"
	"errors"
	"time"
)

// MaxHoldIDBytes bounds a hold id.
const MaxHoldIDBytes = 64

// ValidateHold checks a hold id: 1 to 64 letters, digits, '-', '_', '.' or
// '~', and not the single dot that is the acquirer's own. The error is a *FieldError.
func ValidateHold(hold string) error {
	bad := &FieldError{Field: "hold", Reason: "must be 1 to 64 letters, digits, '-', '_', '.' or '~', and not a single '.'"}
	if len(hold) < 1 || len(hold) > MaxHoldIDBytes || hold == OwnHold {
		return bad
	}
	for _, c := range []byte(hold) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && c != '-' && c != '_' && c != '.' && c != '~' {
			return bad
		}
	}
	return nil
}

// Hold adds a hold to a live lease, so that it ends with the last of its holds
// (re-entry, by capability): the token stays the same. Adding the same hold
// twice changes nothing. Errors: ErrMalformedLeaseID, *FieldError, ErrNotHeld,
// ErrMostHolds, *QuorumError (it may have been added; safe to repeat).
//
// The Validity of what it returns is what the hold is sure of. Extends prolong it,
// but for a release of another hold: nodes that do not know this one then give the
// lease up, also where they were those that an extend had reached.
func (l *Locker) Hold(ctx context.Context, lease, hold string) (Lease, error) {
	if err := ValidateHold(hold); err != nil {
		return Lease{}, err
	}
	parts, err := openLease(ctx, lease)
	if err != nil {
		return Lease{}, err
	}
	added, err := l.eachPart(parts, func(l *Locker, id leaseID) (Lease, error) { return l.holdOne(ctx, id, hold) })
	if err != nil {
		return Lease{}, err
	}
	asked := time.Now()
	now, err := l.Lease(ctx, lease)
	if err != nil {
		return Lease{}, err
	}
	for _, part := range added {
		now.Validity = min(now.Validity, part.Validity-drift(now.TTL)-time.Since(asked))
	}
	if now.Validity <= 0 {
		return Lease{}, ErrNotHeld
	}
	return now, nil
}

// holdOne adds a hold to one part. The Validity of what it returns is for how long
// a quorum that knows the hold has the lock, but for the drift allowance: others,
// which may have it for longer, lose it with the acquirer's own hold.
func (l *Locker) holdOne(ctx context.Context, id leaseID, hold string) (Lease, error) {
	op := Op{Kind: OpHold, Resource: id.resource, Lease: id.value, Token: id.token, Hold: hold}
	b := l.pollInView(ctx, op, l.cfg.NodeTimeout, (*ballot).decided)
	for i := range l.nodes {
		if r := &b.replies[i]; r.Outcome == Failed && r.Sent && !errors.Is(r.Err, ErrMostHolds) {
			const repeat = 5 * time.Second
			op.View = l.view.view()
			l.clean.release(i, op, time.Now().Add(repeat), 0)
		}
	}
	var remaining []time.Duration
	for i := range b.replies[:b.n] {
		if b.answered[i] && b.replies[i].Outcome == Granted {
			remaining = append(remaining, b.replies[i].Remaining)
		}
	}
	switch {
	case len(remaining) >= l.quorum:
		return Lease{Validity: quorumth(remaining, l.quorum) - b.elapsed}, nil
	case b.count(NotHeld) >= ReadersOf(len(l.nodes)):
		return Lease{}, ErrNotHeld
	case b.refused(ErrMostHolds) >= ReadersOf(len(l.nodes)):
		return Lease{}, ErrMostHolds
	}
	return Lease{}, l.quorumError(id.resource, &b)
}

// refused counts the nodes that failed with the error.
func (b *ballot) refused(with error) (n int) {
	for i := range b.replies[:b.n] {
		if b.answered[i] && errors.Is(b.replies[i].Err, with) {
			n++
		}
	}
	return n
}

// Unhold takes a hold off; with the last one the lease ends. Errors:
// ErrMalformedLeaseID, *FieldError, ErrNotHeld (the lease has ended, or has no
// such hold any more), *QuorumError (safe to repeat).
func (l *Locker) Unhold(ctx context.Context, lease, hold string) error {
	if err := ValidateHold(hold); err != nil {
		return err
	}
	return l.releaseParts(ctx, lease, hold)
}

func (l *Locker) releaseParts(ctx context.Context, lease, hold string) error {
	parts, err := openLease(ctx, lease)
	if err != nil {
		return err
	}
	_, err = l.eachPart(parts, func(l *Locker, id leaseID) (Lease, error) {
		return Lease{}, l.release(ctx, Op{Resource: id.resource, Lease: id.value, Token: id.token, Hold: hold})
	})
	return err
}
