package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-json-experiment/json"
)

// OIDC configures which JWTs are accepted.
type OIDC struct {
	Issuer   string // a URL, as in the tokens' iss
	Audience string // what aud must contain
	Claim    string // the claim that is the identity; it must be a text
}

// Bounds of checking JWTs.
const (
	trustFor    = time.Minute          // how long a token is not checked again
	maxTrusted  = 10_000               // tokens
	longestLife = 366 * 24 * time.Hour // the maximum remaining life of a token, so that a stolen one ends
	clockSkew   = time.Minute          // how far the issuer's clock may be ahead: for nbf and iat, not for exp
)

// Issuer verifies the JWTs of one OpenID Connect issuer. Requests never fetch its keys themselves; Run does so
// at its own pace.
//
// It uses go-jose, and not go-oidc. That reads claims leniently (a repeated name, other letters, nbf five minutes ahead), lets
// each unknown key make a request to the issuer, and keeps keys for ever. So all rules here would be needed beside it
// (docs/adr/0007-jwts-without-go-oidc.md).
type Issuer struct {
	cfg    OIDC
	client *http.Client

	keys   atomic.Pointer[keySet] // nil until the first fetch succeeded
	wanted chan struct{}          // has room for one signal that a request needs a fetch
	mu     sync.Mutex
	next   chan struct{} // closed when the next fetch has ended, and while Run rests
	good   map[[sha256.Size]byte]verified
}

// verified is a token whose signature was verified.
type verified struct {
	claim string
	ends  time.Time // the token's exp
	until time.Time // when it is checked again
}

// NewIssuer makes a Verifier. It has no keys until Run has fetched them.
func NewIssuer(cfg OIDC) *Issuer {
	return &Issuer{
		cfg: cfg, client: newClient(cfg.Issuer, http.DefaultTransport), wanted: make(chan struct{}, 1), next: make(chan struct{}),
		good: make(map[[sha256.Size]byte]verified),
	}
}

// Verify implements Verifier. Verifying a signature costs as much as the rest of a request, so a verified
// token is accepted for a minute without another check, but not beyond its expiry or that of the keys.
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
	payload, err := keys.verify(token)
	if err == nil {
		claim, ends, err = i.read(payload)
	}
	if err != nil {
		return "", time.Time{}, fmt.Errorf("%w: %w", ErrBadCredentials, err)
	}
	until := time.Now().Add(trustFor)
	for _, end := range []time.Time{ends, keys.ends} {
		if end.Before(until) {
			until = end
		}
	}
	i.remember(at, verified{claim: claim, ends: ends, until: until})
	return claim, ends, nil
}

// read checks the claims of a payload with a valid signature. It reads the JSON strictly: a repeated name is
// an error, and names are case-sensitive.
func (i *Issuer) read(payload []byte) (claim string, ends time.Time, err error) {
	var standard jwt.Claims
	var all map[string]any
	if err := errors.Join(json.Unmarshal(payload, &standard), json.Unmarshal(payload, &all)); err != nil {
		return "", time.Time{}, err
	}
	expected := jwt.Expected{Issuer: i.cfg.Issuer, AnyAudience: jwt.Audience{i.cfg.Audience}}
	if err := standard.ValidateWithLeeway(expected, clockSkew); err != nil {
		return "", time.Time{}, err
	}
	if ends = standard.Expiry.Time(); !time.Now().Before(ends) {
		return "", time.Time{}, jwt.ErrExpired
	}
	if ends.After(time.Now().Add(longestLife)) {
		return "", time.Time{}, fmt.Errorf("exp is more than %d days ahead", int(longestLife.Hours()/24))
	}
	claim, _ = all[i.cfg.Claim].(string)
	switch {
	case claim == "":
		return "", time.Time{}, fmt.Errorf("no claim %s", i.cfg.Claim)
	case i.cfg.Claim == "email" && all["email_verified"] != true:
		// Until the issuer has verified it, the caller may have entered any address.
		return "", time.Time{}, errors.New("the e-mail address is not verified")
	}
	return claim, ends, nil
}

func (i *Issuer) remember(at [sha256.Size]byte, v verified) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.good) >= maxTrusted {
		clear(i.good)
	}
	i.good[at] = v
}

// keySet is an immutable snapshot of an issuer's keys and algorithms.
type keySet struct {
	algorithms []jose.SignatureAlgorithm
	keys       []jose.JSONWebKey
	ends       time.Time // when the keys are no longer used
}

// lack reports whether the token names a key that is not in the set.
func (k *keySet) lack(token string) bool {
	signed, err := jose.ParseSignedCompact(token, k.algorithms)
	return err == nil && len(k.of(signed)) == 0
}

// of returns the keys that may have made the signature: those with its key id and algorithm. A key may omit
// its algorithm, and a token its key.
func (k *keySet) of(signed *jose.JSONWebSignature) (keys []jose.JSONWebKey) {
	named := signed.Signatures[0].Header // the compact form has exactly one
	for _, key := range k.keys {
		if (named.KeyID == "" || key.KeyID == named.KeyID) && (key.Algorithm == "" || key.Algorithm == named.Algorithm) {
			keys = append(keys, key)
		}
	}
	return keys
}

var errSignature = errors.New("no key of the issuer verifies the signature")

// verify returns the token's payload.
func (k *keySet) verify(token string) ([]byte, error) {
	signed, err := jose.ParseSignedCompact(token, k.algorithms)
	if err != nil {
		return nil, err
	}
	for _, key := range k.of(signed) {
		if payload, err := signed.Verify(key); err == nil {
			return payload, nil
		}
	}
	return nil, errSignature
}
