package keyring

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
)

func someLeaseID(resource string, token fencing.Token, millis int64) LeaseID {
	return LeaseID{
		Owner: random.Source{Reader: rand.Reader}.Word(), Token: token,
		Acquired: time.UnixMilli(millis), Resource: resource,
	}
}

// opened opens a lease id as its owner, with the keys.
func opened(keys *Ring, owner, text string) (parts []LeaseID, ok bool) {
	sealed, ok := Decode(text)
	if !ok {
		return nil, false
	}
	parts, _ = keys.OpenLease(owner, sealed)
	return parts, parts != nil
}

// ownerChars is the length of an ownership value as text on the nodes.
const ownerChars = 27

func testKeys(tb testing.TB, secrets ...string) *Ring {
	tb.Helper()
	var raw [][]byte
	for _, secret := range secrets {
		sum := sha256.Sum256([]byte(secret))
		raw = append(raw, sum[:])
	}
	keys, err := New(raw...)
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

func TestLeaseIDRoundTrip(t *testing.T) {
	keys := testKeys(t, "a secret")
	for _, parts := range [][]LeaseID{
		{someLeaseID("a", 1, 0)},
		{someLeaseID("orders/17 ü 漢", fencing.MaxToken, 1_900_000_000_000)},
		{someLeaseID(strings.Repeat("x", lockcore.MaxResourceBytes), 1_700_000_000_000, int64(fencing.MaxToken))},
		{someLeaseID("a", 1, 7), someLeaseID("b", 2, 7), someLeaseID("c", 3, 7)},
	} {
		got, ok := opened(keys, "owner", keys.SealLease("owner", parts))
		if !ok || !slices.Equal(got, parts) {
			t.Errorf("%+v came back as %+v", parts, got)
		}
	}
	roundTrips := func(secret [ownerBytes]byte, token, millis uint64, resource, owner string) bool {
		id := LeaseID{
			Owner: base64.RawURLEncoding.EncodeToString(secret[:]), Token: fencing.Token(token%uint64(fencing.MaxToken) + 1),
			Acquired: time.UnixMilli(int64(millis % uint64(fencing.MaxToken))), Resource: resource,
		}
		got, ok := opened(keys, owner, keys.SealLease(owner, []LeaseID{id}))
		return ok && len(got) == 1 && got[0] == id
	}
	if err := quick.Check(roundTrips, nil); err != nil {
		t.Error(err)
	}
}

// A lease of several resources begins when the last of them is acquired.
func TestASealedBundleBeginsWithItsLastPart(t *testing.T) {
	keys := testKeys(t, "a secret")
	got, _ := opened(keys, "", keys.SealLease("", []LeaseID{someLeaseID("a", 1, 7), someLeaseID("b", 2, 9), someLeaseID("c", 3, 5)}))
	for _, id := range got {
		if id.Acquired.UnixMilli() != 9 {
			t.Errorf("%s was acquired at %d", id.Resource, id.Acquired.UnixMilli())
		}
	}
}

func TestLeaseIDRefusesAllElse(t *testing.T) {
	keys := testKeys(t, "a secret")
	good := keys.SealLease("owner", []LeaseID{someLeaseID("orders", 300, 1_700_000_000_000)})
	cases := map[string]string{
		"nothing":             "",
		"not base64":          "no lease id!",
		"padded":              good + "=",
		"a space before":      " " + good,
		"a line break inside": good[:8] + "\n" + good[8:],
		"the other alphabet":  strings.Repeat("+", len(good)),
		"cut":                 good[:20],
		"cut at its end":      good[:len(good)-4],
		"longer":              good + "AAAA",
		"too long":            good + strings.Repeat("A", maxLeaseIDChars),
	}
	for name, text := range cases {
		if parts, ok := opened(keys, "owner", text); ok {
			t.Errorf("%s: %+v", name, parts)
		}
	}
	for _, owner := range []string{"", "Owner", "owner ", "other"} {
		if _, ok := opened(keys, owner, good); ok {
			t.Errorf("it opens for %q", owner)
		}
	}
	if _, ok := opened(testKeys(t, "another"), "owner", good); ok {
		t.Error("it opens under another secret")
	}
	// The last character of a text has unused bits; only one form is right.
	for _, last := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
		if text := good[:len(good)-1] + string(last); text != good {
			if _, ok := opened(keys, "owner", text); ok {
				t.Errorf("%s was taken for %s", text, good)
			}
		}
	}
	raw, _ := base64.RawURLEncoding.DecodeString(good)
	for i := range raw {
		for bit := range 8 {
			edited := slices.Clone(raw)
			edited[i] ^= 1 << bit
			if _, ok := opened(keys, "owner", base64.RawURLEncoding.EncodeToString(edited)); ok {
				t.Fatalf("with bit %d of byte %d edited it opens", bit, i)
			}
		}
	}
}

