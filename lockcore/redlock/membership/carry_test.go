package membership

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// A rejoining node takes over a lock for the time that is left of it on the readers, and for its TTL at most (rule
// 21), because a reader's clock may have been set back.
func TestCarriedLockLastsNoLongerThanItsTTL(t *testing.T) {
	const ttl, age, quorumReads = 245 * time.Millisecond, time.Millisecond, 2
	lock := func(remaining, ttl time.Duration) survey {
		return survey{"r": {Resource: "r", Owner: "L1", Grant: 7, Remaining: remaining, TTL: ttl}}
	}
	for name, c := range map[string]struct {
		surveys []survey
		want    time.Duration // 0: no lock
	}{
		"both readers' clocks run on":             {[]survey{lock(131*time.Millisecond, ttl), lock(130*time.Millisecond, ttl)}, 130 * time.Millisecond},
		"the first reader's was set back by 27 s": {[]survey{lock(27097*time.Millisecond, ttl), lock(131*time.Millisecond, ttl)}, ttl - age},
		"the last reader's was":                   {[]survey{lock(131*time.Millisecond, ttl), lock(27097*time.Millisecond, ttl)}, ttl - age},
		"an extend reached one of them":           {[]survey{lock(131*time.Millisecond, ttl), lock(9*time.Second, 10*time.Second)}, 9*time.Second - age},
		"one reader has it":                       {[]survey{lock(131*time.Millisecond, ttl), {}}, 0},
		"its time passes on the way":              {[]survey{lock(age, ttl), lock(age, ttl)}, 0},
	} {
		got := carry("r", c.surveys, quorumReads, age, 9)
		want := node.CarriedLock{Resource: "r", Counter: 9}
		if c.want > 0 {
			want.Owner, want.Grant, want.Remaining, want.TTL = "L1", 9, c.want, c.surveys[1]["r"].TTL
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}
