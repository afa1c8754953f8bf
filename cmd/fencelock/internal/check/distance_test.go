package check

import (
	"testing"
	"time"
)

// A round trip should fit ten times into each time limit of a node. If it takes as long as the limit, the node has no
// vote.
func TestDistance(t *testing.T) {
	for trip, want := range map[time.Duration]Level{
		20 * time.Millisecond:  "",
		21 * time.Millisecond:  Risky,
		199 * time.Millisecond: Risky,
		200 * time.Millisecond: Wrong,
	} {
		var r Report
		r.distance(redisNode{name: "a:1", trip: trip}, "FENCELOCK_NODE_DOWN_AFTER", 200*time.Millisecond, "it counts as down after")
		var got Level
		for _, f := range r.Findings {
			got = f.Level
		}
		if got != want || len(r.Findings) > 1 {
			t.Errorf("a round trip of %s: %+v, want %q", trip, r.Findings, want)
		}
	}
}
