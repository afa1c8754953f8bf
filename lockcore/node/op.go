package node

import (
	"errors"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// OpKind is the kind of an Op.
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
	OpBreak                          // ends for good every lease up to a token, of any owner
	OpForget                         // forgets the Arrival of a keyed ticket that was dequeued
)

// Ticket is a place in the queue for a resource. Tickets are ordered by Arrival, then by ID. A ticket is alive
// as long as its server is: until the TTL of the server's last heartbeat has passed, or EnqueuedTTL after an
// enqueue.
type Ticket struct {
	ID      string // random; "" means no ticket. See Op.Validate
	Server  string // the server to notify when the ticket's place is first. See Op.Validate
	Arrival int64  // microseconds since 1970, on the server's wall clock
	Holder  string // the waiting client's label; public, any text
	// Keyed means that the ID is derived from an idempotency key, so that the retry of a waiting request has
	// the same ID through any server. The node remembers the earliest Arrival of the ID until TicketTTL after
	// the last enqueue. A ticket with this ID that is enqueued later gets that Arrival, and replaces the
	// earlier ticket. The node forgets the Arrival after a grant to the ticket, or a dequeue of a Keyed
	// ticket. (A request that ends without a grant dequeues its ticket without Keyed.) A forget of the ticket
	// that last had the place also forgets the Arrival. It leaves the place of a ticket of another Server or
	// Holder, because the request was repeated there.
	//
	// A ticket that another ticket of its ID has replaced is remembered until it is dequeued, because its
	// request still waits. A dequeue of a Keyed ticket notifies the servers of all other such tickets, so that
	// their requests find the lease.
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
// The node refuses an operation that lists the Epoch with StaleEpoch or NotAdmitted, unless it is admitted in
// exactly that epoch. It refuses one that lists the Map with NotAdmitted, unless it has the map with that
// name. Read and Heartbeat need a node that is admitted in any epoch. Every node executes Retract, Dequeue and
// Forget, because removing a vote or a ticket is always safe. It also executes Release, ReleaseAfter and
// Break, unless it replies StaleEpoch. If it replies NotAdmitted, these leave the counters alone.
type Op struct {
	Kind     OpKind
	Epoch    Epoch  // the epoch in which the caller counts votes
	Map      string // name of the map by which the caller counts votes (rule 30)
	Resource string // any text but ""
	Owner    string // the secret ownership value of the lease; see Validate
	// Token is the fencing token of the lease. If the lock records a larger grant, a confirm or an extend
	// finds that the lock belongs to another lease. For a release this holds only under an idempotency key,
	// where the next lease may have the same Owner.
	//
	// A release also raises the effective counter above Token, whichever lock it finds or none, so that a late
	// extend cannot recreate the lock.
	//
	// An extend that finds another owner's lock does so, too: that lock may be removed, and the node must not
	// recreate this lease's lock then.
	//
	// A break raises the counter like a release. It deletes a lock of any owner if its grant is at most Token.
	// A lock with a larger grant belongs to a later lease and stays.
	Token fencing.Token
	// Above protects a lease that relies on the lock: a retract leaves a lock whose grant is at most Above.
	// With 0, a retract ignores the grant.
	Above fencing.Token
	// TTL is a whole number of milliseconds, at least 1 and at most the longest TTL in the node's admission
	// record. An acquire or extend with a longer TTL gets NotAdmitted. A release-after keeps the resource
	// locked for at most this long (0 is allowed), and never for longer than the lock had left.
	TTL  time.Duration
	Meta string // public metadata, kept with the lock; any text
	// Attempt names one of several acquisitions that share an Owner, which happens only under an idempotency
	// key. "" means an acquisition without a key.
	//
	// An acquire notes the Attempt with the lock that it creates or finds. A retract removes its Attempt from
	// that note, and deletes the lock with the last one, so that a failed attempt never removes a vote that
	// another attempt may have counted. After more than MaxAttempts were noted, no retract deletes the lock. A
	// confirm with an Attempt is refused if a later Attempt has found the lock. An extend also notes its
	// Attempt. An extend without one belongs to a lease that its caller has received; after it, no retract
	// deletes the lock. A retract without an Attempt deletes a lock that was created without one.
	Attempt string
	// Scope is what the idempotency key is used for; any text. The node keeps it with the Owner while the lock
	// exists, and refuses an acquire with the same Owner and another Scope (OtherResource). It is set only
	// together with an Attempt.
	Scope string
	// Ticket makes an acquire wait in the queue: the node enqueues the ticket if it
	// does not grant, and dequeues it if it does. An acquire without a ticket is not
	// granted while a living ticket waits.
	//
	// A release may set only the Server: that server's first waiter acquires the lock directly after the
	// release, so the node does not wake that server.
	Ticket Ticket
	// Deadline is when the caller stops waiting. A node does not send the operation after it. The zero time
	// means no deadline.
	Deadline time.Time
	// Patient says that the operation is not urgent: a node may delay it by up to 2 ms, to execute it together
	// with others.
	Patient bool
}

// Validate reports why a node must refuse the operation unsent. Either the Owner or the Ticket that its kind
// needs is missing, or the Owner, the Attempt, or the Ticket's ID or Server has a character other than
// letters, digits, '-' and '_'.
//
// A node stores these words beside the texts of callers, so no word may contain a separator. The texts
// (Resource, Meta, Scope and the Ticket's Holder) may hold anything. Validate does not check conditions for
// which a node's reply has an outcome.
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

// inWord is a table for speed, because every operation is checked.
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

// NoLease is the owner of the lock that a release-after of this owner leaves. No lease has this value, so no
// client can confirm or extend the lock.
func NoLease(owner string) string { return "-" + owner[:len(owner)-1] }

// Reply is a node's reply to an Op. Each outcome sets these fields and no others. The numbers describe the
// lock on this node at the moment of the operation:
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
	TTL       time.Duration // the last TTL given to the lock
	Existing  bool          // acquire: the owner already had the lock; heartbeat: the server was alive
	Recreated bool          // extend: there was no lock, and the extend created it again (rule 5)
	Owner     string        // of the lease that holds the lock; secret
	Meta      string        // the lock's metadata; "" if it was recreated
	Waiting   int           // number of tickets in the queue, including those of dead servers
	Queue     []Ticket      // the first of them, in order, at most MaxShown
	Epoch     Epoch         // the node's own; 0 if it never had one
	Err       error         // why there is no response
	Sent      bool          // the operation may have taken effect
}
