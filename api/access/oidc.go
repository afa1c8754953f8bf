package access

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// OIDC says whose JWTs are believed.
type OIDC struct {
	Issuer   string // a URL, as in the tokens' iss
	Audience string // what aud must contain
	Claim    string // the claim that is the identity; it must be a text
}

// Bounds of checking JWTs.
const (
	issuerTimeout = 5 * time.Second
	issuerPause   = 2 * time.Second // between two tries to reach an issuer
	trustFor      = time.Minute     // a token is not checked again for so long
	mostTrusted   = 10_000          // tokens
)

// Issuer verifies the JWTs of one OpenID Connect issuer. It asks the issuer for
// its keys when they are first needed, so a service can start without it.
type Issuer struct {
	cfg    OIDC
	client *http.Client

	asking   sync.Mutex // held while the issuer is asked
	verifier *oidc.IDTokenVerifier
	tried    time.Time // when the issuer last did not answer

	mu      sync.Mutex
	trusted map[[sha256.Size]byte]trusted
}

type trusted struct {
	claim string
	until time.Time
}

// NewIssuer makes a Verifier. It does not ask the issuer yet.
func NewIssuer(cfg OIDC) *Issuer {
	return &Issuer{cfg: cfg, client: &http.Client{Timeout: issuerTimeout}, trusted: make(map[[sha256.Size]byte]trusted)}
}

// Verify is Verifier.Verify. Verifying a signature costs as much as everything
// else that a request needs, so a token that was found good is believed for a
// minute, and never beyond its own end.
func (i *Issuer) Verify(ctx context.Context, token string) (string, error) {
	at := sha256.Sum256([]byte(token))
	i.mu.Lock()
	known, ok := i.trusted[at]
	i.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.claim, nil
	}
	verifier, err := i.discovered(ctx)
	if err != nil {
		return "", err
	}
	unfetched := false
	checked, err := verifier.Verify(context.WithValue(oidc.ClientContext(ctx, i.client), fetchKey{}, &unfetched), token)
	switch {
	case err != nil && ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil && unfetched:
		return "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrBadCredentials, err)
	}
	claim, err := i.claim(checked)
	if err != nil {
		return "", err
	}
	until := time.Now().Add(trustFor)
	if checked.Expiry.Before(until) {
		until = checked.Expiry
	}
	i.trust(at, trusted{claim: claim, until: until})
	return claim, nil
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
	// A claim that anybody may set for himself, until the issuer has looked.
	if verified, said := claims["email_verified"].(bool); i.cfg.Claim == "email" && said && !verified {
		return "", fmt.Errorf("%w: the e-mail address is not verified", ErrBadCredentials)
	}
	return text, nil
}

func (i *Issuer) trust(at [sha256.Size]byte, t trusted) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.trusted) >= mostTrusted {
		clear(i.trusted)
	}
	i.trusted[at] = t
}

// discovered asks the issuer where its keys are, once.
func (i *Issuer) discovered(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	i.asking.Lock()
	defer i.asking.Unlock()
	if i.verifier != nil {
		return i.verifier, nil
	}
	if time.Since(i.tried) < issuerPause {
		return nil, ErrUnavailable
	}
	ask, cancel := context.WithTimeout(oidc.ClientContext(context.WithoutCancel(ctx), i.client), issuerTimeout)
	defer cancel()
	provider, err := oidc.NewProvider(ask, i.cfg.Issuer)
	var said struct {
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err == nil {
		err = provider.Claims(&said)
	}
	if err != nil {
		i.tried = time.Now()
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	keys := watchedKeys{oidc.NewRemoteKeySet(oidc.ClientContext(context.WithoutCancel(ctx), i.client), said.Keys)}
	i.verifier = oidc.NewVerifier(i.cfg.Issuer, keys, &oidc.Config{
		ClientID: i.cfg.Audience, SupportedSigningAlgs: slices.DeleteFunc(said.Algorithms, isNoSignature),
	})
	return i.verifier, nil
}

// isNoSignature: anybody can make such a token, or whoever knows a secret that
// is not for us to have.
func isNoSignature(algorithm string) bool {
	return algorithm == "none" || strings.HasPrefix(algorithm, "HS")
}

// watchedKeys remembers whether keys could not be fetched, which the library
// does not tell from a wrong signature.
type watchedKeys struct{ oidc.KeySet }

type fetchKey struct{}

func (k watchedKeys) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	payload, err := k.KeySet.VerifySignature(ctx, jwt)
	if failed, ok := ctx.Value(fetchKey{}).(*bool); ok && err != nil && strings.HasPrefix(err.Error(), "fetching keys") {
		*failed = true
	}
	return payload, err
}
