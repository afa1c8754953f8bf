// Package fencinghttp reads fencing tokens from HTTP requests, for services that own the storage that the
// tokens protect. Like package fencing, it imports only the standard library.
//
//	mux.Handle("PUT /accounts/{id}", fencinghttp.Require(putAccount))
//
// In the handler, fencing.FromContext returns the token. WriteStale writes the response to a
// *fencing.StaleTokenError.
package fencinghttp

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/fencelock/fencelock/fencing"
)

// ProofHeader is the request header that carries the fencing_proof of a lease.
const ProofHeader = "Fencing-Proof"

// Header is the request header that carries a token, and the response header with the highest token seen.
const Header = "Fencing-Token"

// Require puts the token of each request into its context. A request without a token gets 428, and one with a
// malformed or repeated token gets 400, as problem details (RFC 9457). Neither reaches next.
func Require(next http.Handler) http.Handler { return middleware{next: next, required: true} }

// Accept is Require, except that requests without a token reach next, without a token in their context.
func Accept(next http.Handler) http.Handler { return middleware{next: next} }

// Verifier verifies proofs: *fencing.ProofKeys, or a type that follows changes of the keys.
type Verifier interface {
	// Verify returns a *fencing.ProofError if the proof is missing, is for another resource or token, or was
	// made with an unknown key.
	Verify(resource string, token fencing.Token, proof string) error
}

// RequireProof is Require that also demands a proof that the token was minted for the resource. resource
// returns the resource of a request. A request without a proof gets 428, and one with a wrong proof gets 403.
// In the handler, fencing.ProofFromContext returns the proof, for storage that also demands it.
func RequireProof(keys Verifier, resource func(*http.Request) string, next http.Handler) http.Handler {
	return Require(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header.Values(ProofHeader)
		if len(values) > 1 {
			write(w, malformed("the header "+ProofHeader+" was sent more than once"))
			return
		}
		proof := r.Header.Get(ProofHeader)
		token, _ := fencing.FromContext(r.Context())
		if err := keys.Verify(resource(r), token, proof); err != nil {
			WriteProof(w, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(fencing.NewProofContext(r.Context(), proof)))
	}))
}

// WriteProof responds with 428 or 403 if err is, or wraps, a *fencing.ProofError. Otherwise it writes nothing
// and returns false.
func WriteProof(w http.ResponseWriter, err error) bool {
	var refused *fencing.ProofError
	if !errors.As(err, &refused) {
		return false
	}
	p := problem{
		Type: "/problems/proof-refused", Title: "Fencing proof refused", Status: http.StatusForbidden,
		Detail: refused.Error(), Resource: refused.Resource, Presented: refused.Presented,
	}
	if refused.Missing {
		p.Type, p.Title, p.Status = "/problems/proof-required", "Fencing proof required", http.StatusPreconditionRequired
		p.Detail = "send the fencing_proof of your lease in the header " + ProofHeader
	}
	write(w, p)
	return true
}

type middleware struct {
	next     http.Handler
	required bool
}

func (m middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	values := r.Header.Values(Header)
	switch {
	case len(values) == 0 && m.required:
		write(w, problem{
			Type: "/problems/token-required", Title: "Fencing token required", Status: http.StatusPreconditionRequired,
			Detail: "send the fencing token of your lease in the header " + Header,
		})
		return
	case len(values) == 0:
		m.next.ServeHTTP(w, r)
		return
	case len(values) > 1:
		write(w, malformed("the header "+Header+" was sent more than once"))
		return
	}
	token, err := fencing.ParseToken(values[0])
	if err != nil {
		write(w, malformed("header "+Header+": "+err.Error()))
		return
	}
	m.next.ServeHTTP(w, r.WithContext(fencing.NewContext(r.Context(), token)))
}

// WriteStale responds with 412 and the highest token seen if err is, or wraps, a *fencing.StaleTokenError.
// Otherwise it writes nothing and returns false.
func WriteStale(w http.ResponseWriter, err error) bool {
	var stale *fencing.StaleTokenError
	if !errors.As(err, &stale) {
		return false
	}
	w.Header().Set(Header, stale.Highest.String())
	write(w, problem{
		Type: "/problems/stale-token", Title: "Stale fencing token", Status: http.StatusPreconditionFailed,
		Detail: stale.Error(), Resource: stale.Resource, Presented: stale.Presented, Highest: stale.Highest,
	})
	return true
}

// problem is the body of a refusal (RFC 9457).
type problem struct {
	Type      string        `json:"type"`
	Title     string        `json:"title"`
	Status    int           `json:"status"`
	Detail    string        `json:"detail"`
	Resource  string        `json:"resource,omitempty"`
	Presented fencing.Token `json:"presented,omitempty"`
	Highest   fencing.Token `json:"highest,omitempty"`
}

func malformed(detail string) problem {
	return problem{Type: "/problems/invalid-request", Title: "Invalid request", Status: http.StatusBadRequest, Detail: detail}
}

func write(w http.ResponseWriter, p problem) {
	body, err := json.Marshal(p)
	if err != nil { // cannot happen: a struct of strings and numbers can be marshalled
		http.Error(w, p.Detail, p.Status)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // an error means that the client is gone
}
