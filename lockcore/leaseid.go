package lockcore

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// leaseSecretBytes is the size of the ownership value (the Redlock text asks
// for 20 random bytes); LeaseValueLen is its length as text on the nodes.
const (
	leaseSecretBytes = 20
	LeaseValueLen    = 27
	leaseIDVersion   = 1
)

// leaseID is what the capability says once it is opened. It carries what a
// server needs to act on a lease it never saw: any server of the cluster can
// extend or release it, and none keeps a table of leases.
type leaseID struct {
	value    string // the ownership value on the nodes
	secret   string // what the text holds in its place; "" where they are the same (see WithOwner)
	token    fencing.Token
	acquired time.Time // the granting server's wall clock, whole milliseconds
	resource string
}

// String seals the lease id: version, secret, token, time and resource in
// unpadded URL-safe base64.
func (id leaseID) String() string { return base64.RawURLEncoding.EncodeToString(id.raw()) }

func (id leaseID) raw() []byte {
	raw := make([]byte, 0, 1+leaseSecretBytes+2*binary.MaxVarintLen64+len(id.resource))
	raw = append(raw, leaseIDVersion)
	raw, err := base64.RawURLEncoding.AppendDecode(raw, []byte(cmp.Or(id.secret, id.value)))
	if err != nil || len(raw) != 1+leaseSecretBytes {
		panic("lockcore: ownership value is not one that newLeaseValue or derivedLeaseValue made")
	}
	raw = binary.AppendUvarint(raw, uint64(id.token))
	raw = binary.AppendUvarint(raw, uint64(id.acquired.UnixMilli()))
	return append(raw, id.resource...)
}

// parseLeaseID opens the lease id of one resource. It accepts exactly what
// String makes; any other text is ErrMalformedLeaseID.
func parseLeaseID(text string) (leaseID, error) {
	parts, err := parseLease(text)
	if err != nil || len(parts) != 1 {
		return leaseID{}, errors.Join(ErrMalformedLeaseID, err)
	}
	return parts[0], nil
}

func openLeaseID(raw []byte) (leaseID, error) {
	if len(raw) < 1+leaseSecretBytes || raw[0] != leaseIDVersion {
		return leaseID{}, ErrMalformedLeaseID
	}
	id := leaseID{value: base64.RawURLEncoding.EncodeToString(raw[1 : 1+leaseSecretBytes])}
	rest := bytes.NewReader(raw[1+leaseSecretBytes:])
	token, errToken := binary.ReadUvarint(rest)
	acquired, errAcquired := binary.ReadUvarint(rest)
	if errToken != nil || errAcquired != nil || token > uint64(fencing.MaxToken) || acquired > uint64(fencing.MaxToken) {
		return leaseID{}, ErrMalformedLeaseID
	}
	id.token = fencing.Token(token)
	id.acquired = time.UnixMilli(int64(acquired))
	id.resource = string(raw[len(raw)-rest.Len():])
	if !id.token.Valid() || ValidateResource(id.resource) != nil || !bytes.Equal(id.raw(), raw) {
		return leaseID{}, ErrMalformedLeaseID
	}
	return id, nil
}

// newLeaseValue draws a fresh ownership value: one an attempt (rule 3).
func (c Config) newLeaseValue() string {
	var secret [leaseSecretBytes]byte
	c.random(secret[:])
	return base64.RawURLEncoding.EncodeToString(secret[:])
}

// random fills b from the configured entropy.
func (c Config) random(b []byte) {
	if _, err := io.ReadFull(c.Entropy, b); err != nil {
		panic("lockcore: no entropy: " + err.Error()) // crypto/rand never fails (since Go 1.24)
	}
}

// randomBelow draws from [0, n).
func (c Config) randomBelow(n int64) int64 {
	var b [8]byte
	c.random(b[:])
	return int64(binary.LittleEndian.Uint64(b[:])>>1) % n
}

// jitter draws a pause from [pause/2, pause*3/2), so that servers that failed
// together do not try again together.
func (c Config) jitter(pause time.Duration) time.Duration {
	return pause/2 + time.Duration(c.randomBelow(int64(pause)))
}

// derivedLeaseValue makes the same ownership value from the same idempotency
// key each time, so that a retry finds its own lease with nothing stored.
func derivedLeaseValue(key string) string {
	mac := hmac.New(sha256.New, []byte("fencelock idempotency key v1"))
	mac.Write([]byte(key))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:leaseSecretBytes])
}
