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

// A proof (fencing_proof) shows that the lock service minted a token for this resource. Without proofs,
// everyone who can write could raise a mark with a number that was never granted, and so lock every holder
// out.
//
// A proof is the id of a key, a dot, and the HMAC-SHA256 of resource and token under that key, in unpadded
// URL-safe base64. Whoever has the key can both make and verify proofs.

// Bounds of the keys.
const (
	MinProofKeyBytes = 32
	MaxProofKeyBytes = 64 // HMAC would hash a longer key
	maxProofKeyID    = 16
	proofMACLen      = 43 // characters
)

var (
	// ErrProof is what every *ProofError matches with errors.Is.
	ErrProof = errors.New("fencing proof refused")
	// ErrNoProof is what a *ProofError also matches if the proof was missing.
	ErrNoProof = errors.New("no fencing proof")
)

// ProofError refuses a token without a proof that it was minted for the resource. Nothing was changed. The
// same token and proof never succeed.
type ProofError struct {
	Resource  string
	Presented Token
	Missing   bool // no proof was presented
}

func (e *ProofError) Error() string {
	if e.Missing {
		return fmt.Sprintf("no proof that token %d was minted for %q: send the fencing_proof of the lease", e.Presented, e.Resource)
	}
	return fmt.Sprintf("the proof does not show that token %d was minted for %q", e.Presented, e.Resource)
}

// Is makes errors.Is(err, ErrProof) true, and errors.Is(err, ErrNoProof) if the proof was missing.
func (e *ProofError) Is(target error) bool {
	return target == ErrProof || e.Missing && target == ErrNoProof
}

// ProofKey is a key, with the id that its proofs contain.
type ProofKey struct {
	ID     string // 1 to 16 letters, digits, '-' or '_'
	Secret []byte // 32 to 64 bytes, random
}

// ProofKeys make and verify proofs. The first key makes them, and any key verifies them. They are safe for
// concurrent use.
type ProofKeys struct{ keys []ProofKey }

// NewProofKeys makes ProofKeys of one or more keys. The error never shows a secret.
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

// ParseProofKeys reads a file of keys. Each line has the id of a key and the key in hexadecimal digits; '#'
// begins a comment. The error never shows a key.
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

// Keys returns the keys. The first one signs.
func (k *ProofKeys) Keys() []ProofKey { return append([]ProofKey(nil), k.keys...) }

// Prove makes the proof of a token for a resource.
func (k *ProofKeys) Prove(resource string, token Token) string {
	return k.sign(proofText(resource, token))
}

// Verify returns nil if one of the keys made the proof for this resource and token. The error is a
// *ProofError.
func (k *ProofKeys) Verify(resource string, token Token, proof string) error {
	if proof == "" || !k.signed(proofText(resource, token), proof) {
		return &ProofError{Resource: resource, Presented: token, Missing: proof == ""}
	}
	return nil
}

// proofText returns the text that is signed. No resource contains a line break, so different pairs of token
// and resource have different texts. The SQL of package pgguard makes the same text.
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

// NewProofContext returns a context that carries a proof to the code that writes to the storage, as
// NewContext does with the token.
func NewProofContext(ctx context.Context, proof string) context.Context {
	return context.WithValue(ctx, proofContextKey{}, proof)
}

// ProofFromContext returns the proof that NewProofContext put into the context; "" without one.
func ProofFromContext(ctx context.Context) string {
	proof, _ := ctx.Value(proofContextKey{}).(string)
	return proof
}
