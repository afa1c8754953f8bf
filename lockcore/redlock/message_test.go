package redlock

import (
	"strings"
	"testing"
)

// TestMessages: what one server seals every server opens that knows the secret, whichever
// of its secrets it seals with itself, and nothing else opens.
func TestMessages(t *testing.T) {
	server := func(secrets ...string) *Locker {
		var keys *Keys // of a server that has just started
		if len(secrets) > 0 {
			keys = testKeys(t, secrets...)
		}
		unknown := func() *Keys { return nil }
		return &Locker{sets: []*set{{cfg: Config{Keys: unknown}}, {cfg: Config{Keys: func() *Keys { return keys }}}}}
	}
	before, ahead, both, strange := server("old"), server("new", "old"), server("old", "new"), server("other")
	for name, c := range map[string]struct {
		from, to *Locker
		opens    bool
	}{
		"the same secret":                                       {before, server("old"), true},
		"one that rotates to one that does not":                 {both, before, true},
		"one that does not to one that rotates":                 {before, both, true},
		"one that has rotated to one that rotates":              {ahead, both, true},
		"one that has rotated to one that does not know it yet": {ahead, before, false},
		"another cluster":                                       {strange, both, false},
		"to one that has just started":                          {before, server(), false},
	} {
		text := "a message, " + name
		sealed, ok := c.from.SealMessage(text)
		if !ok || strings.Contains(sealed, "message") {
			t.Fatalf("%s: sealed %q, %t", name, sealed, ok)
		}
		if opened, ok := c.to.OpenMessage(sealed); ok != c.opens || ok && opened != text {
			t.Errorf("%s: opened %q, %t", name, opened, ok)
		}
	}
	if sealed, ok := server().SealMessage("x"); ok {
		t.Errorf("a server that knows no secret seals %q", sealed)
	}
	sealed, _ := before.SealMessage("x")
	again, _ := before.SealMessage("x")
	keys := testKeys(t, "old")
	for _, forged := range []string{"", "x", sealed[:len(sealed)-1], sealed + "A", sealed[:20] + "A" + sealed[21:], again[:30] + sealed[30:], keys.sealCursor("", "x")} {
		if text, ok := before.OpenMessage(forged); ok && forged != sealed {
			t.Errorf("%q opens as %q", forged, text)
		}
	}
	if _, ok := keys.openCursor("", sealed); ok {
		t.Error("a message opens as a cursor")
	}
}
