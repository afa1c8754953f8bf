package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	discovery = "/.well-known/openid-configuration"
	keysPath  = "/keys"
)

// TestAnEMailAddressIsVerified only by the JSON value true.
func TestAnEMailAddressIsVerified(t *testing.T) {
	i := newIssuer(t)
	v := i.verifier("email")
	token := func(verified string) string {
		claims := map[string]any{"email": "a@example.com"}
		if verified != "" {
			claims["email_verified"] = json.RawMessage(verified)
		}
		return i.token(jose.RS256, i.key, claims)
	}
	if err := i.verified(v, token("true")); err != nil {
		t.Errorf("true: %v", err)
	}
	for _, value := range []string{"", "false", `"false"`, `"true"`, "0", "1", "null", "[]", "[true]", `{"a":true}`} {
		if err := i.verified(v, token(value)); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("email_verified: %s is accepted: %v", value, err)
		}
	}
}

// TestKeysEndWithTheHour although the issuer cannot be asked: it may have withdrawn
// them. It is asked every minute meanwhile.
func TestKeysEndWithTheHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		v := i.verifier("sub")
		token := i.token(jose.RS256, i.key, map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()})
		if err := i.verified(v, token); err != nil {
			t.Fatal(err)
		}
		i.away.Store(true)
		time.Sleep(time.Hour - time.Second)
		if err := i.verified(v, token); err != nil {
			t.Errorf("in the hour of an outage: %v", err)
		}
		time.Sleep(time.Second)
		if err := i.verified(v, token); !errors.Is(err, ErrUnavailable) {
			t.Errorf("after the hour: %v", err)
		}
		i.away.Store(false)
		time.Sleep(fetchPause)
		if err := i.verified(v, token); err != nil {
			t.Errorf("a minute after the outage: %v", err)
		}

		i.away.Store(true)
		time.Sleep(2 * time.Hour)
		i.rotate("2")
		i.away.Store(false)
		time.Sleep(fetchPause)
		if err := i.verified(v, token); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("a key that was withdrawn during an outage: %v", err)
		}
	})
}

// TestAFailedFetchIsRepeated: the keys that nobody could fetch in an outage are
// replaced within a minute of its end, although no token asks for that.
func TestAFailedFetchIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		v := i.verifier("sub")
		lasting := map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()}
		before := i.token(jose.RS256, i.key, lasting)
		if err := i.verified(v, before); err != nil {
			t.Fatal(err)
		}
		i.away.Store(true)
		time.Sleep(50 * time.Minute) // the fetch that was due has failed
		i.rotate("2")
		i.away.Store(false)
		time.Sleep(fetchPause + trustFor)
		if err := i.verified(v, before); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("a minute after the outage the withdrawn key counts: %v", err)
		}
	})
}

// refused expects that no key is had from the issuer as it is now.
func (i *issuer) refused(what string) {
	i.t.Helper()
	v := NewIssuer(OIDC{Issuer: issuerURL, Audience: "fencelock", Claim: "sub"})
	v.client = newClient(issuerURL, i)
	if err := v.fetch(i.t.Context()); err == nil {
		i.t.Errorf("%s: keys are accepted", what)
	}
}

