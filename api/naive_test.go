package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/fencelock/fencelock/api"
)

// naiveCheck says what is wrong with a JSON text, nil if nothing is, by means
// of encoding/json and the extra rules written down as plainly as can be: what
// the real decoder is held against.
func naiveCheck(data []byte) error {
	if !utf8.Valid(data) || !json.Valid(data) {
		return errors.New("invalid")
	}
	if hasLoneSurrogate(data) {
		return errors.New("lone surrogate")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := naiveWalk(dec, 0); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("trailing")
	}
	return nil
}

func naiveWalk(dec *json.Decoder, depth int) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	if depth++; depth > api.MaxBodyDepth {
		return errors.New("too deep")
	}
	seen := map[string]bool{}
	for dec.More() {
		if open == '{' {
			token, err := dec.Token()
			if err != nil {
				return err
			}
			key, ok := token.(string)
			if !ok || seen[key] {
				return errors.New("duplicate")
			}
			seen[key] = true
		}
		if err := naiveWalk(dec, depth); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

// hasLoneSurrogate looks through the escapes of a valid text.
func hasLoneSurrogate(data []byte) bool {
	high := rune(-1)
	for i := 0; i < len(data); i++ {
		r := rune(-1)
		if data[i] == '\\' {
			if data[i+1] == 'u' {
				var unit rune
				_, _ = fmt.Sscanf(string(data[i+2:i+6]), "%04x", &unit)
				r = unit
				i += 5
			} else {
				i++
			}
		}
		if high >= 0 {
			if r < 0xdc00 || r > 0xdfff {
				return true
			}
			high = -1
			continue
		}
		if r >= 0 && utf16.IsSurrogate(r) {
			if r >= 0xdc00 {
				return true
			}
			high = r
		}
	}
	return high >= 0
}
