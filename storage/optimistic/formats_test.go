package optimistic

import (
	"reflect"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// The head has the format of the previous version, whose servers read it.
func TestStoredHead(t *testing.T) {
	h := head{
		life: "LIFE", young: true, origin: "cluster 7", first: 300, last: 301, commit: "COMMIT", entry: "ENTRY", turns: []string{"s1", "s2"},
		wakes: []replica.Wake{{Resource: "orders/42", Ticket: node.Ticket{ID: "t1", Server: "s1", Holder: "worker ü"}}},
	}
	const stored = "\x04\x01\x00\xac\x02\xad\x02\x04LIFE\tcluster 7\x06COMMIT\x05ENTRY\x02\x02s1\x02s2\torders/42\x02t1\x02s1\tworker ü"
	if got := h.encode(); got != stored {
		t.Errorf("raise headFormat, or keep both forms for one version (docs/internals/formats.md):\n got %+q\nwant %+q", got, stored)
	}
	if got, err := decodeHead(stored); err != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("%+v (%v), want %+v", got, err, h)
	}
	if _, err := decodeHead("\x05" + stored[1:]); err == nil {
		t.Error("a head of another format is read")
	}
}

// An entry of the log has the format of the previous version.
func TestStoredEntry(t *testing.T) {
	one := transaction{
		commit: "COMMIT", previous: "BEFORE", deleted: []string{"a", "b"},
		put: []rowOf{{key: "l", value: []byte("lock"), left: 300 * time.Microsecond}, {key: "s", value: []byte{}}},
	}
	const stored = "\x06COMMIT\x06BEFORE\x02\x01a\x01b\x01l\xac\x02\x04lock\x01s\x00\x00"
	if got := string(one.encode()); got != stored {
		t.Errorf("raise headFormat (docs/internals/formats.md):\n got %+q\nwant %+q", got, stored)
	}
	if read, err := decodeEntry([]byte(stored)); err != nil || !reflect.DeepEqual(read, one) {
		t.Errorf("%+v, %v", read, err)
	}
	for n := range len(stored) - 1 {
		if part, err := decodeEntry([]byte(stored[:n])); err == nil && len(part.put) == len(one.put) {
			t.Errorf("%d bytes of it are read as the whole", n)
		}
	}
}
