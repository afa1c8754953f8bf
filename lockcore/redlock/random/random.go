// Package random makes what is random in the algorithm: ownership values, notes of a
// quarantine, epochs and pauses.
package random

import (
	"encoding/base64"
	"encoding/binary"
	"io"
	"time"
)

// WordBytes is how many random bytes a Word holds.
const WordBytes = 20

// Source reads random bytes, and panics if that fails (crypto/rand never does, since
// Go 1.24). A simulation uses a reader that repeats. A Source is safe for concurrent
// use if its reader is.
type Source struct{ io.Reader }

// Fill fills b.
func (s Source) Fill(b []byte) {
	if _, err := io.ReadFull(s.Reader, b); err != nil {
		panic("no random bytes: " + err.Error())
	}
}

// Word makes a text of 20 random bytes that cannot be guessed and does not repeat:
// letters, digits, '-' and '_'.
func (s Source) Word() string {
	var raw [WordBytes]byte
	s.Fill(raw[:])
	return base64.RawURLEncoding.EncodeToString(raw[:])
}

// Below returns a random number in [0, n).
func (s Source) Below(n int64) int64 {
	var b [8]byte
	s.Fill(b[:])
	return int64(binary.LittleEndian.Uint64(b[:])>>1) % n
}

// Jitter returns a random pause in [pause/2, pause*3/2), so that servers that failed
// together do not try again together.
func (s Source) Jitter(pause time.Duration) time.Duration {
	return pause/2 + time.Duration(s.Below(int64(pause)))
}
