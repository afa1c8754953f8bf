package fencing

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// A proof (fencing_proof) shows that a token was minted by the lock service, for
// the resource and no other: without one, anybody who can write could raise a
// mark with a number that was never granted, and lock every holder out.
//
// It is the id of a key, a dot, and HMAC-SHA256 under that key of resource and
// token, in unpadded URL-safe base64. Who has the key can make proofs as well as
// verify them.

// Bounds of the keys.
const (
	MinProofKeyBytes = 32
	MaxProofKeyBytes = 64 // of more, HMAC would use the hash
	maxProofKeyID    = 16
	proofMACLen      = 43 // characters
)

var (
	// ErrProof is what every *ProofError matches with errors.Is.
	ErrProof = errors.New("fencing proof refused")
	// ErrNoProof is also what a *ProofError matches if there was no proof at all.
	ErrNoProof = errors.New("no fencing proof")
)

// ProofError refuses a token that was not shown to be minted for the resource.
// Nothing was changed; the same token and proof never succeed.
type ProofError struct {
	Resource  string
	Presented Token
	Missing   bool // there was no proof
}

func (e *ProofError) Error() string {
	if e.Missing {
		return fmt.Sprintf("no proof that token %d was minted for %q: send the fencing_proof of the lease", e.Presented, e.Resource)
	}
	return fmt.Sprintf("the proof does not show that token %d was minted for %q", e.Presented, e.Resource)
}

// Is makes errors.Is(err, ErrProof) true, and errors.Is(err, ErrNoProof) where it was missing.
func (e *ProofError) Is(target error) bool {
	return target == ErrProof || e.Missing && target == ErrNoProof
}

// ProofKey is a key with the name that proofs bear.
type ProofKey struct {
	ID     string // 1 to 16 letters, digits, '-' or '_'
	Secret []byte // 32 to 64 bytes, random
}

// ProofKeys make and verify proofs: the first key makes them, all verify. They
// are safe for concurrent use.
type ProofKeys struct{ keys []ProofKey }

// NewProofKeys takes one key or more. The error never shows a secret.
func NewProofKeys(keys ...ProofKey) (*ProofKeys, error) {
	if len(keys) == 0 {
		return nil, errors.New("no proof key")
	}
	seen := make(map[string]bool)
	for i, k := range keys {
		switch {
		case !validKeyID(k.ID):
			return nil, fmt.Errorf("proof key %d: its id must be 1 to %d letters, digits, '-' or '_'", i+1, maxProofKeyID)
		case len(k.Secret) < MinProofKeyBytes || len(k.Secret) > MaxProofKeyBytes:
			return nil, fmt.Errorf("proof key %s: it must be %d to %d bytes long", k.ID, MinProofKeyBytes, MaxProofKeyBytes)
		case seen[k.ID]:
			return nil, fmt.Errorf("proof key %s is there twice", k.ID)
		}
		seen[k.ID] = true
	}
	return &ProofKeys{keys: append([]ProofKey(nil), keys...)}, nil
}

// ParseProofKeys reads a file of keys: a line for each, its id and the key in
// hexadecimal digits; '#' begins a comment. The error never shows a key.
func ParseProofKeys(text string) (*ProofKeys, error) {
	var keys []ProofKey
	for number, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %d: must be the key's id, a space, and the key", number+1)
		}
		secret, err := hex.DecodeString(fields[1])
		if err != nil {
			return nil, fmt.Errorf("line %d: the key must be %d to %d bytes in hexadecimal digits, as openssl rand -hex 32 prints them", number+1, MinProofKeyBytes, MaxProofKeyBytes)
		}
		keys = append(keys, ProofKey{ID: fields[0], Secret: secret})
	}
	return NewProofKeys(keys...)
}

func validKeyID(id string) bool {
	for _, c := range []byte(id) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && c != '-' && c != '_' {
			return false
		}
	}
	return len(id) >= 1 && len(id) <= maxProofKeyID
}

// Keys lists the keys, the one that signs first.
func (k *ProofKeys) Keys() []ProofKey { return append([]ProofKey(nil), k.keys...) }

// Prove makes the proof of a token for a resource.
func (k *ProofKeys) Prove(resource string, token Token) string {
	return k.sign(proofText(resource, token))
}

// Verify accepts a proof that one of the keys made for resource and token. The
// error is a *ProofError.
func (k *ProofKeys) Verify(resource string, token Token, proof string) error {
	if proof == "" || !k.signed(proofText(resource, token), proof) {
		return &ProofError{Resource: resource, Presented: token, Missing: proof == ""}
	}
	return nil
}

// proofText is what is signed. No resource has a line break, so no two pairs of
// token and resource make the same text; package pgguard's SQL makes it, too.
func proofText(resource string, token Token) string {
	return "fencelock proof v1\n" + token.String() + "\n" + resource
}

func (k *ProofKeys) sign(text string) string { return k.keys[0].ID + "." + k.keys[0].mac(text) }

func (k *ProofKeys) signed(text, signature string) bool {
	id, mac, _ := strings.Cut(signature, ".")
	if len(mac) != proofMACLen {
		return false
	}
	for _, key := range k.keys {
		if key.ID == id {
			return hmac.Equal([]byte(key.mac(text)), []byte(mac))
		}
	}
	return false
}

func (k ProofKey) mac(text string) string {
	mac := hmac.New(sha256.New, k.Secret)
	_, _ = mac.Write([]byte(text)) // never fails (hash.Hash)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

type proofContextKey struct{}

// NewProofContext carries a proof to where the storage is written, as NewContext
// carries the token.
func NewProofContext(ctx context.Context, proof string) context.Context {
	return context.WithValue(ctx, proofContextKey{}, proof)
}

// ProofFromContext gives the proof that NewProofContext put in, "" without one.
func ProofFromContext(ctx context.Context) string {
	proof, _ := ctx.Value(proofContextKey{}).(string)
	return proof
}
