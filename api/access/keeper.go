package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// Verifier tells what a JWT says of who carries it.
type Verifier interface {
	// Verify checks signature, issuer, audience and times, and tells when the
	// token ends. Errors: ErrUnavailable, ctx.Err(); any other says that the
	// token is not valid.
	Verify(ctx context.Context, token string) (claim string, ends time.Time, err error)
}

// Keeper knows the callers: the last good version of the file.
type Keeper struct {
	path   string
	jwt    Verifier // nil for none
	policy atomic.Pointer[Policy]
}

// Open reads the file. verifier may be nil: then nobody is known by a JWT.
func Open(path string, verifier Verifier) (*Keeper, error) {
	k := &Keeper{path: path, jwt: verifier}
	if err := k.Load(); err != nil {
		return nil, err
	}
	return k, nil
}

// Load reads the file again. After an error the version before stays.
func (k *Keeper) Load() error {
	text, err := os.ReadFile(k.path)
	if err != nil {
		return err
	}
	policy, err := Parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", k.path, err)
	}
	policy.inherit(k)
	k.policy.Store(policy)
	return nil
}

// Identities is how many names are known.
func (k *Keeper) Identities() int { return k.policy.Load().Identities() }

type tlsKey struct{}

// WithTLS carries the state of a connection for requests that net/http does not
// know to have come over TLS.
func WithTLS(ctx context.Context, state *tls.ConnectionState) context.Context {
	return context.WithValue(ctx, tlsKey{}, state)
}

// Identify tells who sent the request: by its bearer token if it has one, else
// by its certificate. Errors: ErrNoCredentials, ErrBadCredentials,
// ErrUnavailable, ctx.Err().
func (k *Keeper) Identify(r *http.Request) (*Identity, error) {
	switch values := r.Header["Authorization"]; len(values) {
	case 0:
		return k.byCertificate(r)
	case 1:
		return k.byHeader(r.Context(), values[0])
	default:
		return nil, ErrBadCredentials
	}
}

func (k *Keeper) byHeader(ctx context.Context, value string) (*Identity, error) {
	scheme, token, _ := strings.Cut(value, " ")
	token = strings.TrimLeft(token, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return nil, ErrBadCredentials
	}
	policy := k.policy.Load()
	if who := policy.byToken(token); who != nil {
		return who, nil
	}
	const dots = 2 // header.claims.signature
	if k.jwt == nil || strings.Count(token, ".") != dots {
		return nil, ErrBadCredentials
	}
	claim, _, err := k.jwt.Verify(ctx, token)
	if err != nil {
		return nil, err
	}
	if who := policy.claims[claim]; who != nil {
		return who, nil
	}
	return nil, ErrBadCredentials
}

func (k *Keeper) byCertificate(r *http.Request) (*Identity, error) {
	state := r.TLS
	if state == nil {
		state, _ = r.Context().Value(tlsKey{}).(*tls.ConnectionState)
	}
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil, ErrNoCredentials
	}
	// The handshake has checked the chain, perhaps long ago.
	now := time.Now()
	for _, cert := range state.VerifiedChains[0] {
		if now.After(cert.NotAfter) {
			return nil, ErrBadCredentials
		}
	}
	certs := k.policy.Load().certs
	for _, name := range certNames(state.VerifiedChains[0][0]) {
		if who := certs[name]; who != nil {
			return who, nil
		}
	}
	return nil, ErrBadCredentials
}

// certNames are the names of a certificate: its subject alternative names
// (URI, DNS, e-mail), and its common name if it has none of them.
func certNames(cert *x509.Certificate) (names []string) {
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	names = append(names, cert.DNSNames...)
	names = append(names, cert.EmailAddresses...)
	if len(names) == 0 && cert.Subject.CommonName != "" {
		names = []string{cert.Subject.CommonName}
	}
	return names
}
