package keyring

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/binary"
	"math"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

const (
	ownerBytes      = 20 // the Redlock text asks for 20 random bytes
	leaseIDVersion  = 1
	leaseHeadBytes  = 1 + node.KeyIDBytes
	leaseBodyAt     = leaseHeadBytes + tagBytes
	maxLeaseIDChars = 8192 // MaxBundle resources with the longest names need about 6,200
)

// LeaseID is the content of a lease id for one resource. The text of a lease id is a capability: it contains
// everything that a server needs for a lease that it never saw. So any server of the cluster can extend or
// release the lease, and none keeps a table of leases. The text is sealed, with a key of the cluster, for one
// caller. It is worthless for other callers, and after any change.
//
//	Grant ─▶ LeaseID ─ SealLease ─▶ lease_id ─▶ client
//	                                             │
//	Extend, Release ◀─ LeaseID ◀─ OpenLease ◀────┘
//
// It does not show whether the lease is still alive, or until when: only the nodes know that. An extend does
// not change it, so a client keeps one text for the whole life of a lease.
type LeaseID struct {
	Owner    string        // the secret ownership value on the nodes
	Token    fencing.Token // the same for the life of the lease
	Acquired time.Time     // the granting server's wall clock, whole milliseconds; of several resources the latest
	Resource string
	// Attempt is set only while a bundle under an idempotency key is incomplete: it names the attempt that
	// takes the resource. The text of a lease id does not contain it.
	Attempt string
	Terms
}

// Terms are the requested terms, the same for all resources of the lease.
type Terms struct {
	MinHold time.Duration // the resource stays locked for this long from Acquired
	MaxHold time.Duration // extensions end this long after Acquired; 0 for no bound
}

// SealLease makes the lease id of one or more resources, for this caller alone: in
// unpadded URL-safe base64
//
//	version    1 byte
//	key        4 bytes, the id of the key
//	tag        16 bytes of HMAC-SHA256 over the caller and everything else
//	acquired   a varint
//	min hold   a varint, milliseconds
//	max hold   a varint, milliseconds
//	and for each resource
//	owner      20 bytes
//	token      a varint
//	resource   its length as a varint, and its bytes
func (r *Ring) SealLease(caller string, parts []LeaseID) string {
	key := r.keys[0]
	s, _ := key.sealers.Get().(*sealer)
	defer key.sealers.Put(s)
	s.raw = append(append(s.raw[:0], leaseIDVersion), key.id[:]...)
	s.raw = append(s.raw, make([]byte, tagBytes)...)
	s.raw = appendParts(s.raw, parts)
	copy(s.raw[leaseHeadBytes:], s.tag(caller, s.raw))
	s.text = base64.RawURLEncoding.AppendEncode(s.text[:0], s.raw)
	return string(s.text)
}

func appendParts(raw []byte, parts []LeaseID) []byte {
	acquired := parts[0].Acquired
	for _, id := range parts[1:] {
		if id.Acquired.After(acquired) {
			acquired = id.Acquired
		}
	}
	raw = binary.AppendUvarint(raw, uint64(acquired.UnixMilli()))
	raw = binary.AppendUvarint(raw, uint64(parts[0].MinHold.Milliseconds()))
	raw = binary.AppendUvarint(raw, uint64(parts[0].MaxHold.Milliseconds()))
	for _, id := range parts {
		before := len(raw)
		var err error
		raw, err = base64.RawURLEncoding.AppendDecode(raw, []byte(id.Owner))
		if err != nil || len(raw) != before+ownerBytes {
			panic("keyring: an ownership value is neither random nor of an idempotency key")
		}
		raw = binary.AppendUvarint(raw, uint64(id.Token))
		raw = binary.AppendUvarint(raw, uint64(len(id.Resource)))
		raw = append(raw, id.Resource...)
	}
	return raw
}

// Sealed is a lease id that a client sent, whose tag is not verified yet.
type Sealed []byte

// Decode decodes a text in exactly the form that SealLease writes. Each id has only one such text.
func Decode(text string) (sealed Sealed, ok bool) {
	if len(text) > maxLeaseIDChars {
		return nil, false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	// The decoder skips line breaks, so a text with line breaks would be a second form.
	ok = err == nil && len(raw) > leaseBodyAt && raw[0] == leaseIDVersion && base64.RawURLEncoding.EncodedLen(len(raw)) == len(text)
	return raw, ok
}

// OpenLease returns the parts of a lease id, and whether the ring has the id's key. If it has the key and
// parts is nil, that key did not seal the id for this caller.
func (r *Ring) OpenLease(caller string, sealed Sealed) (parts []LeaseID, known bool) {
	key := r.named(sealed[1:leaseHeadBytes])
	if key == nil {
		return nil, false
	}
	parts, _ = key.openLease(caller, sealed)
	return parts, true
}

// openLease returns the parts if the key sealed them for the caller.
func (k *key) openLease(caller string, raw []byte) (parts []LeaseID, ok bool) {
	s, _ := k.sealers.Get().(*sealer)
	defer k.sealers.Put(s)
	if !hmac.Equal(s.tag(caller, raw), raw[leaseHeadBytes:leaseBodyAt]) {
		return nil, false
	}
	return readParts(raw[leaseBodyAt:])
}

// readParts reads what appendParts wrote.
func readParts(raw []byte) (parts []LeaseID, ok bool) {
	r := partsReader{rest: raw}
	acquired := time.UnixMilli(int64(r.number()))
	agreed := Terms{MinHold: r.duration(), MaxHold: r.duration()}
	for len(r.rest) > 0 && !r.bad {
		id := LeaseID{Acquired: acquired, Terms: agreed, Owner: base64.RawURLEncoding.EncodeToString(r.bytes(ownerBytes))}
		id.Token = fencing.Token(r.number())
		id.Resource = string(r.bytes(r.number()))
		parts = append(parts, id)
	}
	if len(parts) == 0 || r.bad {
		return nil, false
	}
	return parts, true
}

type partsReader struct {
	rest []byte
	bad  bool
}

func (r *partsReader) number() uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 || n > uint64(fencing.MaxToken) {
		r.rest, r.bad = nil, true
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

// duration reads milliseconds, limited to the range of a Duration.
func (r *partsReader) duration() time.Duration {
	return time.Duration(min(r.number(), uint64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}

func (r *partsReader) bytes(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.rest, r.bad = nil, true
		return nil
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}
