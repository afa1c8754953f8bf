package edge

import "testing"

// FuzzHeaderCheck: whether a header is refused does not depend on the pieces in which it comes.
func FuzzHeaderCheck(f *testing.F) {
	f.Add("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n{\n }\nGET / HTTP/1.1\r\n Host: a\r\n\r\n", 3)
	f.Add("POST / HTTP/1.1\nTransfer-Encoding: chunked\nContent-Length: 5\n\n", 1)
	f.Add("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 7)
	f.Fuzz(func(t *testing.T, text string, size int) {
		whole := refuses([]byte(text), len(text))
		if pieces := refuses([]byte(text), size); pieces != whole {
			t.Errorf("refused: %t whole, %t in pieces of %d", whole, pieces, size)
		}
	})
}

// refuses reports whether the check refuses the text when it comes in pieces of this size.
func refuses(text []byte, size int) bool {
	var check headerCheck
	for len(text) > 0 {
		n := min(max(1, size), len(text))
		if check.see(text[:n]) != nil {
			return true
		}
		text = text[n:]
	}
	return false
}
