package events

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

func TestEndsNameTheHolder(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var h holders
	name := func(kind wire.EventKind, resource string, token int64, holder string) string {
		e := Event{Kind: kind, Event: wire.Event{Resource: resource, FencingToken: token, Holder: holder, TTLMS: 1000}}
		h.name(&e, now)
		return e.Holder
	}
	name(wire.EventGranted, "a", 1, "one")
	name(wire.EventGranted, "a", 2, "two") // comes before the end of the first
	for _, c := range []struct {
		kind   wire.EventKind
		token  int64
		holder string
		want   string
	}{
		{wire.EventReleased, 1, "", "one"},
		{wire.EventReleased, 1, "", ""}, // once
		{wire.EventBroken, 2, "other", "other"},
		{wire.EventExpired, 3, "", ""},
	} {
		if got := name(c.kind, "a", c.token, c.holder); got != c.want {
			t.Errorf("%s %d names %q, want %q", c.kind, c.token, got, c.want)
		}
	}

	name(wire.EventGranted, "b", 1, "three")
	now = now.Add(time.Second)
	name(wire.EventExtended, "b", 1, "three")
	now = now.Add(time.Second)
	h.forget(now)
	if got := name(wire.EventExpired, "b", 1, ""); got != "three" {
		t.Errorf("an extended lease's end names %q", got)
	}
	name(wire.EventGranted, "c", 1, "four")
	h.forget(now.Add(time.Minute))
	if h.labels.Len() != 0 {
		t.Error("it is kept although the lease is long over")
	}
	for i := range int64(maxHolders + 100) {
		name(wire.EventGranted, "d", i, "five")
	}
	if h.labels.Len() != maxHolders {
		t.Errorf("%d are kept, want %d", h.labels.Len(), maxHolders)
	}
}
