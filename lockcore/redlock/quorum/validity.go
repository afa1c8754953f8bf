package quorum

import (
	"slices"
	"time"
)

// drift is the allowance for clocks that do not run at quite the same rate:
// 1 % of the TTL and 2 ms for the nodes' expiry precision (rule 17; the
// Redlock text, "Safety arguments").
func Drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// validity is what is left of a lease whose quorum of locks last for another
// remaining, elapsed after the first request was sent.
func Validity(remaining, ttl, elapsed time.Duration) time.Duration {
	return remaining - elapsed - Drift(ttl)
}

// quorumth returns how long at least quorum of the durations last: the
// quorum-th largest. 0 when there are fewer, or none was asked for. It reorders
// its argument.
func KthLargest(remaining []time.Duration, quorum int) time.Duration {
	if quorum < 1 || len(remaining) < quorum {
		return 0
	}
	slices.Sort(remaining)
	return remaining[len(remaining)-quorum]
}
