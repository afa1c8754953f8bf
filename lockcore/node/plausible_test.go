package node

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

func TestPlausible(t *testing.T) {
	now := time.Now()
	clock := FloorAt(now)
	for token, want := range map[fencing.Token]bool{
		0: false, 1: true, clock: true, clock + 1_000_000_000: true,
		clock + 1<<51: true, clock + 1<<51 + 1: false, fencing.MaxToken: false, -1: false,
	} {
		if Plausible(token, now) != want {
			t.Errorf("Plausible(%d) is %v", token, !want)
		}
	}
}
