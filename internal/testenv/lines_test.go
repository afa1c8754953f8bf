package testenv_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

func TestLinesAreWhole(t *testing.T) {
	for text, want := range map[string][]string{"": nil, "a\n\nb\n": {"a", "", "b"}, "a\r\nb": {"a"}, "cut": nil} {
		var got []string
		lines := testenv.Lines(strings.NewReader(text))
		for lines.Scan() {
			got = append(got, lines.Text())
		}
		if err := lines.Err(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
