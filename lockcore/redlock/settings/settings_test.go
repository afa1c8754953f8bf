package settings

import (
	"strings"
	"testing"
	"time"
)

func TestConfigDefaultsAreValid(t *testing.T) {
	for _, maxTTL := range []time.Duration{0, 500 * time.Millisecond, time.Second, 2 * time.Hour} {
		if err := (Config{MaxTTL: maxTTL}).WithDefaults().Validate(); err != nil {
			t.Errorf("with MaxTTL %s: %v", maxTTL, err)
		}
	}
}

func TestConfigValidationNamesTheField(t *testing.T) {
	for field, cfg := range map[string]Config{
		"MaxHold":       {MaxHold: time.Second},
		"NodeTimeout":   {MaxTTL: time.Second, NodeTimeout: 501 * time.Millisecond},
		"MaxInFlight":   {MaxInFlight: -1},
		"WatchInterval": {WatchInterval: time.Microsecond},
		"Recovery":      {Recovery: "perhaps"},
	} {
		if err := cfg.WithDefaults().Validate(); err == nil || !strings.HasPrefix(err.Error(), field+" ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
