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
// A refused stale token matches it, too, since it is the last sign of that.
var ErrLeaseLost = errors.New("lease lost")

// Lease is what a guard takes: the resources of a lease with their tokens, each of which it
// claims. *client.Lease is one, and so is a Claim, for a token that came from elsewhere.
type Lease interface {
	Claims() []Claim
}

// Claim is a resource with the token that a guard is to claim it with. What is printed of
// it shows no proof.
type Claim struct {
	Resource string
	Token    Token
	Proof    string // the fencing_proof of the token, a secret; "" for guards that demand none
}

// Claims makes the claim a Lease of one resource.
func (c Claim) Claims() []Claim { return []Claim{c} }

// Check returns ErrMalformedResource or ErrMalformedToken for what no guard takes.
func (c Claim) Check() error { return CheckClaim(c.Resource, c.Token) }

// String shows the resource and the token.
func (c Claim) String() string { return fmt.Sprintf("%q (token %s)", c.Resource, c.Token) }

// Format prints String for every verb of package fmt.
func (c Claim) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, c.String()) }

// LogValue is for slog: what String says.
func (c Claim) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalJSON shows the resource and the token.
func (c Claim) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Resource string `json:"resource"`
		Token    Token  `json:"fencing_token"`
	}{c.Resource, c.Token})
}

// Suspect adds to the refusal of a stale token what it means while the lease that presented
// it is still valid: within one cluster of lock servers a valid lease has the largest token.
// Guards call it; any other error is returned as it is.
func Suspect(lease Lease, err error) error {
	valid, knows := lease.(interface{ Validity() time.Duration })
	if !errors.Is(err, ErrStaleToken) || !knows || valid.Validity() <= 0 {
		return err
	}
	return fmt.Errorf("%w: the lease is still valid here, so an operator broke it, or another fencelock cluster claims this resource", err)
}
