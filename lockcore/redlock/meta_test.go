package redlock

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

func TestMetaRoundTrip(t *testing.T) {
	for _, m := range []meta{
		{acquired: time.UnixMilli(1_700_000_000_000)},
		{acquired: time.UnixMilli(1), holder: "worker 7 ü"},
		{acquired: time.UnixMilli(1), holder: "w", metadata: json.RawMessage(`{"a":[1,"\u001f"]}`)},
	} {
		if got := parseMeta(m.String()); !reflect.DeepEqual(got, m) {
			t.Errorf("%+v came back as %+v", m, got)
		}
	}
}

// Metadata is only for display: if it cannot be read, it is unknown, and never an error.
func TestMetaThatCannotBeRead(t *testing.T) {
	if got := parseMeta(""); !reflect.DeepEqual(got, meta{}) {
		t.Errorf("the empty text is %+v", got)
	}
	if got := parseMeta("no separator"); !reflect.DeepEqual(got, meta{}) {
		t.Errorf("a text of something else is %+v", got)
	}
	got := parseMeta("?" + metaSeparator + "w" + metaSeparator + "{broken")
	if !got.acquired.IsZero() || got.holder != "w" || got.metadata != nil {
		t.Errorf("a half-readable text is %+v", got)
	}
}

// What a later version may add behind the metadata is ignored.
func TestMetaOfALaterVersion(t *testing.T) {
	want := meta{acquired: time.UnixMilli(1), holder: "w", metadata: json.RawMessage(`{"a":1}`)}
	if got := parseMeta(want.String() + metaSeparator + "more" + metaSeparator); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
