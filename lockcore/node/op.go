package node

import (
	"errors"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// OpKind says what an Op does.
type OpKind uint8

// The operations.
const (
	OpAcquire      OpKind = iota + 1 // grants a free lock
	OpConfirm                        // raises the lock's counter and grant to the token
	OpExtend                         // gives the lock a later expiry
	OpRelease                        // ends a lease for good
	OpRetract                        // retracts the vote of one acquisition attempt
	OpRead                           // reports the lock and its queue; changes nothing
	OpEnqueue                        // puts a ticket in the queue without asking for the lock
	OpDequeue                        // removes a ticket from the queue
	OpHeartbeat                      // keeps all tickets of Ticket.Server alive for another TTL
	OpReleaseAfter                   // ends a lease for good, and keeps its resource locked for TTL
	OpBreak                          // ends for good every lease up to a token, whoever's it is
	OpForget                         // forgets the Arrival of a keyed ticket that was dequeued
)

// Ticket is a place in the queue for a resource. Tickets are ordered by Arrival, then
// by ID. A ticket is alive as long as its server is: until the TTL of the server's
// last heartbeat has passed, or EnqueuedTTL after an enqueue.
type Ticket struct {
	ID      string // random; "" is no ticket. See Op.Validate
	Server  string // the server to notify when the ticket's place is first. See Op.Validate
	Arrival int64  // microseconds since 1970, on the server's wall clock
	Holder  string // the waiting client's label; public, any text
	// Keyed: the ID is made of an idempotency key, so that the retry of a request that
	// waits has the same one, through whichever server. Until TicketTTL after the last
	// enqueue the node remembers the earliest Arrival of the ID. A ticket of the ID that
	// is enqueued gets this Arrival, and takes the place of the one before. A grant to
	// the ticket, and a dequeue of a Keyed ticket, forget it; a request that ends
	// without a grant dequeues its ticket without Keyed. A forget of the ticket that last
	// had the place forgets it, too; it leaves that of a ticket of another Server or Holder,
	// since the request has come again there.
	//
	// A ticket that lost its place in the queue to another one of its ID is remembered until
	// it is dequeued: its request still waits. A dequeue of a Keyed ticket notifies the servers
	// of all others, so that their requests find the lease.
	Keyed bool
}

// Before reports whether t comes before the other in a queue.
func (t Ticket) Before(other Ticket) bool {
	return t.Arrival < other.Arrival || t.Arrival == other.Arrival && t.ID < other.ID
}

// Op is one operation on one resource. The same Op goes to every node of a round.
// Each kind uses these fields and no others:
//
//	Acquire       Resource, Owner, TTL, Meta, Attempt, Scope, Ticket; Epoch, Map
//	Confirm       Resource, Owner, Token, Attempt; Epoch, Map
//	Extend        Resource, Owner, Token, TTL, Attempt; Epoch, Map
//	Release       Resource, Owner, Token; Epoch, Map
//	ReleaseAfter  Resource, Owner, Token, TTL; Epoch, Map
//	Break         Resource, Token; Epoch, Map
//	Retract       Resource, Owner, Attempt, Above
//	Read          Resource; Map
//	Enqueue       Resource, Ticket; Epoch, Map
//	Dequeue       Resource, Ticket
//	Forget        Resource, Ticket
//	Heartbeat     Ticket.Server, TTL
//
// An operation that lists the Epoch is refused with StaleEpoch or NotAdmitted unless
// the node is admitted in that very epoch, and one that lists the Map with NotAdmitted
// unless the node has the map of that name. Read and Heartbeat need a node that is
// admitted in any epoch. Retract, Dequeue and Forget are done on every node, since
// removing a vote or a ticket is always sound; so are Release, ReleaseAfter and Break, unless they are
// answered StaleEpoch. Where they are answered NotAdmitted they leave the counters alone.
type Op struct {
	Kind     OpKind
	Epoch    Epoch  // the epoch in which the caller counts votes
	Map      string // the name of the map by which the caller counts them (rule 30)
	Resource string // any text but ""
	Owner    string // the secret ownership value of the lease; see Validate
	// Token is the fencing token of the lease. A confirm, an extend and a release of
	// a lease whose lock records a larger grant find that the lock is not theirs; for
	// a release this holds only under an idempotency key, where the next lease may
	// have the same Owner.
	//
	// A release also takes the effective counter past Token where the lock is the
	// owner's, absent or another's, so that a late extend cannot create the lock again.
	//
	// So does an extend that another's lock refuses: that lock may go, and the node must not
	// create this one again then.
	//
	// A break takes it past Token as a release does, and deletes the lock of whichever owner if its grant is at
	// most Token. It leaves a lock with a larger grant alone: that is a later lease's.
	Token fencing.Token
	// Above protects a lease that counts on the lock: a retract leaves a lock whose
	// grant is at most Above. 0 retracts whatever the grant.
	Above fencing.Token
	// TTL is a whole number of milliseconds, at least 1 and at most the longest TTL
	// in the node's admission record; an acquire or extend with a longer one is
	// answered NotAdmitted. A release-after keeps the resource locked for at most this,
	// from 0 up, and never for longer than the lock had left.
	TTL  time.Duration
	Meta string // public metadata, kept with the lock; any text
	// Attempt names one of several acquisitions that share an Owner, which happens
	// under an idempotency key only. "" is an acquisition without a key.
	//
	// An acquire notes the Attempt with the lock that it creates or finds. A retract
	// removes its Attempt from that note, and deletes the lock with the last one, so
	// that a failed attempt never removes a vote that another attempt may have
	// counted. Once more than MaxAttempts were noted, no retract deletes the lock. A
	// confirm is refused where a later Attempt has found the lock; one without an Attempt
	// is not. An extend notes its Attempt, too; one without, of a lease that was given to
	// its caller, leaves the lock to no retract. A retract without an Attempt deletes a
	// lock that was created without one.
	Attempt string
	// Scope is what the idempotency key is used for; any text. The node keeps it with
	// the Owner while the lock lives, and refuses an acquire of the same Owner with
	// another Scope (OtherResource). Only with an Attempt.
	Scope string
	// Ticket makes an acquire wait in the queue: the node enqueues the ticket if it
	// does not grant, and dequeues it if it does. An acquire without a ticket is not
	// granted while a living ticket waits.
	//
	// A release may have the Server alone: its first waiter asks for the lock right
	// behind the release, so the node does not wake that server.
	Ticket Ticket
	// Deadline is when the caller stops waiting: a node that has not sent the
	// operation by then does not send it. The zero time is no deadline.
	Deadline time.Time
	// Patient says that the operation can wait: a node may keep it back for a moment, at
	// most 2 ms, until it has others to do with it.
	Patient bool
}

// Validate reports why a node must refuse the operation unsent: the Owner or the
// Ticket that its kind needs is missing, or the Owner, the Attempt or the Ticket's ID
// or Server has a character other than letters, digits, '-' and '_'.
//
// A node stores these words beside the texts of callers, so no word may contain a
// separator. The texts (Resource, Meta, Scope and the Ticket's Holder) may hold
// anything. What a node answers with an outcome is not checked here.
func (op *Op) Validate() error {
	missing := op.Ticket.ID != "" && op.Ticket.Server == ""
	switch op.Kind {
	case OpAcquire, OpConfirm, OpExtend, OpRelease, OpReleaseAfter, OpRetract:
		missing = missing || op.Owner == ""
	case OpEnqueue, OpDequeue, OpForget:
		missing = missing || op.Ticket.ID == ""
	case OpHeartbeat:
		missing = op.Ticket.Server == ""
	}
	if missing {
		return errIncomplete
	}
	for _, word := range [...]string{op.Owner, op.Attempt, op.Ticket.ID, op.Ticket.Server, op.Map} {
		for i := range len(word) {
			if !inWord[word[i]] {
				return errNotAWord
			}
		}
	}
	return nil
}

// Mapped reports whether the operation's kind lists the Map.
func (op *Op) Mapped() bool {
	switch op.Kind {
	case OpRetract, OpDequeue, OpForget, OpHeartbeat:
		return false
	}
	return true
}

// InEpoch reports whether the operation's kind lists the Epoch.
func (op *Op) InEpoch() bool { return op.Mapped() && op.Kind != OpRead }

// inWord is a table, since every node checks every operation.
var inWord = func() (in [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") {
		in[c] = true
	}
	return in
}()

var (
	errIncomplete = errors.New("the operation has no owner or no ticket, and its kind needs one")
	errNotAWord   = errors.New("an owner, attempt or ticket may have letters, digits, '-' and '_' only")
)

// NoLease is the owner of the lock that a release-after leaves behind for this owner. No
// lease has this value, so no client confirms or extends the lock.
func NoLease(owner string) string { return "-" + owner[:len(owner)-1] }

// Reply is a node's answer to an Op. Each outcome sets these fields and no others;
// numbers are of the lock on this node, at the moment of the operation:
//
//	Granted  acquire            Grant, Remaining; with Existing also TTL, Meta
//	         confirm            Grant (the token), Remaining
//	         extend             Grant, Remaining, Meta; or Recreated, Grant, Remaining
//	         release, retract   Grant; a release-after also Remaining
//	         break              Grant
//	         read               Grant, Remaining, TTL, Owner, Meta, Waiting, Queue
//	         heartbeat          Existing
//	Held     acquire            Grant, Remaining, TTL, Owner, Meta, Waiting
//	NotHeld  read               Waiting, Queue
//	StaleEpoch, NotAdmitted     Epoch
//	Failed                      Err, Sent
type Reply struct {
	Outcome   Outcome
	Grant     fencing.Token // the grant that the lock records
	Remaining time.Duration // until the lock expires, whole milliseconds; at least 0
	TTL       time.Duration // the TTL that the lock was last given
	Existing  bool          // acquire: the owner had the lock already; heartbeat: the server was alive
	Recreated bool          // extend: there was no lock, and it was created again (rule 5)
	Owner     string        // of the lease that has the lock; secret
	Meta      string        // the lock's metadata; "" if it was recreated
	Waiting   int           // tickets in the queue, those of dead servers included
	Queue     []Ticket      // the first of them, in order, at most MaxShown
	Epoch     Epoch         // the node's own; 0 if it never had one
	Err       error         // why there is no response
	Sent      bool          // the operation may have taken effect
}
