// Package random makes the random values of the algorithm: ownership values, quarantine notes, epochs and
// pauses.
package random

import (
	"encoding/base64"
	"encoding/binary"
	"io"
	"time"
)

// wordBytes is the number of random bytes in a Word.
const wordBytes = 20

// Source reads random bytes. It panics if that fails, which never happens with crypto/rand since Go 1.24.
// A simulation uses a reader that repeats the same bytes in every run. A Source is safe for concurrent
// use if its reader is.
type Source struct{ io.Reader }

// Fill fills b.
func (s Source) Fill(b []byte) {
	if _, err := io.ReadFull(s.Reader, b); err != nil {
		panic("no random bytes: " + err.Error())
	}
}

// Word returns a text made of 20 random bytes. It cannot be guessed and does not repeat; it contains
// letters, digits, '-' and '_'.
func (s Source) Word() string {
	var raw [wordBytes]byte
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
