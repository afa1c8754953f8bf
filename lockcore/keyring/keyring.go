// Package keyring seals the texts that servers of one cluster give to clients and to each other: lease ids,
// list cursors and messages. It also derives the values by which nodes know an idempotency key. The formats
// are in docs/internals/formats.md.
package keyring

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"sync"

	"github.com/fencelock/fencelock/lockcore/node"
)

// maxSecretBytes bounds the secrets of keys, because HMAC would hash a longer one.
const maxSecretBytes = 64

// tagBytes is the length of the HMAC in a lease id.
const tagBytes = 16

// Ring holds the keys of one cluster. The first key seals; all of them open. To replace a key without ending a
// live lease, add the new key after the old one on every server. Then move it to the front. Remove the old key
// when no lease sealed with it can be alive. A Ring is safe for concurrent use.
type Ring struct{ keys []*key }

// New makes a ring of secrets. Each is node.MinSecretBytes to maxSecretBytes random bytes, and no two are the
// same. The error never shows a secret.
func New(secrets ...[]byte) (*Ring, error) {
	if len(secrets) == 0 {
		return nil, errors.New("no secret")
	}
	r := &Ring{}
	for i, secret := range secrets {
		if len(secret) < node.MinSecretBytes || len(secret) > maxSecretBytes {
			return nil, fmt.Errorf("secret %d must be %d to %d bytes long", i+1, node.MinSecretBytes, maxSecretBytes)
		}
		for _, other := range secrets[:i] {
			if bytes.Equal(other, secret) {
				return nil, fmt.Errorf("secret %d is the same as an earlier one", i+1)
			}
		}
		r.keys = append(r.keys, newKey(secret))
	}
	return r, nil
}

// key is one secret. Every use has its own subkey, so that a text made for one use is worthless for another.
type key struct {
	id      [node.KeyIDBytes]byte // public: sealed texts contain the id of their key
	tickets []byte                // subkey for the ticket ids of idempotency keys
	sealers sync.Pool             // of *sealer, for lease ids
	owners  sync.Pool             // of *sealer, for the ownership values of idempotency keys

	cursors, messages cipher.AEAD
}

func newKey(secret []byte) *key {
	k := &key{tickets: node.Subkey(secret, "ticket")}
	copy(k.id[:], node.Subkey(secret, "key id"))
	k.sealers.New = newSealer(node.Subkey(secret, "lease id"))
	k.owners.New = newSealer(node.Subkey(secret, "idempotency key"))
	k.cursors, k.messages = newCipher(secret, "cursor"), newCipher(secret, "message")
	return k
}

func newCipher(secret []byte, use string) cipher.AEAD {
	block, err := aes.NewCipher(node.Subkey(secret, use))
	if err == nil {
		var aead cipher.AEAD
		if aead, err = cipher.NewGCMWithRandomNonce(block); err == nil {
			return aead
		}
	}
	panic("keyring: " + err.Error()) // cannot happen: the hash has the length of an AES-256 key
}

// sealer is reusable memory for one HMAC at a time, as every request under an idempotency key needs two.
type sealer struct {
	mac  hash.Hash
	raw  []byte
	text []byte
	sum  [sha256.Size]byte
}

func newSealer(subkey []byte) func() any {
	return func() any { return &sealer{mac: hmac.New(sha256.New, subkey)} }
}

// tag returns the HMAC of the caller and the raw lease id without its tag.
func (s *sealer) tag(caller string, raw []byte) []byte {
	s.mac.Reset()
	s.text = binary.AppendUvarint(s.text[:0], uint64(len(caller)))
	s.text = append(s.text, caller...)
	s.text = append(s.text, raw[:leaseHeadBytes]...)
	_, _ = s.mac.Write(s.text)
	_, _ = s.mac.Write(raw[leaseBodyAt:])
	return s.mac.Sum(s.sum[:0])[:tagBytes]
}

