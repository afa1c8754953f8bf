package replica

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

func someRecord() record {
	return record{
		Admitted: "incarnation#1", Nodes: 5, Hash: "c0ffee", Epoch: 1 << 50, Bootstrapped: 1 << 49, Staged: 7,
		Note: "since noon", MaxTTL: 60_000, HighWater: fencing.MaxToken, Secrets: "1:ab,2:cd",
	}
}

func someLock() lock {
	return lock{ttl: time.Minute, grant: fencing.MaxToken, owner: "L1", attempts: "a,b", meta: `{"a":"é"}`}
}

// A row that the program wrote is read back with all its parts.
func FuzzRowsRoundTrip(f *testing.F) {
	f.Add("admitted", "hash", "note", "secrets", 5, int64(1<<50), int64(1<<49), int64(7), int64(60_000), int64(fencing.MaxToken))
	f.Add("", "", "", "", 0, int64(0), int64(0), int64(0), int64(0), int64(0))
	f.Add("\x00", "ÿ", ",", "=", -1, int64(-1), int64(1), int64(-1<<63), int64(1<<62), int64(-1))
	f.Fuzz(func(t *testing.T, a, b, c, d string, nodes int, n1, n2, n3, n4, n5 int64) {
		r := record{
			Admitted: a, Hash: b, Note: c, Secrets: node.Secrets(d), Nodes: nodes,
			Epoch: node.Epoch(n1), Bootstrapped: node.Epoch(n2), Staged: node.Epoch(n3), MaxTTL: n4, HighWater: fencing.Token(n5),
			Map: node.Map{Name: b, Epoch: node.Epoch(n1), Floor: fencing.Token(n5), Generation: n3},
		}
		if got, err := decodeRecord(r.encode()); err != nil || got != r {
			t.Errorf("%+v became %+v, %v", r, got, err)
		}
		l := lock{ttl: time.Duration(n1%(1<<40)) * time.Millisecond, grant: fencing.Token(n2), owner: a, attempts: b, meta: c}
		if got, ok := decodeLock(l.encode()); !ok || got != l {
			t.Errorf("%+v became %+v, %t", l, got, ok)
		}
	})
}

// Damaged rows are refused, or read as some other row. They never make the program panic.
func FuzzDamagedRows(f *testing.F) {
	r, l := someRecord(), someLock()
	f.Add(r.encode())
	f.Add(l.encode())
	f.Add([]byte{})
	f.Add([]byte{recordFormat, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if r, err := decodeRecord(raw); err == nil && raw != nil {
			if again, err := decodeRecord(r.encode()); err != nil || again != r {
				t.Errorf("%q was read as %+v, and that as %+v, %v", raw, r, again, err)
			}
		}
		_, _ = decodeLock(raw)
	})
}

func TestShortenedRowsAreRefused(t *testing.T) {
	r, l := someRecord(), someLock()
	raw := r.encode()
	for n := range raw {
		if got, err := decodeRecord(raw[:n]); err == nil {
			t.Errorf("%d bytes of %d were read as %+v", n, len(raw), got)
		}
	}
	raw = l.encode()
	for n := range raw {
		if got, ok := decodeLock(raw[:n]); ok {
			t.Errorf("%d bytes of %d were read as %+v", n, len(raw), got)
		}
	}
}
