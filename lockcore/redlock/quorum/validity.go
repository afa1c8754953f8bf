package quorum

import (
	"slices"
	"time"
)

// Drift is the allowance for clocks that do not run at quite the same rate:
// 1 % of the TTL, and 2 ms for the nodes' expiry precision (rule 17; the
// Redlock text, "Safety arguments").
func Drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// Validity is what is left of a lease, elapsed after its first request was sent. A
// quorum of its locks had at least remaining left when they were granted.
func Validity(remaining, ttl, elapsed time.Duration) time.Duration {
	return remaining - elapsed - Drift(ttl)
}

// KthLargest is the k-th largest of the durations: how long k of them last at least.
// It is 0 when there are fewer, or k is below 1. It sorts its argument.
func KthLargest(durations []time.Duration, k int) time.Duration {
	if k < 1 || len(durations) < k {
		return 0
	}
	slices.Sort(durations)
	return durations[len(durations)-k]
}
