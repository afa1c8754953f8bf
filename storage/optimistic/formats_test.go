package optimistic

import (
	"reflect"
	"testing"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// The head is as the version before wrote it, whose servers read it.
func TestStoredHead(t *testing.T) {
	h := head{
		life: "LIFE", young: true, origin: "cluster 7", generation: 300, commit: "COMMIT", turns: []string{"s1", "s2"},
		wakes: []replica.Wake{{Resource: "orders/42", Ticket: node.Ticket{ID: "t1", Server: "s1", Holder: "worker ü"}}},
	}
	const stored = "\x02\x01\x00\xac\x02\x04LIFE\tcluster 7\x06COMMIT\x02\x02s1\x02s2\torders/42\x02t1\x02s1\tworker ü"
	if got := h.encode(); got != stored {
		t.Errorf("raise headFormat, or keep both forms for one version (docs/internals/formats.md):\n got %+q\nwant %+q", got, stored)
	}
	if got, err := decodeHead(stored); err != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("%+v (%v), want %+v", got, err, h)
	}
	if _, err := decodeHead("\x03" + stored[1:]); err == nil {
		t.Error("a head of another format is read")
	}
}
