package random_test

import (
	crypto "crypto/rand"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/redlock/random"
)

// A reader that repeats its bytes makes random values that repeat, which the simulation needs.
func TestTheReaderIsTheOnlyChance(t *testing.T) {
	draw := func() (string, time.Duration, int64) {
		s := random.Source{Reader: rand.NewChaCha8([32]byte{1})}
		return s.Word(), s.Jitter(time.Second), s.Below(1000)
	}
	a1, b1, c1 := draw()
	a2, b2, c2 := draw()
	if a1 != a2 || b1 != b2 || c1 != c2 {
		t.Error("the same reader gave different values")
	}
}

func TestJitterStaysInItsBounds(t *testing.T) {
	s := random.Source{Reader: crypto.Reader}
	for range 1000 {
		if d := s.Jitter(time.Second); d < time.Second/2 || d >= 3*time.Second/2 {
			t.Fatalf("jitter of a second is %s", d)
		}
	}
}
