package screen_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
)

func TestVisible(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"orders/42":            "orders/42",
		"Grüße, 数据库 и всё":     "Grüße, 数据库 и всё",
		"a\nb\tc\r":            `a\nb\tc\r`,
		"\x1b[2Jgone":          `\x1b[2Jgone`,
		"\u009b2J":             `\u009b2J`, // the same in one character
		"\u202eevil":           `\u202eevil`,
		"a\u2066b\u2069":       `a\u2066b\u2069`,
		"zero\u200bwidth":      `zero\u200bwidth`,
		"\u3164":               `\u3164`, // a letter without a shape
		"no\u00a0break":        `no\u00a0break`,
		"\U000e0041":           `\U000e0041`, // a tag
		"half\xff":             `half\xff`,
		"back\\slash":          `back\slash`,
		"e\u0301":              "e\u0301", // an accent is seen
		"\u2764\ufe0f":         "\u2764" + `\ufe0f`,
		string(rune(0xfffd)):   "\ufffd",
		strings.Repeat("a", 9): "aaaaaaaaa",
	} {
		if got := screen.Visible(text); got != want {
			t.Errorf("%q shows as %q, want %q", text, got, want)
		}
	}
	if got := screen.VisibleLines("a\n\tb\x1b\u202e"); got != "a\n\tb"+`\x1b\u202e` {
		t.Errorf("lines: %q", got)
	}
}

// Whatever the text is, the output contains no character that controls a terminal.
func TestNothingSteersTheTerminal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		shown := screen.Visible(text)
		if !utf8.ValidString(shown) {
			t.Fatalf("%q", shown)
		}
		for _, r := range shown {
			if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Bidi_Control) {
				t.Fatalf("%q shows %U", text, r)
			}
		}
	})
}

func TestJSONMeansTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := map[string]string{"k": rapid.String().Draw(t, "text") + rapid.SampledFrom([]string{"", "\u202e", "\u009b", "\U000e0041"}).Draw(t, "more")}
		text, err := json.MarshalIndent(in, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		shown := screen.JSON(text)
		var out map[string]string
		if err := json.Unmarshal(shown, &out); err != nil || out["k"] != in["k"] {
			t.Fatalf("%q became %q, %v", in["k"], out["k"], err)
		}
		for _, r := range string(shown) {
			if r != '\n' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Bidi_Control) {
				t.Fatalf("%q shows %U", shown, r)
			}
		}
	})
}

func table(rows ...[]string) *screen.Table {
	t := &screen.Table{}
	for _, row := range rows {
		t.Row(row...)
	}
	return t
}

// Columns align by the cells of the terminal, not by the number of characters.
func TestWideCharactersAlign(t *testing.T) {
	t.Parallel()
	lines := table([]string{"RESOURCE", "HOLDER", "N"}, []string{"注文/42", "x", "1"}, []string{"orders/42", "ワーカー", "2"}, []string{"e\u0301/1", "\u202e", "3"}).Lines(0)
	want := "RESOURCE   HOLDER    N|注文/42    x         1|orders/42  ワーカー  2|e\u0301/1" + `        \u202e    3`
	if got := strings.Join(lines, "|"); got != want {
		t.Errorf("\n%s, want\n%s", got, want)
	}
}

func TestLinesFitTheWidth(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.SampledFrom([]rune("ab/注文é\u0301\u202e ")))
		row := func() []string { return []string{text.Draw(t, "a"), text.Draw(t, "b"), "1234567890", "12s"} }
		width := rapid.IntRange(1, 100).Draw(t, "width")
		tab := table([]string{"RESOURCE", "HOLDER", "TOKEN", "IN"}, row(), row())
		for _, line := range tab.Lines(width) {
			if screen.Width(line) > width {
				t.Fatalf("%q is %d wide, not %d", line, screen.Width(line), width)
			}
		}
	})
	// The widest gives first: what is short stays readable.
	got := table([]string{"RESOURCE", "HOLDER", "ENDS IN"}, []string{strings.Repeat("r", 60), "worker-1", "12s"}).Lines(40)
	if len(got) != 2 || !strings.HasSuffix(got[1], "…  worker-1  12s") || screen.Width(got[1]) > 40 {
		t.Errorf("%q", got)
	}
}
