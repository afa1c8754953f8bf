package fencing_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/fencing"
)

func TestParseToken(t *testing.T) {
	for text, want := range map[string]fencing.Token{
		"1": 1, "34": 34, "9007199254740991": fencing.MaxToken,
		"": 0, "0": 0, "00": 0, "01": 0, "-1": 0, "+1": 0, " 1": 0, "1 ": 0, "1.0": 0, "1e3": 0, "0x1": 0, "1_000": 0, "٣": 0,
		"9007199254740992": 0, "9223372036854775808": 0, "99999999999999999999": 0,
	} {
		got, err := fencing.ParseToken(text)
		if got != want || (err == nil) != (want != 0) || (err != nil && !errors.Is(err, fencing.ErrMalformedToken)) {
			t.Errorf("ParseToken(%q) gives %d, %v; want %d", text, got, err, want)
		}
		if err == nil && got.String() != text {
			t.Errorf("token %q prints as %q", text, got)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	for _, text := range []string{"1", "0", "9007199254740991", "9007199254740992", "-1", "x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		token, err := fencing.ParseToken(text)
		if err == nil && (!token.Valid() || token.String() != text) {
			t.Errorf("%q parses to %d, which prints as %q", text, token, token)
		}
	})
}

func TestCheckResource(t *testing.T) {
	for resource, ok := range map[string]bool{
		"a": true, "accounts/42": true, " ": true, "日本": true, strings.Repeat("x", 256): true, strings.Repeat("é", 128): true,
		"": false, strings.Repeat("x", 257): false, strings.Repeat("é", 129): false, "a\x00": false, "a\tb": false, "\u0085": false, "\xc3": false,
	} {
		if err := fencing.CheckResource(resource); (err == nil) != ok || (err != nil && !errors.Is(err, fencing.ErrMalformedResource)) {
			t.Errorf("CheckResource(%q) gives %v, want ok: %t", resource, err, ok)
		}
	}
}

func TestContext(t *testing.T) {
	if token, ok := fencing.FromContext(context.Background()); ok {
		t.Errorf("an empty context has token %d", token)
	}
	if token, ok := fencing.FromContext(fencing.NewContext(context.Background(), 34)); !ok || token != 34 {
		t.Errorf("the context gives %d, %t", token, ok)
	}
}
