package fencing

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// ErrLeaseLost says that a lease has ended, or can no longer be kept alive: stop the work.
// A refused stale token matches it, too, because it shows that the lease has ended.
var ErrLeaseLost = errors.New("lease lost")

// Lease is the resources of a lease with their tokens. A guard claims each of them. *client.Lease implements
// it, and so does a Claim, for a token from another source.
type Lease interface {
	Claims() []Claim
}

// Claim is a resource, and the token with which a guard should claim it. Printed and logged forms do not
// contain the proof.
type Claim struct {
	Resource string
	Token    Token
	Proof    string // the fencing_proof of the token, a secret; "" for guards that require none
}

// Claims makes the claim a Lease of one resource.
func (c Claim) Claims() []Claim { return []Claim{c} }

// Check returns ErrMalformedResource or ErrMalformedToken for a claim that no guard accepts.
func (c Claim) Check() error { return CheckClaim(c.Resource, c.Token) }

// String returns the resource and the token, without the proof.
func (c Claim) String() string { return fmt.Sprintf("%q (token %s)", c.Resource, c.Token) }

// Format prints String for every verb of package fmt.
func (c Claim) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, c.String()) }

// LogValue returns String, for slog.
func (c Claim) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalJSON writes the resource and the token, without the proof.
func (c Claim) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Resource string `json:"resource"`
		Token    Token  `json:"fencing_token"`
	}{c.Resource, c.Token})
}

// Suspect explains the refusal of a stale token if the lease that presented the token is still valid: within
// one cluster of lock servers, a valid lease has the largest token. Guards call it. It returns any other
// error unchanged.
func Suspect(lease Lease, err error) error {
	valid, knows := lease.(interface{ Validity() time.Duration })
	if !errors.Is(err, ErrStaleToken) || !knows || valid.Validity() <= 0 {
		return err
	}
	return fmt.Errorf("%w: the lease is still valid here, so an operator broke it, or another fencelock cluster claims this resource", err)
}
