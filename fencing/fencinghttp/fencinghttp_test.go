package fencinghttp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/fencing/fencinghttp"
)

func TestMiddleware(t *testing.T) {
	const none = -1 // the handler saw no token
	tests := []struct {
		name   string
		values []string
		wrap   func(http.Handler) http.Handler
		status int
		token  fencing.Token // what the handler saw; 0 if it was not reached
		typ    string
	}{
		{"a token", []string{"34"}, fencinghttp.Require, 200, 34, ""},
		{"an accepted token", []string{"34"}, fencinghttp.Accept, 200, 34, ""},
		{"the largest token", []string{"9007199254740991"}, fencinghttp.Require, 200, fencing.MaxToken, ""},
		{"none, required", nil, fencinghttp.Require, 428, 0, "/problems/token-required"},
		{"none, accepted", nil, fencinghttp.Accept, 200, none, ""},
		{"empty", []string{""}, fencinghttp.Accept, 400, 0, "/problems/invalid-request"},
		{"zero", []string{"0"}, fencinghttp.Require, 400, 0, "/problems/invalid-request"},
		{"too large", []string{"9007199254740992"}, fencinghttp.Require, 400, 0, "/problems/invalid-request"},
		{"not a number", []string{"34x"}, fencinghttp.Accept, 400, 0, "/problems/invalid-request"},
		{"a list", []string{"34, 35"}, fencinghttp.Accept, 400, 0, "/problems/invalid-request"},
		{"two headers", []string{"34", "35"}, fencinghttp.Require, 400, 0, "/problems/invalid-request"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var seen fencing.Token
			handler := tt.wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				token, ok := fencing.FromContext(r.Context())
				if seen = token; !ok {
					seen = none
				}
			}))
			r := httptest.NewRequest(http.MethodPut, "/", nil)
			for _, v := range tt.values {
				r.Header.Add("Fencing-Token", v)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != tt.status || seen != tt.token {
				t.Errorf("status %d and token %d, want %d and %d", w.Code, seen, tt.status, tt.token)
			}
			if tt.typ != "" {
				checkProblem(t, w, tt.typ)
			}
		})
	}
}

func checkProblem(t *testing.T, w *httptest.ResponseRecorder, typ string) {
	t.Helper()
	var body struct {
		Type   string `json:"type"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatal(err)
	}
	if body.Type != typ || body.Status != w.Code || body.Detail == "" {
		t.Errorf("problem is %+v, want type %s and status %d", body, typ, w.Code)
	}
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type is %q", got)
	}
}

func TestWriteStale(t *testing.T) {
	w := httptest.NewRecorder()
	err := fmt.Errorf("save: %w", &fencing.StaleTokenError{Resource: "r", Presented: 33, Highest: 34})
	if !fencinghttp.WriteStale(w, err) {
		t.Fatal("a stale token was not answered")
	}
	if w.Code != http.StatusPreconditionFailed || w.Header().Get("Fencing-Token") != "34" {
		t.Errorf("answer is %d with token %q", w.Code, w.Header().Get("Fencing-Token"))
	}
	checkProblem(t, w, "/problems/stale-token")

	w = httptest.NewRecorder()
	if fencinghttp.WriteStale(w, errors.New("another error")) || w.Body.Len() > 0 {
		t.Error("another error was answered")
	}
}

func TestRequireProof(t *testing.T) {
	keys, err := fencing.ParseProofKeys("k1 0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20")
	if err != nil {
		t.Fatal(err)
	}
	reached, proof := false, keys.Prove("accounts/1", 34)
	mux := http.NewServeMux()
	mux.Handle("PUT /accounts/{id}", fencinghttp.RequireProof(keys, func(r *http.Request) string { return "accounts/" + r.PathValue("id") },
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			token, _ := fencing.FromContext(r.Context())
			reached = token == 34 && fencing.ProofFromContext(r.Context()) == proof
		})))
	for name, tt := range map[string]struct {
		path, token string
		proofs      []string
		status      int
		typ         string
	}{
		"proven":           {"/accounts/1", "34", []string{proof}, 200, ""},
		"none":             {"/accounts/1", "34", nil, 428, "/problems/proof-required"},
		"no token":         {"/accounts/1", "", []string{proof}, 428, "/problems/token-required"},
		"a big number":     {"/accounts/1", "9007199254740991", []string{proof}, 403, "/problems/proof-refused"},
		"another resource": {"/accounts/2", "34", []string{proof}, 403, "/problems/proof-refused"},
		"nonsense":         {"/accounts/1", "34", []string{"k1.x"}, 403, "/problems/proof-refused"},
		"two":              {"/accounts/1", "34", []string{proof, proof}, 400, "/problems/invalid-request"},
	} {
		reached = false
		r := httptest.NewRequest(http.MethodPut, tt.path, nil)
		if tt.token != "" {
			r.Header.Set("Fencing-Token", tt.token)
		}
		for _, p := range tt.proofs {
			r.Header.Add("Fencing-Proof", p)
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code != tt.status || reached != (tt.status == http.StatusOK) {
			t.Errorf("%s: status %d, reached %t; want %d", name, w.Code, reached, tt.status)
		}
		if tt.typ != "" {
			checkProblem(t, w, tt.typ)
		}
	}
	if fencinghttp.WriteProof(httptest.NewRecorder(), errors.New("another error")) {
		t.Error("another error was answered")
	}
}
