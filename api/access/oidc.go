package access

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// OIDC says which JWTs are accepted.
type OIDC struct {
	Issuer   string // a URL, as in the tokens' iss
	Audience string // what aud must contain
	Claim    string // the claim that is the identity; it must be a text
}

// Bounds of checking JWTs.
const (
	trustFor   = time.Minute // a token is not checked again for so long
	maxTrusted = 10_000      // tokens
)

// Issuer verifies the JWTs of one OpenID Connect issuer. Requests never fetch from
// it: Run does, at its own pace.
type Issuer struct {
	cfg    OIDC
	client *http.Client

	keys   atomic.Pointer[keySet] // nil until the first fetch succeeded
	wanted chan struct{}          // room for one: a request needs a fetch
	mu     sync.Mutex
	next   chan struct{} // closed when the next fetch is over, and while Run rests
	good   map[[sha256.Size]byte]verified
}

// verified is a token whose signature was verified.
type verified struct {
	claim string
	ends  time.Time // the token's exp
	until time.Time // when it is checked again
}

// NewIssuer makes a Verifier. It knows no keys until Run has fetched them.
func NewIssuer(cfg OIDC) *Issuer {
	return &Issuer{
		cfg: cfg, client: &http.Client{}, wanted: make(chan struct{}, 1), next: make(chan struct{}),
		good: make(map[[sha256.Size]byte]verified),
	}
}

// Verify is Verifier.Verify. Verifying a signature costs as much as the rest of a
// request, so a verified token is accepted for a minute, but not beyond its expiry.
func (i *Issuer) Verify(ctx context.Context, token string) (claim string, ends time.Time, err error) {
	at := sha256.Sum256([]byte(token))
	i.mu.Lock()
	known, ok := i.good[at]
	i.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.claim, known.ends, nil
	}
	keys, err := i.keysFor(ctx, token)
	if err != nil {
		return "", time.Time{}, err
	}
	checked, err := keys.verifier.Verify(ctx, token)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("%w: %w", ErrBadCredentials, err)
	}
	if claim, err = i.claim(checked); err != nil {
		return "", time.Time{}, err
	}
	until := time.Now().Add(trustFor)
	if checked.Expiry.Before(until) {
		until = checked.Expiry
	}
	i.remember(at, verified{claim: claim, ends: checked.Expiry, until: until})
	return claim, checked.Expiry, nil
}

func (i *Issuer) claim(token *oidc.IDToken) (string, error) {
	if i.cfg.Claim == "sub" {
		return token.Subject, nil
	}
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return "", fmt.Errorf("%w: %w", ErrBadCredentials, err)
	}
	text, ok := claims[i.cfg.Claim].(string)
	if !ok || text == "" {
		return "", fmt.Errorf("%w: no claim %s", ErrBadCredentials, i.cfg.Claim)
	}
	// Until the issuer has verified it, the caller may have set any address.
	if verified, said := claims["email_verified"].(bool); i.cfg.Claim == "email" && said && !verified {
		return "", fmt.Errorf("%w: the e-mail address is not verified", ErrBadCredentials)
	}
	return text, nil
}

func (i *Issuer) remember(at [sha256.Size]byte, v verified) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.good) >= maxTrusted {
		clear(i.good)
	}
	i.good[at] = v
}
