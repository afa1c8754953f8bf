package redlock

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// A round over several nodes takes only a small part of the TTL. A single node is given more time, as long as the
// lease that it grants has some time left (rule 18).
func TestRoundLimit(t *testing.T) {
	cfg := Config{NodeTimeout: 50 * time.Millisecond}
	for _, c := range []struct {
		nodes     int
		ttl, want time.Duration
	}{
		{3, time.Minute, 50 * time.Millisecond},
		{3, lockcore.MinTTL, lockcore.MinTTL / 10},
		{1, time.Minute, 50 * time.Millisecond},
		{1, 80 * time.Millisecond, 40 * time.Millisecond},
	} {
		if got := roundLimit(&cfg, c.nodes, c.ttl); got != c.want {
			t.Errorf("a round of %d nodes for a TTL of %s may take %s, want %s", c.nodes, c.ttl, got, c.want)
		}
	}
}
