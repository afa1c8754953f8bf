package redlock

import (
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

func TestConfigDefaultsAreValid(t *testing.T) {
	for _, maxTTL := range []time.Duration{0, 500 * time.Millisecond, time.Second, 2 * time.Hour} {
		if err := (Config{MaxTTL: maxTTL}).WithDefaults().validate(); err != nil {
			t.Errorf("with MaxTTL %s: %v", maxTTL, err)
		}
	}
}

func TestConfigValidationNamesTheField(t *testing.T) {
	for field, cfg := range map[string]Config{
		"MaxHold":       {MaxHold: time.Second},
		"NodeTimeout":   {MaxTTL: time.Second, NodeTimeout: 501 * time.Millisecond},
		"MaxInFlight":   {MaxInFlight: -1},
		"MaxWaiters":    {MaxWaiters: -1},
		"WatchInterval": {WatchInterval: time.Microsecond},
		"Recovery":      {Recovery: "perhaps"},
	} {
		if err := cfg.WithDefaults().validate(); err == nil || !strings.HasPrefix(err.Error(), field+" ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A round of several nodes never takes a large part of the TTL; one node is waited for while
// the lease that it grants has some time left (rule 18).
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
		if got := cfg.roundLimit(c.nodes, c.ttl); got != c.want {
			t.Errorf("a round of %d nodes for a TTL of %s may take %s, want %s", c.nodes, c.ttl, got, c.want)
		}
	}
}
