package fencing

import (
	"errors"
	"fmt"
	"strconv"
)

// Token is a fencing token: a positive number that grows with every lease granted on a resource. A lock
// service mints it, a client carries it, and a Guard refuses every write with a smaller token than the
// largest that it has seen.
//
// Valid tokens lie in [1, MaxToken]. The zero value means "no token".
type Token int64

// MaxToken is the largest token: 2^53-1, the largest integer that every JSON reader and Lua can represent
// exactly, because both use IEEE 754 doubles.
const MaxToken Token = 1<<53 - 1

// ErrMalformedToken says that a text is not a decimal number in [1, MaxToken].
var ErrMalformedToken = errors.New("malformed fencing token")

// ParseToken reads a token in the decimal form of the Fencing-Token header: digits only, without sign, spaces
// or leading zeros. The error wraps ErrMalformedToken.
func ParseToken(text string) (Token, error) {
	if len(text) == 0 || len(text) > len("9007199254740991") || text[0] < '1' || text[0] > '9' {
		return 0, malformed(text)
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil || !Token(value).Valid() {
		return 0, malformed(text)
	}
	return Token(value), nil
}

// Valid reports whether the token lies in [1, MaxToken].
func (t Token) Valid() bool { return t >= 1 && t <= MaxToken }

// String returns the decimal text that ParseToken reads.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

func malformed(text string) error {
	const shown = 32
	if len(text) > shown {
		text = text[:shown] + "…"
	}
	return fmt.Errorf("%w: %q is not a decimal number from 1 to %d", ErrMalformedToken, text, MaxToken)
}
