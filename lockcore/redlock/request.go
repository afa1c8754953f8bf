package redlock

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Request asks for one resource, or for one of its slots. It is valid.
type Request struct {
	lockcore.AcquireRequest
	Caller string    // see lockcore.WithCaller
	Terms  string    // see TermsOf
	Scope  string    // what the idempotency key is used for
	Began  time.Time // when the caller asked
	isSlot bool      // the resource is one of several slots that the request may get
}

// TermsOf is what a request asks for besides its resources and its wait, which a retry
// shortens; "" without an idempotency key. It takes the request as it was sent: servers may
// have other defaults.
func TermsOf(req *lockcore.AcquireRequest) string {
	if req.IdempotencyKey == "" {
		return ""
	}
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%d %d %d %d %q %s", req.Slots, req.TTL.Milliseconds(), req.MinHold.Milliseconds(), req.MaxHold.Milliseconds(), req.Holder, req.Metadata)
	const termsBytes = 9 // nobody gains from two requests of theirs that look alike
	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:termsBytes])
}

// ScopeFor is what the request's idempotency key is used for: these resources on its terms.
// Its lease is not given to a request that asks for another. Names have no control characters.
func (r *Request) ScopeFor(resources string) string { return resources + "\x1f" + r.Terms }

// Part is one resource of a lease.
type Part struct {
	ID    keyring.LeaseID
	Lease lockcore.Lease // without an id
	At    time.Time      // when it was granted
	asked time.Duration  // the TTL of its own votes; the lease that a key found may have another
	from  *Locker        // that granted it
}

// Ring is the present keys of the quorum that granted the part: they seal its lease id.
func (p *Part) Ring() *keyring.Ring { return p.from.Ring() }

// Retract retracts the votes that won the part. Another attempt under the idempotency key
// may have returned the same lease: its votes stay.
func (p *Part) Retract() { p.from.retract(p.acquire(), p.Lease.TTL) }

// RetractLater retracts the votes when the place of a request that was broken off is given
// up, too. A server that stops before that leaves them to their TTL.
func (p *Part) RetractLater() { p.from.retractLater(p.acquire(), p.Lease.TTL) }

// acquire is the operation that took the part, as far as a retraction needs it.
func (p *Part) acquire() *node.Op {
	return &node.Op{Resource: p.ID.Resource, Owner: p.ID.Owner, Attempt: p.ID.Attempt, TTL: p.asked}
}
