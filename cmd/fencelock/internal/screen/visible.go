// Package screen formats what people see in a terminal: aligned tables, and texts of other users, which
// must not control the terminal.
package screen

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Visible replaces characters that a terminal would obey or not show by \n, \x1b, \u202e or similar
// escapes: control characters, characters that change the direction of writing, characters without a
// shape, spaces other than the usual one, and bytes that are not UTF-8.
func Visible(text string) string { return visible(text, "") }

// VisibleLines is Visible for a text of several lines: it keeps line breaks and tabs.
func VisibleLines(text string) string { return visible(text, "\n\t") }

func visible(text, keep string) string {
	if isPlain(text) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case shows(r) || strings.ContainsRune(keep, r):
			b.WriteRune(r)
		default:
			b.WriteString(escape(r))
		}
		i += size
	}
	return b.String()
}

// isPlain reports whether a text is only printable ASCII, which is fast and usually true.
func isPlain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// shows reports whether a terminal shows a character, and the character has no other effect.
func shows(r rune) bool {
	return unicode.IsPrint(r) && !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

func escape(r rune) string {
	if name := map[rune]string{'\n': `\n`, '\r': `\r`, '\t': `\t`}[r]; name != "" {
		return name
	}
	switch {
	case r < 0x80:
		return fmt.Sprintf(`\x%02x`, r)
	case r <= 0xffff:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}

// JSON escapes in a JSON text the characters that Visible escapes, without changing its meaning. Line
// breaks and tabs between values are kept.
func JSON(text []byte) []byte {
	if isPlain(strings.ReplaceAll(string(text), "\n", "")) {
		return text
	}
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case shows(r) || r == '\n' || r == '\t':
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return []byte(b.String())
}
