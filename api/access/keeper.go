package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Verifier verifies JWTs.
type Verifier interface {
	// Verify checks signature, issuer, audience and times. It returns the claim that names the caller, and
	// when the token expires. ErrUnavailable and ctx.Err() are temporary; any other error means that the token
	// is not valid.
	Verify(ctx context.Context, token string) (claim string, ends time.Time, err error)
}

// Keeper holds the last valid version of the file.
type Keeper struct {
	path   string
	jwt    Verifier // nil if JWTs are not accepted
	policy atomic.Pointer[Policy]

	mu   sync.Mutex
	open map[*followed]struct{} // see Follow
}

// Open reads the file. verifier may be nil: then no JWT is accepted.
func Open(path string, verifier Verifier) (*Keeper, error) {
	k := &Keeper{path: path, jwt: verifier, open: make(map[*followed]struct{})}
	if err := k.Load(); err != nil {
		return nil, err
	}
	return k, nil
}

// Load reads the file again, and ends the open requests that it no longer permits (Follow). After an error the
// previous version stays in force.
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
	k.revoke(policy)
	return nil
}

// Identities is the number of names in the file.
func (k *Keeper) Identities() int { return k.policy.Load().Identities() }

// Identify authenticates a request by its bearer token if it has one, and otherwise by its certificate.
// Errors: ErrNoCredentials, ErrBadCredentials, ErrUnavailable, ctx.Err().
func (k *Keeper) Identify(r *http.Request) (*Identity, error) {
	shown, err := k.shown(r)
	if err != nil {
		return nil, err
	}
	if who := k.policy.Load().find(&shown); who != nil {
		return who, nil
	}
	return nil, ErrBadCredentials
}

// credentials are a request's credentials in the form used for lookups in the file.
type credentials struct {
	kind  kind
	token [sha256.Size]byte // the hash of a bearer token
	claim string            // the identity claim of a verified JWT
	certs []string          // the names of a verified certificate
	ends  time.Time         // when the JWT or certificate expires
}

type kind uint8

const (
	bearerToken kind = iota
	jsonWebToken
	certificate
)

// shown reads a request's credentials. Errors as for Identify.
func (k *Keeper) shown(r *http.Request) (credentials, error) {
	switch values := r.Header["Authorization"]; len(values) {
	case 0:
		return certificateOf(r)
	case 1:
		return k.bearer(r.Context(), values[0])
	default:
		return credentials{}, ErrBadCredentials
	}
}

func (k *Keeper) bearer(ctx context.Context, value string) (credentials, error) {
	scheme, token, _ := strings.Cut(value, " ")
	token = strings.TrimLeft(token, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return credentials{}, ErrBadCredentials
	}
	shown := credentials{kind: bearerToken, token: hashToken(token)}
	const dots = 2 // header.claims.signature
	if k.jwt == nil || strings.Count(token, ".") != dots || k.policy.Load().find(&shown) != nil {
		return shown, nil
	}
	claim, ends, err := k.jwt.Verify(ctx, token)
	return credentials{kind: jsonWebToken, claim: claim, ends: ends}, err
}

func certificateOf(r *http.Request) (credentials, error) {
	state := r.TLS
	if state == nil || len(state.VerifiedChains) == 0 {
		return credentials{}, ErrNoCredentials
	}
	chain := state.VerifiedChains[0]
	shown := credentials{kind: certificate, certs: certNames(chain[0]), ends: chain[0].NotAfter}
	for _, cert := range chain {
		if cert.NotAfter.Before(shown.ends) {
			shown.ends = cert.NotAfter
		}
	}
	// The handshake checked the chain, but possibly long ago.
	if time.Now().After(shown.ends) {
		return credentials{}, ErrBadCredentials
	}
	return shown, nil
}

// subjectAltName is the id of the extension with a certificate's alternative names.
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// certNames are the names of a certificate: its subject alternative names (URI, DNS,
// e-mail), and its common name if it has no alternative name of any kind.
func certNames(cert *x509.Certificate) (names []string) {
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	names = append(names, cert.DNSNames...)
	names = append(names, cert.EmailAddresses...)
	alternative := slices.ContainsFunc(cert.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(subjectAltName) })
	if !alternative && cert.Subject.CommonName != "" {
		names = append(names, cert.Subject.CommonName)
	}
	return names
}