// owner derives the ownership value of a caller's idempotency key. It is always the same, so that a retry
// finds its own lease although nothing is stored. Clients do not know the secret, so they cannot compute an
// ownership value, and no two callers share one.
func (k *key) owner(caller, idempotencyKey string) string {
	s, _ := k.owners.Get().(*sealer)
	defer k.owners.Put(s)
	s.mac.Reset()
	s.raw = binary.AppendUvarint(s.raw[:0], uint64(len(caller)))
	s.raw = append(s.raw, caller...)
	s.raw = append(s.raw, idempotencyKey...)
	_, _ = s.mac.Write(s.raw)
	return base64.RawURLEncoding.EncodeToString(s.mac.Sum(s.sum[:0])[:ownerBytes])
}

// Owners returns the ownership values of a caller's idempotency key under every key, the current key's first.
// An older lease has one of the others.
func (r *Ring) Owners(caller, idempotencyKey string) []string {
	owners := make([]string, len(r.keys))
	for i, key := range r.keys {
		owners[i] = key.owner(caller, idempotencyKey)
	}
	return owners
}

// TicketID returns the id of the ticket with which a request under an idempotency key waits for a resource.
// After a rotation of the secret, a retry gets a different id.
func (r *Ring) TicketID(caller, idempotencyKey, resource string) string {
	const idBytes = 9
	mac := hmac.New(sha256.New, r.keys[0].tickets)
	for _, text := range []string{caller, idempotencyKey, resource} {
		_, _ = mac.Write(binary.AppendUvarint(nil, uint64(len(text))))
		_, _ = mac.Write([]byte(text))
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:idBytes])
}

// named returns the key with that id, or nil.
func (r *Ring) named(id []byte) *key {
	for _, key := range r.keys {
		if bytes.Equal(key.id[:], id) {
			return key
		}
	}
	return nil
}

// Name returns the public name of the sealing key. Every lease id shows it.
func (r *Ring) Name() string { return r.keys[0].name() }

// Knows reports whether the ring has a key with that name.
func (r *Ring) Knows(name string) bool {
	return slices.ContainsFunc(r.keys, func(k *key) bool { return k.name() == name })
}

func (k *key) name() string { return hex.EncodeToString(k.id[:]) }

// SealCursor encrypts the position of a listing. The text opens only with the same use, which names the caller
// and the list's prefix.
func (r *Ring) SealCursor(use, cursor string) string {
	return r.keys[0].encrypt(r.keys[0].cursors, use, cursor)
}

// OpenCursor reports false for a text that SealCursor did not make for this use.
func (r *Ring) OpenCursor(use, text string) (cursor string, ok bool) {
	return r.decrypt(func(k *key) cipher.AEAD { return k.cursors }, use, text)
}

// SealMessage encrypts a message from one server of the cluster to the others. It does not protect against old
// or repeated messages.
func (r *Ring) SealMessage(text string) string {
	return r.keys[0].encrypt(r.keys[0].messages, "", text)
}

// OpenMessage reports false for a text that SealMessage did not make under one of the keys.
func (r *Ring) OpenMessage(sealed string) (text string, ok bool) {
	return r.decrypt(func(k *key) cipher.AEAD { return k.messages }, "", sealed)
}

// encrypt returns the key's id followed by the encrypted text.
func (k *key) encrypt(with cipher.AEAD, use, text string) string {
	raw := append(make([]byte, 0, node.KeyIDBytes+with.Overhead()+len(text)), k.id[:]...)
	return base64.RawURLEncoding.EncodeToString(with.Seal(raw, nil, []byte(text), []byte(use))) //nolint:gosec // the AEAD draws the nonce
}

// decrypt reports false for a text that encrypt did not make under one of the keys.
func (r *Ring) decrypt(with func(*key) cipher.AEAD, use, sealed string) (text string, ok bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil || len(raw) < node.KeyIDBytes {
		return "", false
	}
	key := r.named(raw[:node.KeyIDBytes])
	if key == nil {
		return "", false
	}
	opened, err := with(key).Open(nil, nil, raw[node.KeyIDBytes:], []byte(use))
	return string(opened), err == nil
}