// TestKeysComeOverTLS, whatever the issuer's documents say.
func TestKeysComeOverTLS(t *testing.T) {
	document := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"http://issuer.example.com/keys"}`, issuerURL)
	}
	toPlain := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Scheme == "https" {
			http.Redirect(w, r, "http://issuer.example.com"+r.URL.Path+"2", http.StatusFound)
		}
	}
	for name, instead := range map[string]map[string]http.HandlerFunc{
		"jwks_uri":                 {discovery: document},
		"a redirected document":    {discovery: toPlain, discovery + "2": document},
		"a redirected set of keys": {keysPath: toPlain, keysPath + "2": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"keys":[]}`) }},
		"a redirect to a loopback": {keysPath: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1/k", http.StatusFound)
		}},
		"a jwks_uri of this server": {discovery: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"http://localhost/keys"}`, issuerURL)
		}},
	} {
		i := newIssuer(t)
		i.instead = instead
		i.refused(name)
		if i.plain.Load() > 0 {
			t.Errorf("%s: %d requests without TLS", name, i.plain.Load())
		}
	}
}

// TestAnIssuerOnLoopback may use plain HTTP there and nowhere else; one that uses
// TLS there has no plain documents.
func TestAnIssuerOnLoopback(t *testing.T) {
	for _, c := range []struct {
		issuer, address string
		read            bool
	}{
		{"http://127.0.0.1:1", "http://localhost:2/keys", true},
		{"http://[::1]:1", "https://elsewhere.example/keys", true},
		{"http://127.0.0.1:1", "http://elsewhere.example/keys", false},
		{"https://127.0.0.1:1", "http://127.0.0.1:2/keys", false},
		{"http://localhost.elsewhere.example", "http://127.0.0.1:2/keys", false},
	} {
		i := &issuer{t: t}
		resp, err := newClient(c.issuer, i).Get(c.address)
		if (err == nil) != c.read {
			t.Errorf("issuer %s, %s: %v", c.issuer, c.address, err)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
	}
}

// endless is a body that does not end.
type endless struct{ read atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	e.read.Add(int64(len(p)))
	return len(p), nil
}

func (e *endless) Close() error { return nil }

// endlessFor answers a path without an end, and the others as the issuer.
type endlessFor struct {
	*issuer

	path string
	body endless
}

func (e *endlessFor) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path != e.path {
		return e.issuer.RoundTrip(r)
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: &e.body, Request: r}, nil
}

func TestDocumentsWithoutAnEnd(t *testing.T) {
	for _, path := range []string{discovery, keysPath} {
		e := &endlessFor{issuer: newIssuer(t), path: path}
		v := NewIssuer(OIDC{Issuer: issuerURL, Audience: "fencelock", Claim: "sub"})
		v.client = newClient(issuerURL, e)
		if err := v.fetch(t.Context()); err == nil || e.body.read.Load() > 2*maxDocument {
			t.Errorf("%s: %d bytes were read, %v", path, e.body.read.Load(), err)
		}
	}
}

// TestClaimsMeanOneThing: a name that is written twice, or in other letters, is not
// the claim. The library that first read them took the last of either.
func TestClaimsMeanOneThing(t *testing.T) {
	i := newIssuer(t)
	payload := func(more string) string {
		return i.signed(jose.RS256, i.key, strings.ReplaceAll(fmt.Sprintf(`{"iss":%q,"aud":"fencelock","exp":%d,`, issuerURL, time.Now().Add(time.Hour).Unix())+more+"}", "'", `"`))
	}
	whole := func(text string) string { return i.signed(jose.RS256, i.key, text) }
	end := time.Now().Add(time.Hour).Unix()
	v := i.verifier("sub")
	if claim, _, err := v.Verify(t.Context(), payload(`'sub':'ci','SUB':'ops','Sub':'ops'`)); err != nil || claim != "ci" {
		t.Errorf("beside others of other letters: %q, %v", claim, err)
	}
	for name, token := range map[string]string{
		"other letters":       payload(`'Sub':'ops'`),
		"twice":               payload(`'sub':'ci','sub':'ops'`),
		"twice, once escaped": payload(`'sub':'ci','s\u0075b':'ops'`),
		"empty":               payload(`'sub':''`),
		"null":                payload(`'sub':null`),
		"a list":              payload(`'sub':['ops']`),
		"no UTF-8":            payload("'sub':'o\xffps'"),
		"two audiences":       payload(`'sub':'ci','aud':'somebody'`),
		"valid for ever":      whole(fmt.Sprintf(`{"iss":%q,"aud":"fencelock","exp":1000000000000000000,"sub":"ci"}`, issuerURL)),
		"valid for two years": whole(fmt.Sprintf(`{"iss":%q,"aud":"fencelock","exp":%d,"sub":"ci"}`, issuerURL, time.Now().Add(2*366*24*time.Hour).Unix())),
		"AUD":                 whole(fmt.Sprintf(`{"iss":%q,"AUD":"fencelock","exp":%d,"sub":"ci"}`, issuerURL, end)),
		"ISS":                 whole(fmt.Sprintf(`{"ISS":%q,"aud":"fencelock","exp":%d,"sub":"ci"}`, issuerURL, end)),
		"EXP":                 whole(fmt.Sprintf(`{"iss":%q,"aud":"fencelock","EXP":%d,"sub":"ci"}`, issuerURL, end)),
		"more after it":       whole(fmt.Sprintf(`{"iss":%q,"aud":"fencelock","exp":%d,"sub":"ci"}{"sub":"ops"}`, issuerURL, end)),
	} {
		if claim, _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("%s: %q, %v", name, claim, err)
		}
	}
	other := i.verifier("role")
	if claim, _, err := other.Verify(t.Context(), payload(`'sub':'ci','role':'a','role':'ops'`)); !errors.Is(err, ErrBadCredentials) {
		t.Errorf("another claim twice: %q, %v", claim, err)
	}
}

