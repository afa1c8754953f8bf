package node

import "time"

// The limits that every node applies. They are defined only here: the replica uses them, redisnode passes them
// to its scripts, and nodetest tests against them. To change a limit, change only this file.
const (
	// MaxShown is the maximum number of tickets that a read lists.
	MaxShown = 100
	// MaxAttempts is the maximum number of acquisition attempts that are noted with a lock. If more attempts
	// found the lock, no retraction deletes it.
	MaxAttempts = 8
	// TicketTTL is how long a ticket stays in a queue after it was last enqueued. It is longer than any
	// request may wait (lockcore.MaxWait), so it only ends tickets that their server forgot to dequeue.
	TicketTTL = 11 * time.Minute
	// EnqueuedTTL is how long a server counts as alive after it enqueued a ticket without having sent a
	// heartbeat. If a server enqueues many tickets, this time restarts only when EnqueuedAgain of it has
	// passed.
	EnqueuedTTL   = 3 * time.Second
	EnqueuedAgain = 250 * time.Millisecond
	// MaxTokensAhead is how far a token may be above both the node's high-water mark and its clock before the
	// node refuses it (Reachable): the tokens of a minute.
	MaxTokensAhead = 60_000_000
)
