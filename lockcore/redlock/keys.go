package redlock

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"

	"github.com/fencelock/fencelock/lockcore/node"
)

// MaxSecretBytes bounds the secrets that keys are made of: of more, HMAC would use the hash.
const MaxSecretBytes = 64

// tagBytes is the length of the check in a sealed text.
const tagBytes = 16

// Keys seal lease ids and list cursors, and derive the lease values of
// idempotency keys. The first key seals, all of them open, so that a key is
// replaced without ending a live lease: add the new one behind the old one on
// every server, then put it first, and take the old one away when no lease of
// it can live. They are safe for concurrent use.
type Keys struct{ keys []*key }

// NewKeys makes keys of secrets, MinSecretBytes to MaxSecretBytes random bytes
// each, of which no two are the same. The error never shows a secret.
func NewKeys(secrets ...[]byte) (*Keys, error) {
	if len(secrets) == 0 {
		return nil, errors.New("no secret")
	}
	k := &Keys{}
	for i, secret := range secrets {
		if len(secret) < node.MinSecretBytes || len(secret) > MaxSecretBytes {
			return nil, fmt.Errorf("secret %d must be %d to %d bytes long", i+1, node.MinSecretBytes, MaxSecretBytes)
		}
		for _, other := range secrets[:i] {
			if bytes.Equal(other, secret) {
				return nil, fmt.Errorf("secret %d is there twice", i+1)
			}
		}
		k.keys = append(k.keys, newKey(secret))
	}
	return k, nil
}

// key is one secret, ready to use. Every use has a key of its own made of the
// secret, so that what is made for one use is of no use for another.
type key struct {
	id      [node.KeyIDBytes]byte // public: sealed texts name their key by it
	values  []byte                // of the lease values of idempotency keys
	tickets []byte                // of their tickets
	sealers sync.Pool             // *sealer, of lease ids
	cursors cipher.AEAD
}

func newKey(secret []byte) *key {
	k := &key{values: node.Subkey(secret, "idempotency key"), tickets: node.Subkey(secret, "ticket")}
	copy(k.id[:], node.Subkey(secret, "key id"))
	leases := node.Subkey(secret, "lease id")
	k.sealers.New = func() any { return &sealer{mac: hmac.New(sha256.New, leases)} }
	block, err := aes.NewCipher(node.Subkey(secret, "cursor"))
	if err == nil {
		k.cursors, err = cipher.NewGCMWithRandomNonce(block)
	}
	if err != nil {
		panic("redlock: " + err.Error()) // a hash has the length of an AES-256 key
	}
	return k
}

// sealer is the room that sealing a lease id takes, used again and again.
type sealer struct {
	mac  hash.Hash
	raw  []byte
	text []byte
	sum  [sha256.Size]byte
}

// tag is over the owner and two parts of a lease id, around the tag itself.
func (s *sealer) tag(owner string, head, body []byte) []byte {
	s.mac.Reset()
	s.text = binary.AppendUvarint(s.text[:0], uint64(len(owner)))
	s.text = append(s.text, owner...)
	s.text = append(s.text, head...)
	_, _ = s.mac.Write(s.text)
	_, _ = s.mac.Write(body)
	return s.mac.Sum(s.sum[:0])[:tagBytes]
}

// leaseValue makes the same ownership value of the same idempotency key and
// owner each time, so that a retry finds its own lease with nothing stored. Who
// does not know the secret can compute no value, and no two owners share one.
func (k *key) leaseValue(owner, idempotencyKey string) string {
	mac := hmac.New(sha256.New, k.values)
	text := binary.AppendUvarint(make([]byte, 0, 128), uint64(len(owner)))
	text = append(text, owner...)
	_, _ = mac.Write(append(text, idempotencyKey...))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:leaseSecretBytes])
}

// ticketID is the id of the ticket with which a request under an idempotency key
// waits for a resource. A request that waits over a rotation of the secret has
// another one afterwards.
func (k *Keys) ticketID(caller, idempotencyKey, resource string) string {
	const idBytes = 9
	mac := hmac.New(sha256.New, k.keys[0].tickets)
	for _, text := range []string{caller, idempotencyKey, resource} {
		_, _ = mac.Write(binary.AppendUvarint(nil, uint64(len(text))))
		_, _ = mac.Write([]byte(text))
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:idBytes])
}

// leaseValues are the values of an idempotency key under every key, the one to
// use first: a lease from before the secret was replaced has one of the others.
func (k *Keys) leaseValues(owner, idempotencyKey string) []string {
	values := make([]string, len(k.keys))
	for i, key := range k.keys {
		values[i] = key.leaseValue(owner, idempotencyKey)
	}
	return values
}

// named gives the key of that id, nil if there is none.
func (k *Keys) named(id []byte) *key {
	for _, key := range k.keys {
		if bytes.Equal(key.id[:], id) {
			return key
		}
	}
	return nil
}

// sealCursor hides where a listing stands from who asks for its next page. It
// opens only with the same use, which is the owner and the list's prefix.
func (k *Keys) sealCursor(use, cursor string) string {
	key := k.keys[0]
	raw := append(make([]byte, 0, node.KeyIDBytes+key.cursors.Overhead()+len(cursor)), key.id[:]...)
	sealed := key.cursors.Seal(raw, nil, []byte(cursor), []byte(use)) //nolint:gosec // it draws a nonce by itself
	return base64.RawURLEncoding.EncodeToString(sealed)
}

// openCursor reports false for what sealCursor did not make for this use.
func (k *Keys) openCursor(use, text string) (cursor string, ok bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < node.KeyIDBytes {
		return "", false
	}
	key := k.named(raw[:node.KeyIDBytes])
	if key == nil {
		return "", false
	}
	opened, err := key.cursors.Open(nil, nil, raw[node.KeyIDBytes:], []byte(use))
	return string(opened), err == nil
}
