package redlock

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

func TestConfigDefaultsAreValid(t *testing.T) {
	if err := (Config{}).withDefaults().validate(); err != nil {
		t.Error(err)
	}
	for _, maxTTL := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Hour} {
		if err := (Config{MaxTTL: maxTTL}).withDefaults().validate(); err != nil {
			t.Errorf("with MaxTTL %s alone: %v", maxTTL, err)
		}
	}
}

func TestConfigValidationNamesTheField(t *testing.T) {
	for field, cfg := range map[string]Config{
		"MinTTL":        {MinTTL: lockcore.MinTTL - 1},
		"MaxTTL":        {MaxTTL: lockcore.MinTTL - 1},
		"DefaultTTL":    {DefaultTTL: time.Hour},
		"MaxHold":       {MaxHold: time.Second},
		"NodeTimeout":   {MaxTTL: time.Second, NodeTimeout: 501 * time.Millisecond},
		"MaxInFlight":   {MaxInFlight: -1},
		"MaxWaiters":    {MaxWaiters: -1},
		"WatchInterval": {WatchInterval: time.Microsecond},
		"Recovery":      {Recovery: "perhaps"},
	} {
		if err := cfg.withDefaults().validate(); err == nil || !strings.HasPrefix(err.Error(), field+" ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestNewRefusesNodeSets(t *testing.T) {
	for _, n := range []int{0, 2, 4, 6, 8, 9} {
		if _, err := New(Config{}, fakes(n)); err == nil {
			t.Errorf("%d nodes are taken", n)
		}
	}
	twice := fakes(3)
	twice[2] = twice[0]
	if _, err := New(Config{}, twice); err == nil || !strings.Contains(err.Error(), "node1") {
		t.Errorf("a node listed twice: %v", err)
	}
	if _, err := New(Config{MaxTTL: 1}, fakes(3)); err == nil {
		t.Error("a configuration that is not valid is taken")
	}
}

func TestCheckAcquire(t *testing.T) {
	cfg := Config{}.withDefaults()
	good := lockcore.AcquireRequest{Resource: "r", TTL: time.Second + time.Microsecond, Holder: "h"}
	if err := cfg.checkAcquire(&good); err != nil || good.TTL != time.Second {
		t.Errorf("a sound request: %v, TTL %s", err, good.TTL)
	}
	byDefault := lockcore.AcquireRequest{Resource: "r"}
	if err := cfg.checkAcquire(&byDefault); err != nil || byDefault.TTL != cfg.DefaultTTL {
		t.Errorf("a request without TTL: %v, %s", err, byDefault.TTL)
	}
	for field, req := range map[string]lockcore.AcquireRequest{
		"resource":        {},
		"ttl_ms":          {Resource: "r", TTL: time.Millisecond},
		"wait_ms":         {Resource: "r", Wait: -1},
		"holder":          {Resource: "r", Holder: "a\x1fb"},
		"metadata":        {Resource: "r", Metadata: json.RawMessage(strings.Repeat(" ", lockcore.MaxMetadataBytes+1))},
		"Idempotency-Key": {Resource: "r", IdempotencyKey: strings.Repeat("k", lockcore.MaxIdempotencyKey+1)},
	} {
		var bad *lockcore.FieldError
		if err := cfg.checkAcquire(&req); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestValidateResource(t *testing.T) {
	for _, good := range []string{"a", "orders/17", "ü 漢 🔒", strings.Repeat("x", lockcore.MaxResourceBytes)} {
		if err := lockcore.ValidateResource(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "a\x00", "a\n", "a\u0085b", "\xff", strings.Repeat("x", lockcore.MaxResourceBytes+1)} {
		if err := lockcore.ValidateResource(bad); err == nil {
			t.Errorf("%q is taken", bad)
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

// A service may have a longer shortest TTL than the API's, and says why.
func TestTheShortestTTLOfAStore(t *testing.T) {
	cfg := Config{MinTTL: 250 * time.Millisecond}.withDefaults()
	for ttl, says := range map[time.Duration]string{
		249 * time.Millisecond: "must be 250 to 60000: the store",
		250 * time.Millisecond: "",
		time.Hour:              "must be 250 to 60000",
		0:                      "",
	} {
		_, err := cfg.checkTTL(ttl)
		if said := fmt.Sprint(err); (err != nil) != (says != "") || !strings.Contains(said, says) {
			t.Errorf("a TTL of %s: %v", ttl, err)
		}
	}
	cfg.DefaultTTL = 200 * time.Millisecond
	if err := cfg.validate(); err == nil || !strings.Contains(err.Error(), "DefaultTTL is 200ms: 250ms to MaxTTL") {
		t.Errorf("%v", err)
	}
}
