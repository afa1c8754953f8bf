package node

// Outcome is the result of an Op on a node, without details.
type Outcome uint8

// The outcomes.
const (
	// Failed is not a response. Err says why, and Sent whether the operation may have taken
	// effect, or may take effect later.
	Failed Outcome = iota
	// Granted. After an acquire or extend, the owner has the lock. After a confirm, the counter is at least
	// the token. After a release or retract, the owner's lock is deleted. After a break, the lock of a lease
	// up to the token is deleted. A read found the resource locked. An enqueue, dequeue, forget or heartbeat
	// was executed.
	Granted
	// Held: an acquire found the lock of another lease.
	Held
	// NotHeld: a confirm, extend or release found that the lock does not belong to this lease. A retract or
	// break deleted no lock. A read found no lock.
	NotHeld
	// Queued: an acquire found no lock, but a living ticket is before it in the queue.
	// The node has notified the first ticket's server again.
	Queued
	// OtherResource: an acquire's Owner is in use with another Scope.
	OtherResource
	// StaleEpoch: the node is in a larger epoch than the caller, given in Reply.Epoch.
	StaleEpoch
	// NotAdmitted: the node may not vote (rule 6), or its epoch is smaller than the caller's, or the TTL is
	// above the longest one recorded. Reply.Epoch has the node's epoch.
	NotAdmitted
	// Exhausted: an acquire found the counter at fencing.MaxToken.
	Exhausted
	// Outcomes is the number of outcomes. When you add one, add a row to the table.
	Outcomes int = iota
)

// outcomes is the table of all outcomes. lockcore/redlock/explain.go decides whether a request tries again
// after one; by default it does.
var outcomes = [Outcomes]struct {
	name   string
	metric string // the label of a vote in fencelock_node_votes_total
	reason string // why the node's vote counted or not; for Failed the error says it
	votes  bool   // acquire: the node voted, for or against
	done   bool   // the node is admitted and executed the operation
}{
	Failed:        {name: "failed", metric: "failed"},
	Granted:       {name: "granted", metric: "granted", reason: "granted", votes: true, done: true},
	Held:          {name: "held", metric: "held", reason: "held by another lease", votes: true},
	NotHeld:       {name: "not held", metric: "not_held", reason: "not held", done: true},
	Queued:        {name: "queued", metric: "queued", reason: "others are first in the queue", votes: true},
	OtherResource: {name: "other resource", metric: "idempotency_mismatch", reason: "the idempotency key is used for another resource"},
	StaleEpoch:    {name: "stale epoch", metric: "stale_epoch", reason: "the cluster's epoch was changing"},
	NotAdmitted:   {name: "not admitted", metric: "not_admitted", reason: "not admitted"},
	Exhausted:     {name: "exhausted", metric: "tokens_exhausted", reason: "its counter has reached the largest token"},
}

func (o Outcome) String() string { return outcomes[o].name }

// Metric is the outcome's label in metrics.
func (o Outcome) Metric() string { return outcomes[o].metric }

// Reason explains why a vote counted or did not. It is "" for Failed, whose Reply has an error.
func (o Outcome) Reason() string { return outcomes[o].reason }

// Votes reports whether an acquire with this outcome got a vote, for or against it.
func (o Outcome) Votes() bool { return outcomes[o].votes }

// Done reports whether this outcome means that the node is admitted and executed the operation.
func (o Outcome) Done() bool { return outcomes[o].done }
