package fencing

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxResourceBytes is the maximum length of a resource's name, in bytes of UTF-8.
const MaxResourceBytes = 256

// ErrMalformedResource says that a text cannot be the name of a resource.
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

// CheckClaim checks the resource and the token of a claim or write. The error wraps ErrMalformedResource or
// ErrMalformedToken.
func CheckClaim(resource string, token Token) error {
	if err := CheckResource(resource); err != nil {
		return err
	}
	if !token.Valid() {
		return malformed(token.String())
	}
	return nil
}

// LastOfPrefix returns the end of the range of resources that begin with prefix, in byte order: no resource
// with the prefix is larger, and all other resources after the prefix are larger.
func LastOfPrefix(prefix string) string {
	return prefix + strings.Repeat(string(unicode.MaxRune), MaxResourceBytes/utf8.UTFMax)
}
