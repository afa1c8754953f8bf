package compose

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore/keyring"
)

// A resource that is released early stays locked until its minimum hold is over, and not much longer. A lease id has
// the time of the grant without its fraction of a millisecond, and nodes count in milliseconds.
func TestAMinimumHoldIsNotAFractionTooShort(t *testing.T) {
	const minHold = 50 * time.Millisecond
	for _, before := range []time.Duration{0, 300 * time.Microsecond, 999 * time.Microsecond} {
		for _, held := range []time.Duration{0, 200 * time.Microsecond, 20*time.Millisecond + 700*time.Microsecond, 49*time.Millisecond + 900*time.Microsecond, minHold, time.Second} {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(before)
				granted := time.Now()
				id := keyring.LeaseID{Terms: keyring.Terms{MinHold: minHold}}
				id.Acquired = time.UnixMilli(granted.UnixMilli())
				time.Sleep(held)
				kept := keepTaken(id)
				over := time.Now().Add(kept).Sub(granted.Add(minHold))
				if over < 0 || kept > 0 && over > 3*time.Millisecond || kept%time.Millisecond != 0 || kept > minHold {
					t.Errorf("granted %s after a millisecond, released after %s: kept for %s, %s after the minimum hold", before, held, kept, over)
				}
			})
		}
	}
}
