package client

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/lockcore"
)

// Where the server's message about a TTL names a field, the command's message names the flag, also if the store sets
// the minimum.
func TestTTLLimitsNameTheFlag(t *testing.T) {
	for least, wants := range map[time.Duration]string{
		lockcore.MinTTL:        "--ttl must be from 100ms to 1m0s, in whole milliseconds; the server's FENCELOCK_MAX_TTL sets the maximum",
		250 * time.Millisecond: "--ttl must be from 250ms to 1m0s, in whole milliseconds; the server's FENCELOCK_MAX_TTL sets the maximum, and the store ",
	} {
		_, err := lockcore.Limits{MinTTL: least}.WithDefaults().CheckTTL(time.Millisecond)
		var bad *lockcore.FieldError
		if !errors.As(err, &bad) || !strings.HasPrefix(fieldsAsFlags(bad.Error()), wants) {
			t.Errorf("%v gives %q, want %q", err, fieldsAsFlags(bad.Error()), wants)
		}
	}
}

// Messages of package client name its options; the commands replace these by their flags.
func TestOptionsAsFlags(t *testing.T) {
	_, err := unreachable(t).Acquire(t.Context(), "r", client.TTL(time.Millisecond), client.MinHold(time.Second))
	if err == nil {
		t.Fatal("it was sent")
	}
	if got, want := plain(err).Error(), "invalid request: --ttl 1ms must be 100ms to 24h0m0s, or 0 for the service's"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func unreachable(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New([]string{"http://127.0.0.1:9"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