// TestKeysForSomethingElse verify no signature.
func TestKeysForSomethingElse(t *testing.T) {
	for name, change := range map[string]func(*jose.JSONWebKey){
		"of encryption":              func(key *jose.JSONWebKey) { key.Use = "enc" },
		"of an unknown use":          func(key *jose.JSONWebKey) { key.Use = "SIG" },
		"of an encryption algorithm": func(key *jose.JSONWebKey) { key.Use, key.Algorithm = "", "RSA-OAEP" },
		"of another algorithm":       func(key *jose.JSONWebKey) { key.Algorithm = "PS256" },
	} {
		i := newIssuer(t)
		change(&i.keys[0])
		if err := i.verified(i.verifier("sub"), i.token(jose.RS256, i.key, nil)); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("a key %s: %v", name, err)
		}
	}
	i := newIssuer(t)
	text, err := i.keys[0].MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for operations, want := range map[string]error{`["encrypt"]`: ErrBadCredentials, `[]`: ErrBadCredentials, `["sign","verify"]`: nil} {
		i.instead = map[string]http.HandlerFunc{keysPath: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"keys":[{"key_ops":%s,%s]}`, operations, text[1:])
		}}
		if err := i.verified(i.verifier("sub"), i.token(jose.RS256, i.key, nil)); !errors.Is(err, want) {
			t.Errorf("a key for %s: %v", operations, err)
		}
	}
	i.instead = nil
	i.keys[0].Use, i.keys[0].Algorithm = "", ""
	if err := i.verified(i.verifier("sub"), i.token(jose.RS256, i.key, nil)); err != nil {
		t.Errorf("a key that says nothing: %v", err)
	}
}

// TestAJWTOfTheFuture is refused, but for a minute that clocks may differ by.
func TestAJWTOfTheFuture(t *testing.T) {
	i := newIssuer(t)
	v := i.verifier("sub")
	for _, claim := range []string{"nbf", "iat"} {
		at := func(ahead time.Duration) string {
			return i.token(jose.RS256, i.key, map[string]any{claim: time.Now().Add(ahead).Unix()})
		}
		if err := i.verified(v, at(30*time.Second)); err != nil {
			t.Errorf("%s in 30 s: %v", claim, err)
		}
		if err := i.verified(v, at(290*time.Second)); !errors.Is(err, ErrBadCredentials) {
			t.Errorf("%s in 290 s: %v", claim, err)
		}
	}
}

// TestTheDocumentIsOfThisIssuer, and names where its keys are.
func TestTheDocumentIsOfThisIssuer(t *testing.T) {
	for name, text := range map[string]string{
		"another issuer":         `{"issuer":"https://elsewhere.example","jwks_uri":"https://issuer.example.com/keys"}`,
		"no issuer":              `{"jwks_uri":"https://issuer.example.com/keys"}`,
		"no keys":                `{"issuer":"https://issuer.example.com"}`,
		"two addresses":          `{"issuer":"https://issuer.example.com","jwks_uri":"https://issuer.example.com/keys","jwks_uri":"https://elsewhere.example/keys"}`,
		"a page":                 `<html>`,
		"an address of no place": `{"issuer":"https://issuer.example.com","jwks_uri":"file:///etc/passwd"}`,
	} {
		i := newIssuer(t)
		i.instead = map[string]http.HandlerFunc{discovery: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }}
		i.refused(name)
	}
}
