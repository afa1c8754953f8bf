package zkstore

import "testing"

// A reading that was asked for before a correction, and is answered after it, may be of
// before the jump.
func TestLateReadings(t *testing.T) {
	c := newClock()
	late := reading{sent: c.mono(), received: c.mono(), shown: 1_000_000}
	for c.mono() == late.sent { // its clock has ticked
	}
	c.forget()
	if step := c.take(late); step != 0 || c.known {
		t.Errorf("step %d, known: %t", step, c.known)
	}
	now := c.mono()
	if c.take(reading{sent: now, received: now, shown: 2_000_000}); !c.known {
		t.Error("a reading of after the correction does not count")
	}
}
