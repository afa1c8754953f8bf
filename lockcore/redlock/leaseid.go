package redlock

import (
	"context"
	"crypto/hmac"
	"encoding/base64"
	"encoding/binary"
	"math"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// leaseSecretBytes is the size of the ownership value (the Redlock text asks
// for 20 random bytes); LeaseValueLen is its length as text on the nodes.
const (
	leaseSecretBytes = 20
	LeaseValueLen    = 27
	leaseIDVersion   = 1
	leaseHeadBytes   = 1 + node.KeyIDBytes
	leaseBodyAt      = leaseHeadBytes + tagBytes
	mostLeaseIDChars = 8192 // of MaxBundle resources with the longest names some 6,200
)

// leaseID is what a lease id says of one resource. It carries what a server needs
// to act on a lease it never saw: any server of the cluster can extend or release
// it, and none keeps a table of leases.
type leaseID struct {
	value    string // the ownership value on the nodes
	token    fencing.Token
	acquired time.Time // the granting server's wall clock, whole milliseconds; of several resources the earliest
	resource string
	terms
}

// terms are what was agreed on with the caller for the whole lease.
type terms struct {
	minHold time.Duration // the resource stays taken for so long from acquired
	maxHold time.Duration // extensions end so long after acquired; 0 for no end
}

// sealLease makes the lease id of one resource or more, for the owner alone: in
// unpadded URL-safe base64
//
//	version    1 byte
//	key        4 bytes, the id of the key
//	tag        16 bytes of HMAC-SHA256 over the owner and everything else
//	acquired   a varint
//	min hold   a varint, milliseconds
//	max hold   a varint, milliseconds
//	and for each resource
//	value      20 bytes
//	token      a varint
//	resource   its length as a varint, and its bytes
func (k *Keys) sealLease(owner string, parts []leaseID) string {
	key := k.keys[0]
	s, _ := key.sealers.Get().(*sealer)
	defer key.sealers.Put(s)
	s.raw = append(append(s.raw[:0], leaseIDVersion), key.id[:]...)
	s.raw = append(s.raw, make([]byte, tagBytes)...)
	s.raw = appendParts(s.raw, parts)
	copy(s.raw[leaseHeadBytes:], s.tag(owner, s.raw[:leaseHeadBytes], s.raw[leaseBodyAt:]))
	s.text = base64.RawURLEncoding.AppendEncode(s.text[:0], s.raw)
	return string(s.text)
}

func appendParts(raw []byte, parts []leaseID) []byte {
	acquired := parts[0].acquired
	for _, id := range parts[1:] {
		if id.acquired.Before(acquired) {
			acquired = id.acquired
		}
	}
	raw = binary.AppendUvarint(raw, uint64(acquired.UnixMilli()))
	raw = binary.AppendUvarint(raw, uint64(parts[0].minHold.Milliseconds()))
	raw = binary.AppendUvarint(raw, uint64(parts[0].maxHold.Milliseconds()))
	for _, id := range parts {
		before := len(raw)
		var err error
		raw, err = base64.RawURLEncoding.AppendDecode(raw, []byte(id.value))
		if err != nil || len(raw) != before+leaseSecretBytes {
			panic("redlock: ownership value is neither drawn nor derived here")
		}
		raw = binary.AppendUvarint(raw, uint64(id.token))
		raw = binary.AppendUvarint(raw, uint64(len(id.resource)))
		raw = append(raw, id.resource...)
	}
	return raw
}

// sealedLease is a lease id before it was verified.
type sealedLease []byte

// readSealed reads the text's form. It takes a text that sealLease makes, and no
// other one for the same bytes.
func readSealed(text string) (sealedLease, bool) {
	if len(text) > mostLeaseIDChars {
		return nil, false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	// The decoder skips line breaks, so a text with some would be a second form.
	ok := err == nil && len(raw) > leaseBodyAt && raw[0] == leaseIDVersion && base64.RawURLEncoding.EncodedLen(len(raw)) == len(text)
	return raw, ok
}

func (l sealedLease) keyID() []byte { return l[1:leaseHeadBytes] }
func (l sealedLease) tag() []byte   { return l[leaseHeadBytes:leaseBodyAt] }

// openLease gives what the id says if the key sealed it for the owner.
func (k *key) openLease(owner string, sealed sealedLease) (parts []leaseID, ok bool) {
	s, _ := k.sealers.Get().(*sealer)
	defer k.sealers.Put(s)
	if !hmac.Equal(s.tag(owner, sealed[:leaseHeadBytes], sealed[leaseBodyAt:]), sealed.tag()) {
		return nil, false
	}
	return readParts(sealed[leaseBodyAt:])
}

// readParts reads what appendParts wrote.
func readParts(raw []byte) (parts []leaseID, ok bool) {
	r := partsReader{rest: raw}
	acquired := time.UnixMilli(int64(r.number()))
	agreed := terms{minHold: r.duration(), maxHold: r.duration()}
	for len(r.rest) > 0 && !r.bad {
		id := leaseID{acquired: acquired, terms: agreed, value: base64.RawURLEncoding.EncodeToString(r.bytes(leaseSecretBytes))}
		id.token = fencing.Token(r.number())
		id.resource = string(r.bytes(r.number()))
		parts = append(parts, id)
	}
	return parts, len(parts) > 0 && !r.bad
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

// duration reads milliseconds, as many as fit in a Duration.
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

// seal makes the id of a lease that was granted to the owner just now.
func (l *Locker) seal(owner string, parts []leaseID) string {
	keys := l.of(parts[0].resource).keysNow()
	return keys.sealLease(owner, parts)
}

// openLease opens a lease id for the owner of ctx. ErrNotHeld for whatever this
// cluster did not seal for this owner: such a lease never was, and an id that was
// edited or made up is answered like one whose lease has ended. *QuorumError while
// this server knows too little of the nodes to tell.
func (l *Locker) openLease(ctx context.Context, text string) ([]leaseID, error) {
	sealed, ok := readSealed(text)
	if !ok {
		return nil, lockcore.ErrNotHeld
	}
	owner, known := lockcore.CallerOf(ctx), false
	for _, set := range l.sets {
		keys, err := set.currentKeys(ctx)
		if err != nil {
			continue
		}
		if key := keys.named(sealed.keyID()); key != nil {
			if parts, ok := key.openLease(owner, sealed); ok {
				return parts, nil
			}
			known = true
		}
	}
	if known {
		return nil, lockcore.ErrNotHeld
	}
	return nil, l.noSuchKey(ctx)
}

// noSuchKey answers an id whose key nobody here knows: it may be one that the
// nodes have got a moment ago.
func (l *Locker) noSuchKey(ctx context.Context) error {
	for _, set := range l.sets {
		if set.cfg.Keys == nil && !set.members.UpToDate() {
			return set.unknown(ctx)
		}
	}
	return lockcore.ErrNotHeld
}

// ReadLeaseID verifies a lease id and returns what it says. It asks no node. Errors:
// ErrNotHeld (the id is not one of this cluster for the caller of ctx), *QuorumError.
func (l *Locker) ReadLeaseID(ctx context.Context, lease string) (lockcore.LeaseTerms, error) {
	parts, err := l.openLease(ctx, lease)
	if err != nil {
		return lockcore.LeaseTerms{}, err
	}
	read := lockcore.LeaseTerms{Granted: parts[0].acquired, MinHold: parts[0].minHold}
	for i := range parts {
		read.Resources = append(read.Resources, parts[i].resource)
	}
	return read, nil
}
