package demo

import "time"

// recorder collects a round's events and shows them as they come.
type recorder struct {
	show  *printer
	begun time.Time
	round Round
	ends  time.Time // of A's first lease
}

// add records an event.
func (r *recorder) add(e Event) {
	// What came out of another process has no monotonic clock.
	e.At = max(e.Time.Round(0).Sub(r.begun.Round(0)), 0)
	if e.Kind == Acquired && r.ends.IsZero() {
		r.ends = e.Time.Add(e.Left)
		r.round.Tokens = styleFor(e.Token)
	}
	r.round.Events = append(r.round.Events, e)
	r.show.event(r.round, e)
}

// leaseEnd is when A's lease ends, or now if it has none yet.
func (r *recorder) leaseEnd() time.Time {
	if r.ends.IsZero() {
		return time.Now()
	}
	return r.ends
}
