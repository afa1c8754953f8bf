package zkstore

import "time"

const (
	// slew is by how much clocks may run apart: 1 in 500, as rule 22 has it.
	slew = 500
	// maxStep is by how much the leader's clock may be off what this server expects before
	// that counts as a jump, in microseconds; as rule 22 has it.
	maxStep = 100_000
)

// clock is the leader's clock as far as this process knows it. All times are in
// microseconds; an offset is the leader's time less that of this process's monotonic
// clock, and lies between lo and hi.
//
// The time of the rows is the leader's, plus a correction that stands in the log: it
// makes up for jumps, so that the rows' time runs on as the servers' monotonic clocks
// do. None of these runs too fast; one that stood still while its machine slept makes
// rows stay longer, never go early.
type clock struct {
	base  time.Time
	known bool
	lo    int64
	hi    int64
	at    int64 // when they were right
	low   int64 // the latest lower bound given: time does not go back
	from  int64 // readings that were asked for before do not count
}

func newClock() clock { return clock{base: time.Now()} }

// mono is this process's clock.
func (c *clock) mono() int64 { return time.Since(c.base).Microseconds() }

// reading is what the leader's clock showed, in whole milliseconds, at some time between
// two of this process's.
type reading struct{ sent, received, shown int64 }

func (r reading) bounds() (lo, hi int64) {
	return r.shown - r.received, r.shown + 999 - r.sent
}

// bounds are those of the offset at a time.
func (c *clock) bounds(at int64) (lo, hi int64) {
	drift := (at-c.at)/slew + 1
	return c.lo - drift, c.hi + drift
}

// take learns from a reading. If that contradicts what is known, it is not learnt, and
// step is what has to be added to the leader's time.
func (c *clock) take(r reading) (step int64) {
	if r.sent < c.from {
		return 0
	}
	lo, hi := r.bounds()
	if c.known {
		wasLo, wasHi := c.bounds(r.received)
		if lo > wasHi+maxStep || hi < wasLo-maxStep {
			return wasLo - lo
		}
		if max(lo, wasLo) <= min(hi, wasHi) {
			lo, hi = max(lo, wasLo), min(hi, wasHi)
		}
	}
	c.lo, c.hi, c.at, c.known = lo, hi, r.received, true
	return 0
}

// now is the rows' time: at least low, and at most high.
func (c *clock) now(correction int64) (low, high int64) {
	mono := c.mono()
	lo, hi := c.bounds(mono)
	c.low = max(c.low, mono+lo+correction)
	return c.low, max(c.low, mono+hi+correction)
}

// forget is for a new correction: what is known belongs to the one before, and so may what
// was asked for and not answered yet.
func (c *clock) forget() { c.known, c.low, c.from = false, 0, c.mono() }

// assume takes a reading as if the leader's clock had shown so much more.
func (c *clock) assume(r reading, more int64) {
	lo, hi := r.bounds()
	c.lo, c.hi, c.at, c.known = lo+more, hi+more, r.received, true
}
