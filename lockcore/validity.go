package lockcore

import (
	"slices"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// drift is the allowance for clocks that do not run at quite the same rate:
// 1 % of the TTL and 2 ms for the nodes' expiry precision (rule 17; the
// Redlock text, "Safety arguments").
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// validity is what is left of a lease whose quorum of locks last for another
// remaining, elapsed after the first request was sent.
func validity(remaining, ttl, elapsed time.Duration) time.Duration {
	return remaining - elapsed - drift(ttl)
}

// quorumth returns how long at least quorum of the durations last: the
// quorum-th largest. 0 when there are fewer, or none was asked for. It reorders
// its argument.
func quorumth(remaining []time.Duration, quorum int) time.Duration {
	if quorum < 1 || len(remaining) < quorum {
		return 0
	}
	slices.Sort(remaining)
	return remaining[len(remaining)-quorum]
}

// roundLimit is how long one round waits for its nodes (rule 18).
func (c Config) roundLimit(ttl time.Duration) time.Duration {
	return min(c.NodeTimeout, ttl/10)
}

// FloorAt is where the tokens of a cluster that is founded now begin at least
// (rule 12): the Unix time in microseconds. A lease uses up two numbers (its
// grant, and one more when it is given back), so the clock stays ahead of any
// resource that is taken fewer than half a million times a second. Below 2^53
// until the year 2255.
func FloorAt(now time.Time) fencing.Token { return fencing.Token(now.UnixMicro()) }

// Reachable reports whether a node whose largest counter or token is high, and
// whose clock shows now, may believe that its cluster has come to this token
// (rule 23): at most a minute's worth above both. A node refuses any other that a
// confirm, an extend or a release carries, with ErrUnreachableToken.
func Reachable(token, high fencing.Token, now time.Time) bool {
	const minute = 60_000_000 // as FloorAt counts
	return token <= max(high, FloorAt(now))+minute
}

// Plausible refuses a number that no cluster of ours can have reached: far
// above where one founded now would begin. A broken node that names a larger
// one, or a guard in which somebody has claimed with one, must not drag every
// counter to the end of its range.
func Plausible(token fencing.Token, now time.Time) bool {
	const far = 1 << 51
	return token.Valid() && token <= FloorAt(now)+far
}
