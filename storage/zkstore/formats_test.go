package zkstore

import (
	"reflect"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// An entry is as the version before wrote it, whose servers read it.
func TestStoredEntry(t *testing.T) {
	wake := replica.Wake{Resource: "orders/42", Ticket: node.Ticket{ID: "t1", Server: "s1", Holder: "worker ü"}}
	e := &entry{
		header: header{incarnation: "LIFE", generation: 2, correction: -3, first: 4, last: 300, id: "ID"}, previous: "BEFORE",
		deleted:  []string{"lgone"},
		puts:     []rowlog.Row{{Key: "lorders/42", Row: overlay.Row{Value: []byte("value"), Ends: 1_790_000_000_000_000}}, {Key: "s", Row: overlay.Row{Value: []byte{}, Ends: overlay.ForGood}}},
		messages: []message{encodeWake(wake)},
	}
	const stored = "fencelock 1\n\bLIFE\x04\x05\b\xd8\x04\x04ID\fBEFORE\x00\x00\x02\nlgone\x04" +
		"\x14lorders/42\x80\x80\xaf\xa2\xdb\xff\xad\x06\nvalue\x02s\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00" +
		"\x02\n\x00wakeBb3JkZXJzLzQy dDE czE d29ya2VyIMO8"
	got := string(append(e.front(), e.body()...))
	if got != stored {
		t.Errorf("raise the number in magic, or keep both forms for one version (docs/internals/formats.md):\n got %+q\nwant %+q", got, stored)
	}
	if read, err := decodeFront([]byte(stored)); err != nil || !reflect.DeepEqual(read, e) {
		t.Errorf("%+v (%v), want %+v", read, err, e)
	}
	if again, ok := decodeWake(e.messages[0].text); !ok || again != wake {
		t.Errorf("%+v, want %+v", again, wake)
	}
	if _, err := decodeFront([]byte(strings.Replace(stored, "1", "2", 1))); err == nil {
		t.Error("an entry of another format is read")
	}
}
