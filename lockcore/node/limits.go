package node

import "time"

// The limits that every node keeps. They are stated here and nowhere else: the
// replica uses them, redisnode hands them to its scripts, and nodetest tests against
// them. So a change of one is a change of this file.
const (
	// MaxShown is the largest number of tickets that a read lists.
	MaxShown = 100
	// MaxAttempts is the largest number of acquisition attempts that are noted with
	// a lock. No retraction deletes a lock that more of them found.
	MaxAttempts = 8
	// TicketTTL is how long a ticket stays in a queue after it was last enqueued. It
	// is longer than any request may wait (lockcore.MaxWait), so it only ends a
	// ticket that its server forgot to dequeue.
	TicketTTL = 11 * time.Minute
	// EnqueuedTTL is how long a server counts as alive after it enqueued a ticket
	// without having sent a heartbeat.
	EnqueuedTTL = 3 * time.Second
	// MaxTokensAhead is how far a token may be above what a node knows, and above
	// its clock, before the node refuses it (Reachable): the tokens of a minute.
	MaxTokensAhead = 60_000_000
)