// No text that was not sealed by a key is taken apart, and no text makes a reader panic.
func FuzzReadLeaseID(f *testing.F) {
	keys := testKeys(f, "a secret")
	f.Add("")
	f.Add("AQ")
	f.Add(keys.SealLease("", []LeaseID{someLeaseID("orders", 300, 1_700_000_000_000)}))
	f.Fuzz(func(t *testing.T, text string) {
		if parts, ok := opened(keys, "another", text); ok {
			t.Errorf("%q opens: %+v", text, parts)
		}
		if raw, err := base64.RawURLEncoding.DecodeString(text); err == nil {
			_, _ = readParts(raw) // as one that has the secret could have sealed it
		}
	})
}

// A key that was replaced still opens ids, and an unknown key does not.
func TestKeysAreReplaced(t *testing.T) {
	id := []LeaseID{someLeaseID("r", 7, 7)}
	before := testKeys(t, "one").SealLease("", id)
	for name, c := range map[string]struct {
		keys  *Ring
		opens bool
	}{
		"behind the new one": {testKeys(t, "two", "one"), true},
		"before the new one": {testKeys(t, "one", "two"), true},
		"removed":            {testKeys(t, "two", "three"), false},
	} {
		if _, ok := opened(c.keys, "", before); ok != c.opens {
			t.Errorf("%s: it opens: %t", name, ok)
		}
	}
	after := testKeys(t, "two", "one").SealLease("", id)
	if _, ok := opened(testKeys(t, "two"), "", after); !ok {
		t.Error("the first key did not seal")
	}
}

func TestNewRefuses(t *testing.T) {
	short, long, good := make([]byte, 31), make([]byte, 65), bytes.Repeat([]byte{0x5e}, 32)
	for name, secrets := range map[string][][]byte{"none": {}, "a short one": {good, short}, "a long one": {long}, "one twice": {good, good}} {
		if _, err := New(secrets...); err == nil || strings.Contains(err.Error(), "^^^^") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCursorsAreSealed(t *testing.T) {
	keys := testKeys(t, "two", "one")
	for _, keys := range []*Ring{keys, testKeys(t, "one")} { // present, and before
		text := keys.SealCursor("use", "place")
		if got, ok := testKeys(t, "two", "one").OpenCursor("use", text); !ok || got != "place" {
			t.Errorf("opened as %q, %t", got, ok)
		}
		for name, bad := range map[string]string{"edited": text[:9] + strings.Map(func(c rune) rune { return map[bool]rune{true: 'B', false: 'A'}[c == 'A'] }, text[9:10]) + text[10:], "cut": text[:len(text)-4], "nothing": "", "short": "AAAA"} {
			if got, ok := keys.OpenCursor("use", bad); ok {
				t.Errorf("%s: opened as %q", name, got)
			}
		}
		if _, ok := keys.OpenCursor("another use", text); ok {
			t.Error("it opens for another use")
		}
	}
	if first, second := keys.SealCursor("use", "place"), keys.SealCursor("use", "place"); first == second {
		t.Error("two cursors of one place are the same")
	}
}

func TestLeaseValues(t *testing.T) {
	source := random.Source{Reader: rand.Reader}
	seen := make(map[string]bool)
	for range 1000 {
		value := source.Word()
		if len(value) != ownerChars || seen[value] {
			t.Fatalf("lease value %q: its length, or a repetition", value)
		}
		seen[value] = true
	}
	keys := testKeys(t, "two", "one")
	values := make(map[string]bool)
	for _, of := range [][2]string{{"", "key"}, {"", "key2"}, {"a", "key"}, {"b", "key"}, {"ak", "ey"}, {"akey", ""}} {
		both := keys.Owners(of[0], of[1])
		if !slices.Equal(both, keys.Owners(of[0], of[1])) || both[1] != testKeys(t, "one").Owners(of[0], of[1])[0] {
			t.Errorf("%q gives different values", of)
		}
		for _, value := range both {
			if len(value) != ownerChars || values[value] {
				t.Errorf("%q gives %q: its length, or another's", of, value)
			}
			values[value] = true
		}
	}
}

// Servers of two versions must find each other's leases, so the derivation never changes.
func TestOwnersStayAsTheyWere(t *testing.T) {
	secret := sha256.Sum256([]byte("one"))
	mac := hmac.New(sha256.New, node.Subkey(secret[:], "idempotency key"))
	_, _ = mac.Write([]byte("\x06orderskey"))
	want := base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:20])
	keys := testKeys(t, "one")
	for range 2 { // the second time with memory that was used before
		if got := keys.Owners("orders", "key"); got[0] != want {
			t.Errorf("the owner is %q, want %q", got[0], want)
		}
		keys.Owners("another caller", "a much longer key than that")
	}
}

