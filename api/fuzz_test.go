package api_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/lockcore"
)

// FuzzAcquireRequest holds the decoder against a decoder that is as
// plain as can be: encoding/json into a map, and the rules of the contract one
// after the other. Both must accept the same bodies and read the same from them.
func FuzzAcquireRequest(f *testing.F) {
	for _, seed := range []string{
		`{"resource":"orders/42","ttl_ms":30000,"wait_ms":0,"holder":"worker-7","metadata":{"job":[1,2.5e3,null,true]}}`,
		`{"resource":"\u0061\ud83d\ude00","metadata":null}`, `{"resource":"a","ttl_ms":100.0}`, `{"resource":"a","Resource":"b"}`,
		`{"resource":"a","resource":"a"}`, `{"resource":"a","wait_ms":-0}`, `{}`, `[]`, `{"resource":"a"} {}`, `{"resource":"\u0000"}`,
		`{"resources":["a","b"]}`, `{"resources":["a","\u0061"]}`, `{"resources":["a"]}`, `{"resources":[]}`, `{"resources":["a","b"],"resource":"c"}`, `{"resources":["a",1]}`,
		`{"resource":"a","slots":3}`, `{"resource":"a","slots":33}`, `{"resource":"a","slots":null}`, `{"resource":"a#slot1","slots":1}`, `{"resources":["a","b"],"slots":1}`, `{"resource":"a","slots":0}`,
		`{"metadata":"x","resource":"b","holder":"\u009f"}`, `{"resource":"a","ttl_ms":60000}`, `{"resource":"a","ttl_ms":60001}`,
		`{"resource":"a","min_hold_ms":30000,"max_hold_ms":30000}`, `{"resource":"a","min_hold_ms":30001}`, `{"resource":"a","max_hold_ms":29999}`, `{"resource":"a","ttl_ms":1000,"min_hold_ms":1001}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := api.DecodeAcquire(body, limits)
		wanted, wantErr := naiveAcquire(body)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: the decoder says %v, the naive one %v", body, err, wantErr)
		}
		var field *lockcore.FieldError
		if err != nil && (!errors.As(err, &field) || field.Field == "" || !utf8.ValidString(field.Field)) {
			t.Fatalf("%q: %v names no field", body, err)
		}
		slices.Sort(wanted.Resources)
		if err == nil && (got.Resource != wanted.Resource || got.TTL != cmp.Or(wanted.TTL, limits.DefaultTTL) || got.Wait != wanted.Wait || got.Slots != wanted.Slots || got.Holder != wanted.Holder || !slices.Equal(got.Resources, wanted.Resources) || !bytes.Equal(got.Metadata, wanted.Metadata)) {
			t.Fatalf("%q reads as %+v, want %+v", body, got, wanted)
		}
	})
}

func naiveAcquire(body []byte) (req lockcore.Request, err error) {
	if err := naiveCheck(body); err != nil {
		return req, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return req, err
	}
	if members == nil {
		return req, errors.New("null")
	}
	known := []string{"resource", "resources", "slots", "ttl_ms", "wait_ms", "min_hold_ms", "max_hold_ms", "holder", "metadata"}
	for name := range maps.Keys(members) {
		if !slices.Contains(known, name) {
			return req, errors.New("unknown field")
		}
	}
	if raw, ok := members["resources"]; ok {
		req.Resources, err = naiveList(raw)
	}
	if raw, ok := members["resource"]; ok && err == nil {
		req.Resource, err = naiveText(raw, 1)
	}
	if err != nil {
		return req, err
	}
	if (req.Resource == "") == (req.Resources == nil) {
		return req, errors.New("neither or both")
	}
	if raw, ok := members["slots"]; ok {
		n, err := naiveMillis(raw, 1, 32)
		if req.Slots = int(n.Milliseconds()); err != nil || req.Resources != nil || strings.Contains(req.Resource, "#slot") || len(fmt.Sprint(req.Resource, "#slot", req.Slots)) > 256 {
			return req, errors.New("slots")
		}
	}
	if raw, ok := members["holder"]; ok {
		if req.Holder, err = naiveText(raw, 0); err != nil {
			return req, err
		}
	}
	if raw, ok := members["ttl_ms"]; ok {
		if req.TTL, err = naiveMillis(raw, 100, 60_000); err != nil {
			return req, err
		}
	}
	if raw, ok := members["wait_ms"]; ok {
		if req.Wait, err = naiveMillis(raw, 0, 600_000); err != nil {
			return req, err
		}
	}
	if raw, ok := members["min_hold_ms"]; ok {
		if req.MinHold, err = naiveMillis(raw, 0, int64(naiveTTL(req)/time.Millisecond)); err != nil {
			return req, err
		}
	}
	if raw, ok := members["max_hold_ms"]; ok {
		if req.MaxHold, err = naiveMillis(raw, 0, 315_360_000_000); err != nil || req.MaxHold > 0 && req.MaxHold < naiveTTL(req) {
			return req, errors.New("max hold")
		}
	}
	if raw, ok := members["metadata"]; ok && string(raw) != "null" {
		if len(raw) > 4096 {
			return req, errors.New("metadata")
		}
		req.Metadata = raw
	}
	return req, nil
}

// naiveTTL is the TTL of a request, by default 30 seconds.
func naiveTTL(req lockcore.Request) time.Duration {
	if req.TTL == 0 {
		return 30 * time.Second
	}
	return req.TTL
}

func naiveList(raw json.RawMessage) (list []string, err error) {
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, item := range items {
		text, err := naiveText(item, 1)
		if err != nil || seen[text] {
			return nil, errors.New("text, or twice")
		}
		seen[text] = true
		list = append(list, text)
	}
	if len(list) < 2 || len(list) > 16 {
		return nil, errors.New("number")
	}
	return list, nil
}

func naiveText(raw json.RawMessage, least int) (text string, err error) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", errors.New("no string")
	}
	if err := json.Unmarshal(raw, &text); err != nil {
		return "", err
	}
	if len(text) < least || len(text) > 256 {
		return "", errors.New("length")
	}
	for _, r := range text {
		if unicode.Is(unicode.Cc, r) {
			return "", errors.New("control character")
		}
	}
	return text, nil
}

var wholeNumber = regexp.MustCompile(`^-?[0-9]+$`)

func naiveMillis(raw json.RawMessage, least, most int64) (time.Duration, error) {
	if !wholeNumber.Match(raw) {
		return 0, errors.New("no whole number")
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < least || n > most {
		return 0, errors.New("range")
	}
	return time.Duration(n) * time.Millisecond, nil
}

// FuzzValue holds the reading of any JSON value against the naive reader: both
// must accept the same texts, and what is read is the text without the space
// around it, copied.
func FuzzValue(f *testing.F) {
	for _, seed := range []string{
		`{"resource":"orders/42","ttl_ms":30000,"metadata":{"a":[1,2.5e3,null,true]}}`,
		`{"a":1,"a":2}`, `"\ud83d\ude00"`, `"\ud800"`, `[[[]]]`, `1e999`, `-0`, "\"\xff\"", `{}{}`, `"\\ud800"`, " [1] ",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		got, err := api.DecodeValue(data)
		if wrong := naiveCheck(data); (err == nil) != (wrong == nil) {
			t.Fatalf("%q: the decoder says %v, the naive reader says %v", data, err, wrong)
		}
		if !bytes.Equal(before, data) {
			t.Fatal("the decoder changed its input")
		}
		if want := bytes.Trim(data, " \t\r\n"); err == nil && !bytes.Equal(got, want) {
			t.Fatalf("%q reads as %q, want %q", data, got, want)
		}
		if clear(data); err == nil && !bytes.Equal(got, bytes.Trim(before, " \t\r\n")) {
			t.Fatal("what was read is a part of the input, which serves the next request")
		}
	})
}

// FuzzPathResource: whatever is accepted keeps the rules of a resource, and
// every resource that keeps them is found by its escaped name, with its slashes
// encoded or as they are.
func FuzzPathResource(f *testing.F) {
	for _, seed := range []string{"orders/42", "orders%2F42", "a%252Fb", "%", "%zz", "%00", "%FF", "é", "", "a%20b", "..", "%C2%85"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		resource, err := api.ParseResource(text)
		if err == nil && lockcore.ValidateResource(resource) != nil {
			t.Fatalf("%q was read as %q, which is no resource", text, resource)
		}
		var field *lockcore.FieldError
		if err != nil && (!errors.As(err, &field) || field.Field != "resource") {
			t.Fatalf("%q: %v does not name the resource", text, err)
		}
		if lockcore.ValidateResource(text) != nil {
			return
		}
		for _, escaped := range []string{url.PathEscape(text), (&url.URL{Path: text}).EscapedPath()} {
			if back, err := api.ParseResource(escaped); err != nil || back != text {
				t.Fatalf("%q escaped as %q was read as %q, %v", text, escaped, back, err)
			}
		}
	})
}
