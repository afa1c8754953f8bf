package quorum

import (
	"slices"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// MaxNodes is the largest supported cluster.
const MaxNodes = 7

// Of returns the size of a quorum: floor(n/2)+1.
func Of(n int) int { return n/2 + 1 }

// Readers returns R, the smallest number of nodes that meets every quorum: n-m+1 (rule 7).
func Readers(n int) int { return n - Of(n) + 1 }

// Verdict is what a Tally decides.
type Verdict uint8

// The verdicts. Won and Lost are final.
const (
	Pending Verdict = iota
	Won
	Lost
)

func (v Verdict) String() string { return [...]string{"pending", "won", "lost"}[v] }

// Tally counts the votes of one acquisition (rules 1 and 18), and decides its verdict and its token.
//
// The token is the largest grant of the first quorum of grants. A node that granted less counts only
// after it has confirmed the token. A node that grants more than the token, after it was chosen, does not
// count, because rule 3 would refuse its confirm.
type Tally struct {
	n, quorum int
	votes     [MaxNodes]vote
	token     fencing.Token // 0 until a quorum has granted
	// existing says that this lease already had votes (a retry under an idempotency key). Then the Tally
	// prefers a token that a quorum shares, so that the retry finds the token of the response that was
	// lost.
	existing bool
}

type vote struct {
	state voteState
	grant fencing.Token
}

type voteState uint8

const (
	votePending  voteState = iota
	voteGranted            // the token is not chosen yet, or this node's grant is smaller
	voteCounts             // this node holds at least the token
	voteExcluded           // refused, failed, or granted above the token
)

// NewTally begins a count over n nodes, at most MaxNodes.
func NewTally(n int) Tally { return Tally{n: n, quorum: Of(n)} }

// Granted counts node i's grant. existing says that the lease had this vote before. Only a node's first
// grant counts.
func (t *Tally) Granted(i int, grant fencing.Token, existing bool) {
	if t.votes[i].state != votePending {
		return
	}
	t.existing = t.existing || existing
	t.votes[i] = vote{state: voteGranted, grant: grant}
	t.decide()
}

// Confirmed counts node i's confirmation of Token.
func (t *Tally) Confirmed(i int) {
	if t.votes[i].state == voteGranted && t.token != 0 {
		t.votes[i].state = voteCounts
	}
}

// Refused excludes node i, even after a grant.
func (t *Tally) Refused(i int) {
	t.votes[i].state = voteExcluded
	t.decide()
}

// Token returns the acquisition's token; 0 until a quorum has granted.
func (t *Tally) Token() fencing.Token { return t.token }

// Counts reports whether node i is known to hold at least the token.
func (t *Tally) Counts(i int) bool { return t.votes[i].state == voteCounts }

// MustConfirm reports whether node i granted less than the token.
func (t *Tally) MustConfirm(i int) bool {
	return t.token != 0 && t.votes[i].state == voteGranted
}

// Verdict returns what the votes decide so far.
func (t *Tally) Verdict() Verdict {
	switch {
	case t.token != 0 && t.count(voteCounts) >= t.quorum:
		return Won
	case t.n-t.count(voteExcluded) < t.quorum:
		return Lost
	}
	return Pending
}

// decide chooses the token as soon as that is possible, and compares every grant with it.
func (t *Tally) decide() {
	if t.token == 0 {
		t.token = t.choose()
	}
	if t.token == 0 {
		return
	}
	for i := range t.votes[:t.n] {
		v := &t.votes[i]
		switch {
		case v.state != voteGranted:
		case v.grant == t.token:
			v.state = voteCounts
		case v.grant > t.token:
			v.state = voteExcluded
		}
	}
}

// choose returns the token; 0 if more votes are needed.
func (t *Tally) choose() fencing.Token {
	if t.count(voteGranted) < t.quorum {
		return 0
	}
	largest := fencing.Token(0)
	for _, v := range t.votes[:t.n] {
		if v.state != voteGranted {
			continue
		}
		largest = max(largest, v.grant)
		if t.sharing(v.grant) >= t.quorum {
			return v.grant
		}
	}
	if t.existing && t.count(votePending) > 0 {
		return 0
	}
	return largest
}

func (t *Tally) sharing(grant fencing.Token) (n int) {
	for _, v := range t.votes[:t.n] {
		if v.state == voteGranted && v.grant == grant {
			n++
		}
	}
	return n
}

func (t *Tally) count(state voteState) (n int) {
	for _, v := range t.votes[:t.n] {
		if v.state == state {
			n++
		}
	}
	return n
}

// Drift returns the allowance for clocks that run at slightly different rates: 1 % of the TTL, plus 2 ms
// for the precision with which nodes expire locks (rule 17; the Redlock text, "Safety arguments").
func Drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// Validity returns how long a lease is still valid when elapsed has passed since its first request was
// sent. A quorum of its locks had at least remaining left when they were granted.
func Validity(remaining, ttl, elapsed time.Duration) time.Duration {
	return remaining - elapsed - Drift(ttl)
}

// KthLargest returns the k-th largest duration, so k of the durations are at least that long. It returns
// 0 if there are fewer than k, or if k is below 1. It sorts its argument.
func KthLargest(durations []time.Duration, k int) time.Duration {
	if k < 1 || len(durations) < k {
		return 0
	}
	slices.Sort(durations)
	return durations[len(durations)-k]
}