// BenchmarkLeaseID seals and opens what a client holds.
func BenchmarkLeaseID(b *testing.B) {
	keys := testKeys(b, "a secret")
	parts := []LeaseID{someLeaseID("orders/42", 1_790_000_000_000_000, 1_790_000_000_000)}
	text := keys.SealLease("orders-service", parts)
	b.Run("seal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if keys.SealLease("orders-service", parts) != text {
				b.Fatal("the lease id changed")
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := opened(keys, "orders-service", text); !ok {
				b.Fatal("it does not open")
			}
		}
	})
}

// TestMessages: a message that one server seals can be opened by every server that knows the secret, whichever of its
// own secrets it seals with. Other servers cannot open it.
func TestMessages(t *testing.T) {
	for name, c := range map[string]struct {
		from, to *Ring
		opens    bool
	}{
		"the same secret":                                       {testKeys(t, "old"), testKeys(t, "old"), true},
		"one that rotates to one that does not":                 {testKeys(t, "old", "new"), testKeys(t, "old"), true},
		"one that does not to one that rotates":                 {testKeys(t, "old"), testKeys(t, "old", "new"), true},
		"one that has rotated to one that rotates":              {testKeys(t, "new", "old"), testKeys(t, "old", "new"), true},
		"one that has rotated to one that does not know it yet": {testKeys(t, "new", "old"), testKeys(t, "old"), false},
		"another cluster":                                       {testKeys(t, "other"), testKeys(t, "old", "new"), false},
	} {
		text := "a message, " + name
		sealed := c.from.SealMessage(text)
		if strings.Contains(sealed, "message") {
			t.Fatalf("%s: sealed %q", name, sealed)
		}
		if opened, ok := c.to.OpenMessage(sealed); ok != c.opens || ok && opened != text {
			t.Errorf("%s: opened %q, %t", name, opened, ok)
		}
	}
	keys := testKeys(t, "old")
	sealed, again := keys.SealMessage("x"), keys.SealMessage("x")
	for _, forged := range []string{"", "x", sealed[:len(sealed)-1], sealed + "A", sealed[:20] + "A" + sealed[21:], again[:30] + sealed[30:], keys.SealCursor("", "x")} {
		if text, ok := keys.OpenMessage(forged); ok && forged != sealed {
			t.Errorf("%q opens as %q", forged, text)
		}
	}
	if _, ok := keys.OpenCursor("", sealed); ok {
		t.Error("a message opens as a cursor")
	}
}
