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
	clockSkew  = time.Minute // by which the issuer's clock may be ahead: for nbf and iat, not for exp
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
		cfg: cfg, client: newClient(cfg.Issuer, http.DefaultTransport), wanted: make(chan struct{}, 1), next: make(chan struct{}),
		good: make(map[[sha256.Size]byte]verified),
	}
}

// Verify is Verifier.Verify. Verifying a signature costs as much as the rest of a
// request, so a verified token is accepted for a minute, but not beyond its expiry
// and the keys'.
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

// read checks the claims of a payload whose signature is good. The JSON is read
// strictly: a name that occurs twice is an error, and one in other letters is another.
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
	claim, _ = all[i.cfg.Claim].(string)
	switch {
	case claim == "":
		return "", time.Time{}, fmt.Errorf("no claim %s", i.cfg.Claim)
	case i.cfg.Claim == "email" && all["email_verified"] != true:
		// Until the issuer has verified it, the caller may have set any address.
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

// keySet is an issuer's keys and algorithms at one time. It is never changed.
type keySet struct {
	algorithms []jose.SignatureAlgorithm
	keys       []jose.JSONWebKey
	ends       time.Time // when the keys are no longer used
}

// lack tells whether the token names a key that is not in the set.
func (k *keySet) lack(token string) bool {
	signed, err := jose.ParseSignedCompact(token, k.algorithms)
	return err == nil && len(k.of(signed)) == 0
}

// of are the keys that may have signed: of the id and the algorithm that are
// named. A key need not say its algorithm, nor a token its key.
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
