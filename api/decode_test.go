package api_test

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/lockcore"
)

// TestStrictJSON: everything that two readers could understand differently is
// refused, with what is wrong and at which byte.
func TestStrictJSON(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	manyNames := func(last string) string {
		var b strings.Builder
		b.WriteByte('{')
		for i := range 20 {
			fmt.Fprintf(&b, `"k%d":0,`, i)
		}
		return b.String() + `"` + last + `":0}`
	}
	cases := []struct{ name, text, reason string }{
		{"nothing", "", "unexpected EOF"},
		{"only space", " \n", "unexpected EOF"},
		{"two values", "1 2", "after top-level value"},
		{"duplicate name", `{"a":1,"a":2}`, `name "a" occurs twice at byte 7`},
		{"duplicate name, escaped", `{"a":1,"\u0061":2}`, `name "a" occurs twice`},
		{"duplicate name, nested", `[{"b":{"a":1,"a":2}}]`, `name "a" occurs twice`},
		{"duplicate name among many", manyNames("k19"), `name "k19" occurs twice`},
		{"duplicate of an early name among many", manyNames("k3"), `name "k3" occurs twice`},
		{"invalid UTF-8", "\"\xff\"", "UTF-8"},
		{"invalid UTF-8 after an escape", "\"\\n\xff\"", "UTF-8"},
		{"a surrogate in UTF-8", "\"\xed\xa0\x80\"", "UTF-8"},
		{"lone high surrogate", `"\ud800"`, "surrogate"},
		{"lone low surrogate", `"\udc00"`, "surrogate"},
		{"two high surrogates", `"\ud800\ud800"`, "surrogate"},
		{"control character", "\"\x01\"", "expecting non-control character"},
		{"control character after an escape", "\"\\n\x01\"", "expecting non-control character"},
		{"too deep", deep(api.MaxBodyDepth + 1), "nested deeper than 64 levels at byte 64"},
		{"too deep in an object", `{"a":` + deep(api.MaxBodyDepth) + `}`, "nested deeper"},
		{"far too deep", deep(20000), "nested deeper"},
		{"unterminated string", `"a`, "unexpected EOF"},
		{"unterminated array", `[1`, "unexpected EOF"},
		{"trailing comma", `[1,]`, "invalid character"},
		{"trailing comma in an object", `{"a":1,}`, "invalid character"},
		{"no colon", `{"a" 1}`, "expecting ':'"},
		{"leading zero", `01`, "after top-level value"},
		{"plus sign", `+1`, "invalid character '+'"},
		{"no digit after the point", `1.`, "unexpected EOF"},
		{"no digit in the exponent", `1e+`, "unexpected EOF"},
		{"unknown escape", `"\x"`, "escape"},
		{"short unicode escape", `"\u00"`, "escape"},
		{"NaN", `NaN`, "invalid character 'N'"},
		{"comment", `/**/1`, "invalid character '/'"},
		{"byte order mark", "\ufeff1", "invalid character"},
		{"half a literal", `tru`, "unexpected EOF"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := api.DecodeValue([]byte(c.text))
			var field *lockcore.FieldError
			if !errors.As(err, &field) || field.Field != "body" || !strings.Contains(err.Error(), c.reason) {
				t.Fatalf("%q gave %v, want a FieldError of the body with %q", c.text, err, c.reason)
			}
			offset := regexp.MustCompile(` at byte (\d+)$`).FindStringSubmatch(err.Error())
			if offset == nil {
				t.Fatalf("%v says no offset", err)
			}
			if n, _ := strconv.Atoi(offset[1]); n > len(c.text) {
				t.Fatalf("offset %d lies outside of %d bytes", n, len(c.text))
			}
		})
	}
	for _, text := range []string{deep(api.MaxBodyDepth), `"` + deep(api.MaxBodyDepth) + `"`, manyNames("k20"), `"\ud83d\ude00"`, ` {"a" : [ 1.5e-3 , null ] } `} {
		if _, err := api.DecodeValue([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestWrongTypes: the reason says in JSON's words what is wanted.
func TestWrongTypes(t *testing.T) {
	for body, want := range map[string]string{
		`[]`:                                     "body must be a JSON object",
		`null`:                                   "body must be a JSON object",
		`{"resource":1}`:                         "resource must be a string",
		`{"resource":null}`:                      "resource must be a string",
		`{"resources":{}}`:                       "resources must be an array of strings",
		`{"resources":["a",null]}`:               "resources must contain a string at index 1",
		`{"resource":"a","ttl_ms":1e3}`:          "ttl_ms must be a whole number, without fraction and exponent",
		`{"resource":"a","ttl_ms":null}`:         "ttl_ms must be a whole number",
		`{"resource":"a","ttl_ms":1}`:            "ttl_ms must be a whole number from 100 to 60000",
		`{"resource":"a","Holder":"b"}`:          "Holder is not a field of this request",
		`{"resource":"a","wait_ms":1,"wait_ms"}`: `name "wait_ms" occurs twice at byte 28`,
	} {
		if _, err := api.DecodeAcquire([]byte(body), limits); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s gave %v, want %q", body, err, want)
		}
	}
}

// A request is held against the bounds of the Service: those of a store that commits slowly are
// narrower.
func TestTheBoundsAreTheServices(t *testing.T) {
	slow := lockcore.Limits{MinTTL: 250 * time.Millisecond, DefaultTTL: time.Second, MaxTTL: 2 * time.Second}
	for body, want := range map[string]string{
		`{"resource":"a","ttl_ms":249}`:        "ttl_ms must be a whole number from 250 to 2000: the store",
		`{"resource":"a","ttl_ms":0}`:          "ttl_ms must be a whole number from 250 to 2000: the store",
		`{"resource":"a","ttl_ms":2001}`:       "ttl_ms must be a whole number from 250 to 2000",
		`{"resource":"a","min_hold_ms":1001}`:  "min_hold_ms must be 0 to the TTL (1000)",
		`{"resource":"a","max_hold_ms":999}`:   "max_hold_ms must be 0 for no bound, or at least the TTL (1000)",
		`{"resource":"a","wait_ms":600001}`:    "wait_ms must be a whole number from 0 to 600000",
		`{"resource":"a","min_hold_ms":1000}`:  "",
		`{"resources":["b","a"],"ttl_ms":250}`: "",
	} {
		_, err := api.DecodeAcquire([]byte(body), slow)
		if said := fmt.Sprint(err); (err != nil) != (want != "") || !strings.Contains(said, want) {
			t.Errorf("%s gave %v, want %q", body, err, want)
		}
	}
}
