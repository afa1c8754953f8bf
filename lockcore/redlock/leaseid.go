package redlock

import (
	"context"
	"crypto/hmac"
	"encoding/base64"
	"encoding/binary"
	"math"
	"sync"
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
	maxLeaseIDChars  = 8192 // MaxBundle resources with the longest names take some 6,200
)

// leaseID is what a lease id says of one resource. It has all that a server needs
// for a lease that it never saw: any server of the cluster can extend or release
// it, and none keeps a table of leases.
type leaseID struct {
	owner    string // the secret ownership value on the nodes
	token    fencing.Token
	acquired time.Time // the granting server's wall clock, whole milliseconds; of several resources the latest
	resource string
	attempt  string // that takes it under an idempotency key and is not complete; not in the text
	terms
}

// terms are what the caller asked for, for the whole lease.
type terms struct {
	minHold time.Duration // the resource stays taken for so long from acquired
	maxHold time.Duration // extensions end so long after acquired; 0 for no bound
}

// sealLease makes the lease id of one or more resources, for this caller alone: in
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
func (k *Keys) sealLease(caller string, parts []leaseID) string {
	key := k.keys[0]
	s, _ := key.sealers.Get().(*sealer)
	defer key.sealers.Put(s)
	s.raw = append(append(s.raw[:0], leaseIDVersion), key.id[:]...)
	s.raw = append(s.raw, make([]byte, tagBytes)...)
	s.raw = appendParts(s.raw, parts)
	copy(s.raw[leaseHeadBytes:], s.tag(caller, s.raw))
	s.text = base64.RawURLEncoding.AppendEncode(s.text[:0], s.raw)
	return string(s.text)
}

func appendParts(raw []byte, parts []leaseID) []byte {
	acquired := parts[0].acquired
	for _, id := range parts[1:] {
		if id.acquired.After(acquired) {
			acquired = id.acquired
		}
	}
	raw = binary.AppendUvarint(raw, uint64(acquired.UnixMilli()))
	raw = binary.AppendUvarint(raw, uint64(parts[0].minHold.Milliseconds()))
	raw = binary.AppendUvarint(raw, uint64(parts[0].maxHold.Milliseconds()))
	for _, id := range parts {
		before := len(raw)
		var err error
		raw, err = base64.RawURLEncoding.AppendDecode(raw, []byte(id.owner))
		if err != nil || len(raw) != before+leaseSecretBytes {
			panic("redlock: an ownership value is neither random nor of an idempotency key")
		}
		raw = binary.AppendUvarint(raw, uint64(id.token))
		raw = binary.AppendUvarint(raw, uint64(len(id.resource)))
		raw = append(raw, id.resource...)
	}
	return raw
}

// decodeLeaseID decodes a text that sealLease makes, and no other text for the same
// bytes. It does not verify the tag.
func decodeLeaseID(text string) (raw []byte, ok bool) {
	if len(text) > maxLeaseIDChars {
		return nil, false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	// The decoder skips line breaks: a text with some would be a second form.
	ok = err == nil && len(raw) > leaseBodyAt && raw[0] == leaseIDVersion && base64.RawURLEncoding.EncodedLen(len(raw)) == len(text)
	return raw, ok
}

// openLease returns the parts if the key sealed them for the caller.
func (k *key) openLease(caller string, raw []byte) (parts []leaseID, ok bool) {
	s, _ := k.sealers.Get().(*sealer)
	defer k.sealers.Put(s)
	if !hmac.Equal(s.tag(caller, raw), raw[leaseHeadBytes:leaseBodyAt]) {
		return nil, false
	}
	return readParts(raw[leaseBodyAt:])
}

// readParts reads what appendParts wrote.
func readParts(raw []byte) (parts []leaseID, ok bool) {
	r := partsReader{rest: raw}
	acquired := time.UnixMilli(int64(r.number()))
	agreed := terms{minHold: r.duration(), maxHold: r.duration()}
	for len(r.rest) > 0 && !r.bad {
		id := leaseID{acquired: acquired, terms: agreed, owner: base64.RawURLEncoding.EncodeToString(r.bytes(leaseSecretBytes))}
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

// openLease opens a lease id for the caller of ctx. It returns ErrNotHeld for an id
// that this cluster did not seal for this caller: there never was such a lease. It
// returns a *QuorumError while this server knows too little of the nodes to decide.
func (l *Locker) openLease(ctx context.Context, text string) ([]leaseID, error) {
	raw, ok := decodeLeaseID(text)
	if !ok {
		return nil, lockcore.ErrNotHeld
	}
	caller := lockcore.CallerOf(ctx)
	parts, known := l.openRaw(caller, raw)
	if !known {
		err := l.readKeys(ctx)
		if parts, known = l.openRaw(caller, raw); !known && err != nil {
			return nil, err
		}
	}
	if parts == nil {
		return nil, lockcore.ErrNotHeld
	}
	return parts, nil
}

// openRaw opens a decoded lease id. It reports whether its key is known; parts is nil if
// that key did not seal the id for this caller.
func (l *Locker) openRaw(caller string, raw []byte) (parts []leaseID, known bool) {
	for _, s := range l.sets {
		keys := s.keysNow()
		if keys == nil {
			continue
		}
		if key := keys.named(raw[1:leaseHeadBytes]); key != nil {
			if parts, ok := key.openLease(caller, raw); ok {
				return parts, true
			}
			known = true
		}
	}
	return nil, known
}

// readKeys reads the keys of every set that seals from its nodes, which may have got one a
// moment ago: an id that does not open after that is nobody's (rule 24). The error is a
// *QuorumError.
func (l *Locker) readKeys(ctx context.Context) error {
	errs := make([]error, len(l.sets))
	var wg sync.WaitGroup
	for i, s := range l.sets {
		if !l.atlas.present.has(s) && !l.atlas.serves(s) { // it has sealed nothing yet
			continue
		}
		wg.Go(func() { errs[i] = s.readKeys(ctx) })
	}
	wg.Wait()
	return first(errs, lockcore.ErrNoQuorum)
}

// ReadLeaseID is lockcore.Service's. It asks the nodes for no more than their secrets, if
// the id's is not known.
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
