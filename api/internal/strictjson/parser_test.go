package strictjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api/internal/strictjson"
	"github.com/fencelock/fencelock/api/internal/strictjson/naive"
)

func TestRefused(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	manyKeys := func(last string) string {
		var b strings.Builder
		b.WriteByte('{')
		for i := range 20 {
			fmt.Fprintf(&b, `"k%d":0,`, i)
		}
		return b.String() + `"` + last + `":0}`
	}
	cases := []struct{ name, text, reason string }{
		{"nothing", "", "value is expected"},
		{"only space", " \n", "value is expected"},
		{"two values", "1 2", "more after"},
		{"duplicate key", `{"a":1,"a":2}`, `key "a" occurs twice`},
		{"duplicate key, escaped", `{"a":1,"\u0061":2}`, `key "a" occurs twice`},
		{"duplicate key, nested", `[{"b":{"a":1,"a":2}}]`, `key "a" occurs twice`},
		{"duplicate key among many", manyKeys("k19"), `key "k19" occurs twice`},
		{"duplicate of an early key among many", manyKeys("k3"), `key "k3" occurs twice`},
		{"invalid UTF-8", "\"\xff\"", "UTF-8"},
		{"invalid UTF-8 after an escape", "\"\\n\xff\"", "UTF-8"},
		{"a surrogate in UTF-8", "\"\xed\xa0\x80\"", "UTF-8"},
		{"lone high surrogate", `"\ud800"`, "surrogate"},
		{"lone low surrogate", `"\udc00"`, "surrogate"},
		{"two high surrogates", `"\ud800\ud800"`, "surrogate"},
		{"control character", "\"\x01\"", "control character"},
		{"control character after an escape", "\"\\n\x01\"", "control character"},
		{"too deep", deep(strictjson.MaxDepth + 1), "nested deeper"},
		{"unterminated string", `"a`, "no end"},
		{"unterminated array", `[1`, "comma"},
		{"trailing comma", `[1,]`, "value is expected"},
		{"trailing comma in an object", `{"a":1,}`, "key in double quotes"},
		{"no colon", `{"a" 1}`, "colon"},
		{"leading zero", `01`, "more after"},
		{"plus sign", `+1`, "value is expected"},
		{"no digit after the point", `1.`, "digit"},
		{"no digit in the exponent", `1e+`, "digit"},
		{"unknown escape", `"\x"`, "escape"},
		{"short unicode escape", `"\u00"`, "hexadecimal"},
		{"NaN", `NaN`, "value is expected"},
		{"comment", `/**/1`, "value is expected"},
		{"byte order mark", "\ufeff1", "value is expected"},
		{"half a literal", `tru`, "value is expected"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := readAll([]byte(c.text))
			var syntax *strictjson.SyntaxError
			if !errors.As(err, &syntax) || !strings.Contains(err.Error(), c.reason) {
				t.Fatalf("%q gave %v, want a SyntaxError with %q", c.text, err, c.reason)
			}
			if syntax.Offset < 0 || syntax.Offset > len(c.text) {
				t.Fatalf("offset %d lies outside of %d bytes", syntax.Offset, len(c.text))
			}
		})
	}
	for _, text := range []string{deep(strictjson.MaxDepth), manyKeys("k20"), `"\ud83d\ude00"`, ` {"a" : [ 1.5e-3 , null ] } `} {
		if err := readAll([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestTypedValues(t *testing.T) {
	p := strictjson.New([]byte(`{"s":"x\u00e9","n":-12,"r": {"a":[1, 2]} }`))
	got := map[string]any{}
	err := p.Object(func(key []byte) (err error) {
		switch string(key) {
		case "s":
			got["s"], err = p.String()
		case "n":
			got["n"], err = p.Int()
		case "r":
			var raw []byte
			raw, err = p.Raw()
			got["r"] = string(raw)
		}
		return err
	})
	if err = errors.Join(err, p.End()); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"s": "xé", "n": int64(-12), "r": `{"a":[1, 2]}`}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("read %v, want %v", got, want)
	}
}

func TestWrongTypes(t *testing.T) {
	for _, text := range []string{`1.5`, `1e3`, `9223372036854775808`, `-9223372036854775809`, `"1"`, `null`, `true`, `[1]`} {
		_, err := strictjson.New([]byte(text)).Int()
		if typeErr := (*strictjson.TypeError)(nil); !errors.As(err, &typeErr) {
			t.Errorf("Int of %s gave %v, want a TypeError", text, err)
		}
	}
	for _, text := range []string{`1`, `null`, `{}`, `["a"]`} {
		_, err := strictjson.New([]byte(text)).String()
		if typeErr := (*strictjson.TypeError)(nil); !errors.As(err, &typeErr) {
			t.Errorf("String of %s gave %v, want a TypeError", text, err)
		}
	}
	err := strictjson.New([]byte(`[]`)).Object(nil)
	if typeErr := (*strictjson.TypeError)(nil); !errors.As(err, &typeErr) {
		t.Errorf("Object of an array gave %v, want a TypeError", err)
	}
}

// FuzzParser holds the parser against encoding/json plus the extra rules,
// written as plainly as can be: both must accept the same texts and read the
// same strings and numbers from them.
func FuzzParser(f *testing.F) {
	for _, seed := range []string{
		`{"resource":"orders/42","ttl_ms":30000,"metadata":{"a":[1,2.5e3,null,true]}}`,
		`{"a":1,"a":2}`, `"\ud83d\ude00"`, `"\ud800"`, `[[[]]]`, `1e999`, `-0`, "\"\xff\"", `{}{}`, `"\\ud800"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		err, wrong := readAll(data), naive.Check(data)
		if (err == nil) != (wrong == nil) {
			t.Fatalf("%q: strictjson says %v, the naive reader says %v", data, err, wrong)
		}
		if !bytes.Equal(before, data) {
			t.Fatal("the parser changed its input")
		}
		if err != nil {
			return
		}
		if text, err := strictjson.New(data).String(); err == nil {
			var want string
			if err := json.Unmarshal(data, &want); err != nil || text != want {
				t.Fatalf("%q reads as %q, want %q (%v)", data, text, want, err)
			}
		}
		var want int64
		number, err := strictjson.New(data).Int()
		if wantErr := json.Unmarshal(data, &want); (err == nil) != (wantErr == nil && string(bytes.TrimSpace(data)) != "null") || err == nil && number != want {
			t.Fatalf("%q reads as %d (%v), want %d (%v)", data, number, err, want, wantErr)
		}
	})
}

func readAll(data []byte) error {
	p := strictjson.New(data)
	if _, err := p.Raw(); err != nil {
		return err
	}
	return p.End()
}
