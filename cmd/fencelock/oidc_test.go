package main

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/fencelock/fencelock/api/wire"
)

// TestOpenIDConnect runs the program with OpenID Connect configured, against an issuer on this machine. api/access
// tests which JWTs are refused.
func TestOpenIDConnect(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	issuer := httptest.NewServer(mux)
	defer issuer.Close()
	var asked atomic.Int32
	answer := func(path string, body any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(body); err != nil {
				t.Error(err)
			}
		})
	}
	answer("/.well-known/openid-configuration", map[string]any{
		"issuer": issuer.URL, "jwks_uri": issuer.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256"},
	})
	answer("/keys", jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "1", Algorithm: "RS256", Use: "sig"}}})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "1"))
	if err != nil {
		t.Fatal(err)
	}
	token := func(subject, audience string) string {
		text, err := jwt.Signed(signer).Claims(map[string]any{
			"iss": issuer.URL, "aud": audience, "sub": "u-1", "repository": subject, "exp": time.Now().Add(time.Hour).Unix(),
		}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	file := filepath.Join(t.TempDir(), "access.txt")
	writeFile(t, file, "ci jwt=acme/shop acquire=ci/\nspaced jwt=a%20b acquire=ci/\nend\n")
	p := start(t, "FENCELOCK_ACCESS_FILE="+file, "FENCELOCK_OIDC_ISSUER="+issuer.URL, "FENCELOCK_OIDC_AUDIENCE=fencelock", "FENCELOCK_OIDC_CLAIM=repository")
	good := token("acme/shop", "fencelock")
	var lease wire.Lease
	p.wants(p.ask(&lease, "POST", "/locks", `{"resource":"ci/1"}`, bearer(good)), http.StatusCreated)
	p.wants(p.ask(nil, "POST", "/leases/current/extend", "", bearer(token("acme/shop", "fencelock")), "Fencelock-Lease: "+lease.LeaseID), http.StatusOK)
	p.wants(p.ask(nil, "GET", "/leases/current", "", bearer(token("a b", "fencelock")), "Fencelock-Lease: "+lease.LeaseID), http.StatusNotFound)
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"orders/1"}`, bearer(good)), http.StatusForbidden)
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"ci/2"}`, bearer(token("acme/shop", "somebody else"))), http.StatusUnauthorized)
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"ci/2"}`, bearer(token("u-1", "fencelock"))), http.StatusUnauthorized)

	// Garbage that names a key which does not exist: the keys were fetched less
	// than a minute ago, so no request of these makes the server fetch them again.
	before, began := asked.Load(), time.Now()
	forged := strings.Replace(good, ".", "x.", 1)
	unknownKey := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","kid":"unknown"}`)) + good[strings.IndexByte(good, '.'):]
	for range 30 {
		p.wants(p.ask(nil, "GET", "/locks", "", bearer(unknownKey)), http.StatusUnauthorized)
		p.wants(p.ask(nil, "GET", "/locks", "", bearer(forged)), http.StatusUnauthorized)
	}
	if took := time.Since(began); asked.Load() != before && took < 30*time.Second {
		t.Errorf("60 garbage tokens made %d requests to the issuer", asked.Load()-before)
	}

	issuer.Close() // what was checked a moment ago is believed, anything new is not
	p.wants(p.ask(nil, "GET", "/leases/current", "", bearer(good), "Fencelock-Lease: "+lease.LeaseID), http.StatusOK)
	noSecrets(t, "the log", p.Logs(), []string{good})
}
