package lockcore

import (
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

func someLeaseID(resource string, token fencing.Token, millis int64) leaseID {
	return leaseID{
		value: Config{}.withDefaults().newLeaseValue(), token: token,
		acquired: time.UnixMilli(millis), resource: resource,
	}
}

func TestLeaseIDRoundTrip(t *testing.T) {
	for _, id := range []leaseID{
		someLeaseID("a", 1, 0),
		someLeaseID("orders/17 ü 漢", fencing.MaxToken, 1_900_000_000_000),
		someLeaseID(strings.Repeat("x", MaxResourceBytes), 1_700_000_000_000, int64(fencing.MaxToken)),
	} {
		got, err := parseLeaseID(id.String())
		if err != nil || got != id {
			t.Errorf("%+v came back as %+v, %v", id, got, err)
		}
	}
	roundTrips := func(secret [leaseSecretBytes]byte, token, millis uint64, resource string) bool {
		id := leaseID{
			value: base64.RawURLEncoding.EncodeToString(secret[:]), token: fencing.Token(token%uint64(fencing.MaxToken) + 1),
			acquired: time.UnixMilli(int64(millis % uint64(fencing.MaxToken))), resource: resource,
		}
		got, err := parseLeaseID(id.String())
		if ValidateResource(resource) != nil {
			return err != nil
		}
		return err == nil && got == id
	}
	if err := quick.Check(roundTrips, nil); err != nil {
		t.Error(err)
	}
}

func TestLeaseIDRefusesAllElse(t *testing.T) {
	raw := func(change func([]byte) []byte) string {
		b, _ := base64.RawURLEncoding.DecodeString(someLeaseID("orders", 300, 1_700_000_000_000).String())
		return base64.RawURLEncoding.EncodeToString(change(b))
	}
	good := someLeaseID("orders", 300, 1_700_000_000_000).String()
	const tokenAt = 1 + leaseSecretBytes
	cases := map[string]string{
		"nothing":             "",
		"not base64":          "no lease id!",
		"padded":              good + "=",
		"a space before":      " " + good,
		"a line break inside": good[:8] + "\n" + good[8:],
		"the other alphabet":  strings.Repeat("+", len(good)),
		"cut":                 good[:20],
		"cut by its resource": raw(func(b []byte) []byte { return b[:len(b)-len("orders")] }),
		"another version":     raw(func(b []byte) []byte { b[0] = 2; return b }),
		"a token of zero":     raw(func(b []byte) []byte { return append(append(b[:tokenAt:tokenAt], 0), b[tokenAt+2:]...) }),
		"a long form token":   raw(func(b []byte) []byte { return append(append(b[:tokenAt:tokenAt], 0xac, 0x82, 0), b[tokenAt+2:]...) }),
		"an endless token":    raw(func(b []byte) []byte { return append(b[:tokenAt:tokenAt], 0xff, 0xff, 0xff) }),
		"a control character": raw(func(b []byte) []byte { b[len(b)-1] = 7; return b }),
		"invalid UTF-8":       raw(func(b []byte) []byte { b[len(b)-1] = 0xff; return b }),
		"too long":            good + strings.Repeat("A", 800),
		"a long resource":     raw(func(b []byte) []byte { return append(b, strings.Repeat("A", MaxResourceBytes)...) }),
	}
	for name, text := range cases {
		if id, err := parseLeaseID(text); !errors.Is(err, ErrMalformedLeaseID) {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	// The last character of a text has bits to spare; only one form is right.
	for _, last := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
		text := good[:len(good)-1] + string(last)
		if id, err := parseLeaseID(text); err == nil && id.String() != text {
			t.Errorf("%s was taken for %s", text, id)
		}
	}
}

func FuzzParseLeaseID(f *testing.F) {
	f.Add("")
	f.Add("AQ")
	f.Add(someLeaseID("orders", 300, 1_700_000_000_000).String())
	f.Add(someLeaseID("ü", fencing.MaxToken, 0).String())
	f.Fuzz(func(t *testing.T, text string) {
		id, err := parseLeaseID(text)
		switch {
		case err != nil && !errors.Is(err, ErrMalformedLeaseID):
			t.Errorf("%q: another error: %v", text, err)
		case err == nil && id.String() != text:
			t.Errorf("%q and %q are both taken for %+v", text, id.String(), id)
		case err == nil && (ValidateResource(id.resource) != nil || !id.token.Valid() || len(id.value) != LeaseValueLen):
			t.Errorf("%q gives %+v", text, id)
		}
	})
}

func TestLeaseValues(t *testing.T) {
	cfg := Config{}.withDefaults()
	seen := make(map[string]bool)
	for range 1000 {
		value := cfg.newLeaseValue()
		if len(value) != LeaseValueLen || seen[value] {
			t.Fatalf("lease value %q: its length, or drawn before", value)
		}
		seen[value] = true
	}
	if a, b := derivedLeaseValue("one"), derivedLeaseValue("two"); a == b || len(a) != LeaseValueLen || a != derivedLeaseValue("one") {
		t.Errorf("derived lease values %q and %q", a, b)
	}
}

// Entropy that repeats makes ids that repeat, for the simulation.
func TestEntropyIsTheOnlyChance(t *testing.T) {
	draw := func() (string, time.Duration, int64) {
		cfg := Config{Entropy: rand.NewChaCha8([32]byte{1})}.withDefaults()
		return cfg.newLeaseValue(), cfg.jitter(time.Second), cfg.randomBelow(1000)
	}
	a1, b1, c1 := draw()
	a2, b2, c2 := draw()
	if a1 != a2 || b1 != b2 || c1 != c2 {
		t.Error("the same entropy gave different values")
	}
}

func TestJitterStaysInItsBounds(t *testing.T) {
	cfg := Config{}.withDefaults()
	for range 1000 {
		if d := cfg.jitter(time.Second); d < time.Second/2 || d >= 3*time.Second/2 {
			t.Fatalf("jitter of a second is %s", d)
		}
	}
}
