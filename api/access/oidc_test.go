package access

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// issuer is an OpenID Connect issuer on this machine.
type issuer struct {
	t      *testing.T
	server *httptest.Server
	key    *rsa.PrivateKey
	away   atomic.Bool
	asked  atomic.Int32 // for keys
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{t: t, key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		i.say(w, map[string]any{"issuer": i.server.URL, "jwks_uri": i.server.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		i.asked.Add(1)
		i.say(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &i.key.PublicKey, KeyID: "1", Algorithm: "RS256", Use: "sig"}}})
	})
	i.server = httptest.NewServer(mux)
	t.Cleanup(i.server.Close)
	return i
}

func (i *issuer) say(w http.ResponseWriter, body any) {
	if i.away.Load() {
		http.Error(w, "away", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		i.t.Error(err)
	}
}

// token makes a JWT; claims replace what would be there, nil takes it away.
func (i *issuer) token(algorithm jose.SignatureAlgorithm, key any, claims map[string]any) string {
	i.t.Helper()
	all := map[string]any{"iss": i.server.URL, "aud": "fencelock", "sub": "ci", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	for name, value := range claims {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "1"))
	if err != nil {
		i.t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(all).Serialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

func TestJWTs(t *testing.T) {
	i := newIssuer(t)
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	v := NewIssuer(OIDC{Issuer: i.server.URL, Audience: "fencelock", Claim: "sub"})
	claim, err := v.Verify(t.Context(), i.token(jose.RS256, i.key, nil))
	if err != nil || claim != "ci" {
		t.Fatalf("claim %q, %v", claim, err)
	}
	past, future := time.Now().Add(-time.Minute).Unix(), time.Now().Add(time.Hour).Unix()
	for name, token := range map[string]string{
		"expired":           i.token(jose.RS256, i.key, map[string]any{"exp": past}),
		"not yet":           i.token(jose.RS256, i.key, map[string]any{"nbf": future}),
		"other issuer":      i.token(jose.RS256, i.key, map[string]any{"iss": "https://elsewhere.example"}),
		"other audience":    i.token(jose.RS256, i.key, map[string]any{"aud": "somebody"}),
		"no audience":       i.token(jose.RS256, i.key, map[string]any{"aud": nil}),
		"no end":            i.token(jose.RS256, i.key, map[string]any{"exp": nil}),
		"other key":         i.token(jose.RS256, other, nil),
		"a secret of whose": i.token(jose.HS256, i.key.N.Bytes(), nil),
		"no signature":      "eyJhbGciOiJub25lIn0.eyJzdWIiOiJjaSJ9.",
		"nonsense":          "a.b.c",
	} {
		if claim, err := v.Verify(t.Context(), token); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("%s: %q, %v", name, claim, err)
		}
	}
}

func TestTheClaimThatIsTheIdentity(t *testing.T) {
	i := newIssuer(t)
	v := NewIssuer(OIDC{Issuer: i.server.URL, Audience: "fencelock", Claim: "email"})
	claim, err := v.Verify(t.Context(), i.token(jose.RS256, i.key, map[string]any{"email": "a@example.com", "email_verified": true}))
	if err != nil || claim != "a@example.com" {
		t.Errorf("claim %q, %v", claim, err)
	}
	for name, claims := range map[string]map[string]any{
		"none": nil, "a number": {"email": 7}, "empty": {"email": ""}, "not verified": {"email": "a@example.com", "email_verified": false},
	} {
		if claim, err := v.Verify(t.Context(), i.token(jose.RS256, i.key, claims)); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("%s: %q, %v", name, claim, err)
		}
	}
}

func TestAnIssuerMayBeAway(t *testing.T) {
	i := newIssuer(t)
	token := i.token(jose.RS256, i.key, nil)
	i.away.Store(true)
	v := NewIssuer(OIDC{Issuer: i.server.URL, Audience: "fencelock", Claim: "sub"})
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrUnavailable) {
		t.Errorf("away at the start: %v", err)
	}
	i.away.Store(false)
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrUnavailable) {
		t.Errorf("asked again at once: %v", err)
	}
	v.tried = time.Time{} // a while later
	if _, err := v.Verify(t.Context(), token); err != nil {
		t.Errorf("back again: %v", err)
	}
	// A token that was good a moment ago needs no issuer, another one with an
	// unknown key does.
	i.away.Store(true)
	if _, err := v.Verify(t.Context(), token); err != nil {
		t.Errorf("checked a moment ago: %v", err)
	}
	v = NewIssuer(OIDC{Issuer: i.server.URL, Audience: "fencelock", Claim: "sub"})
	i.away.Store(false)
	if _, err := v.discovered(t.Context()); err != nil {
		t.Fatal(err)
	}
	i.away.Store(true)
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrUnavailable) {
		t.Errorf("its keys are away: %v", err)
	}
}

func TestATrustedTokenStillEnds(t *testing.T) {
	i := newIssuer(t)
	v := NewIssuer(OIDC{Issuer: i.server.URL, Audience: "fencelock", Claim: "sub"})
	token := i.token(jose.RS256, i.key, map[string]any{"exp": time.Now().Add(2 * time.Second).Unix()})
	if _, err := v.Verify(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	deadline, tick := time.After(30*time.Second), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := v.Verify(t.Context(), token); errors.Is(err, ErrBadCredentials) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("believed beyond its end")
		}
	}
}

func TestRulesOfAClaim(t *testing.T) {
	i := newIssuer(t)
	p := mustParse(t, "builder jwt=ci acquire=ci/")
	k := &Keeper{jwt: NewIssuer(OIDC{Issuer: i.server.URL, Audience: "fencelock", Claim: "sub"})}
	k.policy.Store(p)
	ask := func(token string) (*Identity, error) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		return k.Identify(r)
	}
	if who, err := ask(i.token(jose.RS256, i.key, nil)); err != nil || who.Name() != "builder" {
		t.Errorf("%v, %v", who, err)
	}
	if who, err := ask(i.token(jose.RS256, i.key, map[string]any{"sub": "somebody"})); !errors.Is(err, ErrBadCredentials) {
		t.Errorf("a claim without a line: %v, %v", who, err)
	}
}
