package fencing

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxResourceBytes is the longest name of a resource, in bytes of UTF-8.
const MaxResourceBytes = 256

// ErrMalformedResource says that a text cannot name a resource.
var ErrMalformedResource = errors.New("malformed resource")

// CheckResource accepts 1 to MaxResourceBytes bytes of valid UTF-8 without
// control characters. The error wraps ErrMalformedResource.
func CheckResource(resource string) error {
	switch {
	case len(resource) < 1 || len(resource) > MaxResourceBytes:
		return fmt.Errorf("%w: must be 1 to %d bytes long", ErrMalformedResource, MaxResourceBytes)
	case !utf8.ValidString(resource):
		return fmt.Errorf("%w: must be valid UTF-8", ErrMalformedResource)
	}
	for _, r := range resource {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w: must not contain control characters", ErrMalformedResource)
		}
	}
	return nil
}

// CheckClaim checks what every claim and write presents. The error wraps
// ErrMalformedResource or ErrMalformedToken.
func CheckClaim(resource string, token Token) error {
	if err := CheckResource(resource); err != nil {
		return err
	}
	if !token.Valid() {
		return malformed(token.String())
	}
	return nil
}

// LastOfPrefix is a text that no resource with the prefix is larger than, and that is smaller
// than every other resource after the prefix: the end of a range, in the order of bytes.
func LastOfPrefix(prefix string) string {
	return prefix + strings.Repeat(string(unicode.MaxRune), MaxResourceBytes/utf8.UTFMax)
}
