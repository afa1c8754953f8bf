package lockcore

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestLimitsName(t *testing.T) {
	if err := (Limits{}).WithDefaults().Validate(); err != nil {
		t.Error(err)
	}
	for field, limits := range map[string]Limits{
		"MinTTL":     {MinTTL: MinTTL - 1},
		"MaxTTL":     {MaxTTL: MinTTL - 1},
		"DefaultTTL": {DefaultTTL: time.Hour},
	} {
		if err := limits.WithDefaults().Validate(); err == nil || !strings.HasPrefix(err.Error(), field+" ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestCheckAcquire(t *testing.T) {
	limits := Limits{}.WithDefaults()
	good := AcquireRequest{Resource: "r", TTL: time.Second + time.Microsecond, Holder: "h"}
	if err := limits.Check(&good); err != nil || good.TTL != time.Second {
		t.Errorf("a sound request: %v, TTL %s", err, good.TTL)
	}
	byDefault := AcquireRequest{Resource: "r"}
	if err := limits.Check(&byDefault); err != nil || byDefault.TTL != limits.DefaultTTL {
		t.Errorf("a request without TTL: %v, %s", err, byDefault.TTL)
	}
	for field, req := range map[string]AcquireRequest{
		"resource":        {},
		"ttl_ms":          {Resource: "r", TTL: time.Millisecond},
		"wait_ms":         {Resource: "r", Wait: -1},
		"holder":          {Resource: "r", Holder: "a\x1fb"},
		"metadata":        {Resource: "r", Metadata: json.RawMessage(strings.Repeat(" ", MaxMetadataBytes+1))},
		"Idempotency-Key": {Resource: "r", IdempotencyKey: strings.Repeat("k", MaxIdempotencyKey+1)},
	} {
		var bad *FieldError
		if err := limits.Check(&req); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A service may have a longer shortest TTL than the API's, and says why.
func TestTheShortestTTLOfAStore(t *testing.T) {
	limits := Limits{MinTTL: 250 * time.Millisecond}.WithDefaults()
	for ttl, says := range map[time.Duration]string{
		249 * time.Millisecond: "must be a whole number from 250 to 60000: the store",
		250 * time.Millisecond: "",
		time.Hour:              "must be a whole number from 250 to 60000",
		0:                      "",
	} {
		_, err := limits.CheckTTL(ttl)
		if said := fmt.Sprint(err); (err != nil) != (says != "") || !strings.Contains(said, says) {
			t.Errorf("a TTL of %s: %v", ttl, err)
		}
	}
	limits.DefaultTTL = 200 * time.Millisecond
	if err := limits.Validate(); err == nil || !strings.Contains(err.Error(), "DefaultTTL is 200ms: 250ms to MaxTTL") {
		t.Errorf("%v", err)
	}
}
