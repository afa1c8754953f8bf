package quorum

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

func TestValidity(t *testing.T) {
	const ms = time.Millisecond
	cases := []struct {
		name                    string
		remaining, ttl, elapsed time.Duration
		want                    time.Duration
	}{
		{"a fresh lease", 10_000 * ms, 10_000 * ms, 5 * ms, 9_893 * ms},
		{"a lease that was found", 4_000 * ms, 10_000 * ms, 5 * ms, 3_893 * ms},
		{"nothing left", 100 * ms, 100 * ms, 97 * ms, 0},
		{"less than nothing", 100 * ms, 100 * ms, 200 * ms, -103 * ms},
	}
	for _, c := range cases {
		if got := Validity(c.remaining, c.ttl, c.elapsed); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// The drift allowance is the one in GUARANTEES: 1 % and 2 ms.
func TestDrift(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		lockcore.MinTTL:  3 * time.Millisecond,
		10 * time.Second: 102 * time.Millisecond,
		time.Minute:      602 * time.Millisecond,
	} {
		if got := Drift(ttl); got != want {
			t.Errorf("drift of %s is %s, want %s", ttl, got, want)
		}
	}
}

func TestKthLargest(t *testing.T) {
	cases := []struct {
		remaining []time.Duration
		quorum    int
		want      time.Duration
	}{
		{[]time.Duration{5, 9, 7}, 2, 7},
		{[]time.Duration{5, 9}, 2, 5},
		{[]time.Duration{5}, 2, 0},
		{[]time.Duration{3, 1, 5, 2, 4}, 3, 3},
		{nil, 1, 0}, // no quorum answered
		{[]time.Duration{8}, 1, 8},
	}
	for _, c := range cases {
		if got := KthLargest(c.remaining, c.quorum); got != c.want {
			t.Errorf("the %d-th of %v is %d, want %d", c.quorum, c.remaining, got, c.want)
		}
	}
}
