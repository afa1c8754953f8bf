package access

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// issuer is an OpenID Connect issuer in this process: what an http.Client of it
// asks needs no network, so tests may run on synctest's clock.
type issuer struct {
	t      *testing.T
	away   atomic.Bool
	hangs  atomic.Bool  // does not answer at all
	asked  atomic.Int32 // for keys
	asking atomic.Int32 // at this moment
	plain  atomic.Int32 // requests without TLS

	instead map[string]http.HandlerFunc // what answers a path instead

	mu   sync.Mutex
	key  *rsa.PrivateKey // what it signs with
	kid  string
	keys []jose.JSONWebKey // what it publishes
}

const issuerURL = "https://issuer.example.com"

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t}
	i.rotate("1")
	return i
}

// rotate signs with a new key of that id, and withdraws the one from before.
func (i *issuer) rotate(kid string) {
	i.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		i.t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.key, i.kid = key, kid
	i.keys = []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: kid, Algorithm: "RS256", Use: "sig"}}
}

// RoundTrip answers as the issuer would.
func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	if i.hangs.Load() {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if r.URL.Scheme != "https" {
		i.plain.Add(1)
	}
	answer := httptest.NewRecorder()
	answer.Header().Set("Content-Type", "application/json")
	switch {
	case i.away.Load():
		answer.WriteHeader(http.StatusInternalServerError)
	case i.instead[r.URL.Path] != nil:
		i.instead[r.URL.Path](answer, r)
	case r.URL.Path == "/keys":
		if i.asked.Add(1); i.asking.Add(1) > 1 {
			i.t.Error("keys are fetched twice at the same time")
		}
		defer i.asking.Add(-1)
		i.mu.Lock()
		defer i.mu.Unlock()
		_, _ = answer.WriteString(`{"keys":[{"kty":"none that is known","kid":"1"},`)
		for n, key := range i.keys {
			text, err := key.MarshalJSON()
			if err != nil {
				i.t.Error(err)
			}
			_, _ = answer.Write(append([]byte(",")[:min(n, 1)], text...))
		}
		_, _ = answer.WriteString("]}")
	default:
		_, _ = answer.WriteString(`{"issuer":"` + issuerURL + `","jwks_uri":"` + issuerURL + `/keys","id_token_signing_alg_values_supported":["RS256","HS256","none"]}`)
	}
	return answer.Result(), nil
}

// verifier is an Issuer that asks this one; Run ends with the test.
func (i *issuer) verifier(claim string) *Issuer {
	i.t.Helper()
	v := NewIssuer(OIDC{Issuer: issuerURL, Audience: "fencelock", Claim: claim})
	v.client = newClient(issuerURL, i)
	ctx, stop := context.WithCancel(i.t.Context())
	var running sync.WaitGroup
	running.Go(func() { v.Run(ctx, slog.New(slog.DiscardHandler)) })
	i.t.Cleanup(func() { stop(); running.Wait() })
	return v
}

// token makes a JWT; claims replace what would be there, nil takes it away.
func (i *issuer) token(algorithm jose.SignatureAlgorithm, key any, claims map[string]any) string {
	i.t.Helper()
	all := map[string]any{"iss": issuerURL, "aud": "fencelock", "sub": "ci", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	for name, value := range claims {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	payload, err := json.Marshal(all)
	if err != nil {
		i.t.Fatal(err)
	}
	return i.signed(algorithm, key, string(payload))
}

// signed makes a JWT of a payload as it is.
func (i *issuer) signed(algorithm jose.SignatureAlgorithm, key any, payload string) string {
	i.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", i.kid))
	if err != nil {
		i.t.Fatal(err)
	}
	object, err := signer.Sign([]byte(payload))
	if err != nil {
		i.t.Fatal(err)
	}
	text, err := object.CompactSerialize()
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
	v := i.verifier("sub")
	claim, _, err := v.Verify(t.Context(), i.token(jose.RS256, i.key, nil))
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
		if claim, _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("%s: %q, %v", name, claim, err)
		}
	}
}

func TestTheClaimThatIsTheIdentity(t *testing.T) {
	i := newIssuer(t)
	v := i.verifier("email")
	claim, _, err := v.Verify(t.Context(), i.token(jose.RS256, i.key, map[string]any{"email": "a@example.com", "email_verified": true}))
	if err != nil || claim != "a@example.com" {
		t.Errorf("claim %q, %v", claim, err)
	}
	for name, claims := range map[string]map[string]any{
		"none": nil, "a number": {"email": 7}, "empty": {"email": ""}, "not verified": {"email": "a@example.com", "email_verified": false},
	} {
		if claim, _, err := v.Verify(t.Context(), i.token(jose.RS256, i.key, claims)); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("%s: %q, %v", name, claim, err)
		}
	}
}

// verified tells how the token fares now.
func (i *issuer) verified(v *Issuer, token string) error {
	_, _, err := v.Verify(i.t.Context(), token)
	return err
}

func TestAnIssuerMayBeAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		token := i.token(jose.RS256, i.key, nil)
		i.away.Store(true)
		v := i.verifier("sub")
		if err := i.verified(v, token); !errors.Is(err, ErrUnavailable) {
			t.Errorf("away at the start: %v", err)
		}
		i.away.Store(false)
		if err := i.verified(v, token); !errors.Is(err, ErrUnavailable) {
			t.Errorf("asked again at once: %v", err)
		}
		time.Sleep(firstPause + time.Millisecond)
		if err := i.verified(v, token); err != nil {
			t.Errorf("back again: %v", err)
		}
		i.away.Store(true)
		time.Sleep(30 * time.Minute)
		if err := i.verified(v, token); err != nil {
			t.Errorf("its keys are known: %v", err)
		}
	})
}

// TestGarbageDoesNotReachTheIssuer: ten minutes of JWTs that name keys which do
// not exist make ten fetches, one at a time, and wait for none.
func TestGarbageDoesNotReachTheIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		v := i.verifier("sub")
		if err := i.verified(v, i.token(jose.RS256, i.key, nil)); err != nil {
			t.Fatal(err)
		}
		other := &issuer{t: t}
		other.rotate("unknown")
		garbage := other.token(jose.RS256, other.key, nil)
		began := time.Now()
		for second := range 600 {
			time.Sleep(time.Until(began.Add(time.Duration(second) * time.Second)))
			var attack sync.WaitGroup
			for range 10 {
				attack.Go(func() {
					if err := i.verified(v, garbage); !errors.Is(err, ErrBadCredentials) {
						t.Errorf("garbage: %v", err)
					}
				})
			}
			attack.Wait()
		}
		if took := time.Since(began); took > 600*time.Second {
			t.Errorf("the attack took %s: requests waited", took)
		}
		if asked := i.asked.Load(); asked < 10 || asked > 11 {
			t.Errorf("%d fetches in ten minutes", asked)
		}
	})
}

// TestARotatedKey is fetched for the first token that names it, if the last
// fetch is a minute ago; what the issuer withdrew is believed for an hour at most.
func TestARotatedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		v := i.verifier("sub")
		lasting := map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()}
		withdrawn := i.token(jose.RS256, i.key, lasting)
		if err := i.verified(v, withdrawn); err != nil {
			t.Fatal(err)
		}
		time.Sleep(fetchPause + time.Millisecond)
		i.rotate("2")
		if err := i.verified(v, i.token(jose.RS256, i.key, nil)); err != nil {
			t.Errorf("the new key: %v", err)
		}
		time.Sleep(trustFor + time.Millisecond)
		if err := i.verified(v, withdrawn); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("the key that was withdrawn: %v", err)
		}
		before := i.token(jose.RS256, i.key, lasting)
		i.rotate("3")
		time.Sleep(time.Hour + time.Millisecond)
		if err := i.verified(v, before); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("a key that was withdrawn while nobody asked: %v", err)
		}
	})
}

// TestASlowIssuer keeps no request waiting for longer than keysWait.
func TestASlowIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		i.hangs.Store(true)
		v := i.verifier("sub")
		token := i.token(jose.RS256, i.key, nil)
		within := func(what string, bound time.Duration, token string, wanted error) {
			t.Helper()
			began := time.Now()
			if err := i.verified(v, token); !errors.Is(err, wanted) || time.Since(began) > bound {
				t.Errorf("%s: %v after %s", what, err, time.Since(began))
			}
		}
		within("no keys yet", keysWait, token, ErrUnavailable)
		i.hangs.Store(false)
		time.Sleep(fetchTimeout + firstPause + time.Millisecond)
		within("keys at last", keysWait, token, nil)
		i.hangs.Store(true)
		time.Sleep(fetchPause + time.Millisecond)
		i.rotate("2")
		within("an unknown key", keysWait, i.token(jose.RS256, i.key, nil), ErrBadCredentials)
		within("a known key meanwhile", 0, token, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := v.Verify(ctx, i.token(jose.RS256, i.key, nil)); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that has gone: %v", err)
		}
	})
}

func TestATrustedTokenStillEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		v := i.verifier("sub")
		end := time.Now().Add(2 * time.Second)
		token := i.token(jose.RS256, i.key, map[string]any{"exp": end.Unix()})
		if _, ends, err := v.Verify(t.Context(), token); err != nil || !ends.Equal(end.Truncate(time.Second)) {
			t.Fatalf("ends %s, %v", ends, err)
		}
		time.Sleep(2*time.Second + 1)
		if err := i.verified(v, token); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("believed beyond its end: %v", err)
		}
	})
}

func TestRulesOfAClaim(t *testing.T) {
	i := newIssuer(t)
	p := mustParse(t, "builder jwt=ci acquire=ci/")
	k := &Keeper{jwt: i.verifier("sub")}
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
