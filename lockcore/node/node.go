package node

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// Node is one independent vote: a Redis master, the embedded file, a model in
// a test. Its operations are atomic on the node and pass the gate there (rule
// 6): they count only while the node is admitted under the caller's epoch.
//
// storage/redisnode and lockcore/replica are Nodes; lockcore/nodetest is the
// conformance suite that every one of them passes.
type Node interface {
	Voter
	Reader
	Admittee
	Waker
}

// Voter takes part in rounds.
type Voter interface {
	// Name tells the node to people and must be the same on every server:
	// host:port/db. It holds no secret.
	Name() string
	// Submit queues op and returns at once. Exactly one reply is delivered to
	// sink, under the given index, at any time after the call began and from
	// any goroutine. A node that cannot take the op now (queue full, known to
	// be down) delivers a failure. The op must not be changed any more.
	Submit(op *Op, index int, sink Sink)
}

// Sink takes the replies of a round. Deliver must not block.
type Sink interface {
	Deliver(index int, reply Reply)
}

// View numbers the cluster's configurations of admitted nodes. Every rejoin
// and every bootstrap makes a larger one (rule 9). Below 2^53.
type Epoch int64

// OpKind says what an Op does.
type OpKind uint8

// The operations. What each does on its node is in docs/PROTOCOL.md.
const (
	OpAcquire OpKind = iota + 1
	OpConfirm
	OpExtend
	OpRelease   // ends a lease for good
	OpRetract   // retracts the vote of one acquisition attempt
	OpRead      // changes nothing
	OpEnqueue   // puts a ticket in the queue without asking for the lock
	OpDequeue   // takes a ticket off the queue
	OpHeartbeat // keeps the tickets of Ticket.Server alive for another TTL
)

// MaxAttempts bounds the attempts that are noted with a lock.
const MaxAttempts = 8

// Ticket is a place in the line for a resource. Tickets are served in the order
// of Arrival, then ID. A ticket lives as long as its server keeps it alive.
type Ticket struct {
	ID      string // random; "" is no ticket. See Op.Validate
	Server  string // who is notified when its turn comes. See Op.Validate
	Arrival int64  // microseconds, the server's wall clock
	Holder  string // the label of who waits; public
}

// Before reports whether t comes before the other in a queue.
func (t Ticket) Before(other Ticket) bool {
	return t.Arrival < other.Arrival || t.Arrival == other.Arrival && t.ID < other.ID
}

// Op is one operation on one resource, the same for every node of a round. Each
// kind uses these fields and no others:
//
//	Acquire    Resource, Owner, TTL, Meta, Attempt, Scope, Ticket; View
//	Confirm    Resource, Owner, Token; View
//	Extend     Resource, Owner, Token, TTL; View
//	Release    Resource, Owner, Token
//	Retract    Resource, Owner, Attempt, Above
//	Read       Resource
//	Enqueue    Resource, Ticket; View
//	Dequeue    Resource, Ticket
//	Heartbeat  Ticket.Server, TTL
type Op struct {
	Kind     OpKind
	Epoch    Epoch  // refused unless it is the node's own
	Resource string // any text
	Owner    string // the secret ownership value, LeaseValueLen bytes; see Validate
	// Token is the lease's. After a release, wherever the lock is the owner's or
	// gone, the effective counter is above it, so that no late extend makes the
	// lock again. Under an idempotency key the next lease may have the same
	// owner, so there a release leaves a lock that was granted above the Token.
	Token fencing.Token
	// Above makes a retract leave a lock that was granted at most this: a lease of
	// that token counts on it. 0: whatever its grant.
	Above fencing.Token
	TTL   time.Duration // whole milliseconds
	Meta  string        // public metadata, kept with the lock, opaque to the node
	// Attempt is set where several acquisitions may share an owner (an
	// idempotency key), and names one of them. An acquire notes it with the
	// lock that it makes or finds, and the Scope with the owner, so that the
	// key cannot be used for two. A retract strikes it out, and deletes the lock
	// with the last: a failed attempt never takes away a vote that another one
	// may have counted. Of more than MaxAttempts none takes it away. A retract
	// without an Attempt retracts a lock that was made without one.
	Attempt string
	Scope   string // with Attempt: what the idempotency key is used for; any text
	// Ticket makes an acquire wait its turn: it is enqueued where it is not
	// granted, and dequeued where it is. An acquire without one never overtakes
	// the queue.
	Ticket Ticket
	// Deadline is when the round gives up: a node does not send the op later.
	Deadline time.Time
}

// Validate refuses an operation that a node must not be sent: without an Owner or a
// Ticket where its kind needs one, or with an Owner, an Attempt or a Ticket's ID or
// Server that is not made of letters, digits, '-' and '_'. Nodes keep these side by
// side with the texts of callers, so no separator may be in one. The callers' texts
// (Resource, Meta, Scope and the Ticket's Holder) may hold anything.
func (op *Op) Validate() error {
	missing := op.Ticket.ID != "" && op.Ticket.Server == ""
	switch op.Kind {
	case OpAcquire, OpConfirm, OpExtend, OpRelease, OpRetract:
		missing = missing || op.Owner == ""
	case OpEnqueue, OpDequeue:
		missing = missing || op.Ticket.ID == ""
	case OpHeartbeat:
		missing = op.Ticket.Server == ""
	}
	if missing {
		return errIncomplete
	}
	for _, word := range [...]string{op.Owner, op.Attempt, op.Ticket.ID, op.Ticket.Server} {
		for i := range len(word) {
			if !inWord(word[i]) {
				return errNotAWord
			}
		}
	}
	return nil
}

func inWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

var (
	errIncomplete = errors.New("an owner or ticket is missing")
	errNotAWord   = errors.New("an owner, attempt or ticket has a character that none can have")
)

// Outcome is what a node said to an Op.
type Outcome uint8

// The outcomes.
const (
	// Failed: no usable answer; Err says why, and Sent whether the operation
	// may have taken effect or may yet.
	Failed Outcome = iota
	// Granted: acquire and extend: the lock is the owner's; confirm: the
	// counter holds at least the token; release and retract: the lock was the
	// owner's and is gone; read: the resource is locked.
	Granted
	// Held: acquire: another lease has the lock.
	Held
	// NotHeld: confirm, extend, release: the lock is not this lease's; retract:
	// nothing of it was left to take away; read: there is no lock.
	NotHeld
	// Queued: acquire: the lock is free, but others are first in the queue; the
	// first of them has been told once more.
	Queued
	// OtherResource: acquire with Attempt: the owner is used in another Scope.
	OtherResource
	// StaleEpoch: the node is in a larger epoch, given in Reply.View.
	StaleEpoch
	// NotAdmitted: the gate is shut: the node may not vote (rule 6), or its own
	// epoch is behind the caller's.
	NotAdmitted
	// Exhausted: acquire: the counter has reached fencing.MaxToken.
	Exhausted
)

// Reply is a node's answer to an Op.
type Reply struct {
	Outcome   Outcome
	Grant     fencing.Token // Granted: this lease's grant; Held and read: the grant of the lease in the way
	Remaining time.Duration // what the node's clock leaves of the lock
	TTL       time.Duration // read: what the lock was last given
	Existing  bool          // acquire: this owner had the lock already; heartbeat: the server's tickets were alive
	Recreated bool          // extend: the lock had gone and was made again (rule 5)
	Owner     string        // Held, read: of the lease in the way; secret
	Meta      string        // Held, read, existing, extend: the lock's metadata
	Waiting   int           // Held, read: how many stand in the queue
	Queue     []Ticket      // read: the first of them, MaxShown at most
	Epoch     Epoch         // StaleEpoch, NotAdmitted: the node's own epoch, 0 without one
	Err       error         // Failed
	Sent      bool          // Failed: the operation may have taken effect
}

// MaxShown bounds the waiters that a read lists.
const MaxShown = 100

// Waker tells a server when its tickets' turn comes. A release of a lock that
// somebody waits for tells the first living ticket's server, and nobody else;
// what is told may get lost.
type Waker interface {
	// Wakes subscribes and calls w until ctx ends, reconnecting by itself. A
	// Locker subscribes once a node.
	Subscribe(ctx context.Context, server string, w Listener)
}

// Wakes is what a Waker calls. Neither method may block.
type Listener interface {
	Wake(resource string, t Ticket) // it is this ticket's turn on the node; its arrival is not told
	Subscribed()                    // from now on; what was told before may be lost
}

// Reader reads an admitted node, for a rejoin (rules 7, 8 and 21) and for listings.
type Reader interface {
	// Fence installs epoch on an admitted node whose own epoch is smaller, and
	// returns its marks. From then on votes under an older epoch are refused
	// there. ErrStaleEpoch if the node's epoch is not smaller, ErrNotAdmitted.
	InstallEpoch(ctx context.Context, epoch Epoch) (Marks, error)
	// Survey lists the locks of an admitted node in exactly this epoch, a page
	// at a time: "" starts, an empty next ends. A lock that stands during the
	// whole survey is seen at least once. ErrStaleEpoch, ErrNotAdmitted.
	Survey(ctx context.Context, epoch Epoch, cursor string) (locks []CarriedLock, next string, err error)
	// Counters reads the effective counter of each resource (a missing one
	// reads as high, rule 4) in exactly this epoch. ErrStaleEpoch, ErrNotAdmitted.
	Counters(ctx context.Context, epoch Epoch, resources []string) ([]fencing.Token, error)
	// Scan lists resources that are locked and begin with prefix, about limit
	// of them (it may give none and yet not be at its end). ErrNotAdmitted.
	Scan(ctx context.Context, prefix, cursor string, limit int) (resources []string, next string, err error)
}

// Clocked is a Node whose expiries follow a clock of its own. One that is set
// makes locks end early or late there, which nobody notices at the lock itself
// (rule 22).
type Clocked interface {
	// Time reads the node's clock, whether it is admitted or not.
	Time(ctx context.Context) (time.Time, error)
	// Expel retracts the admission of a node that is in this very incarnation
	// and epoch, and notes that its silence has begun, as Quarantine does.
	// ErrRaced when it is in another, or not admitted.
	Expel(ctx context.Context, incarnation string, epoch Epoch, note string) error
}

// Admittee is a node seen by who may admit it.
type Admittee interface {
	// Join names the cluster that asks, once, before any other call. The node
	// compares it with its admission record at every vote (rule 14).
	Join(c Cluster)
	// Observe looks at the node without changing it.
	Observe(ctx context.Context) (Observation, error)
	// Quarantine notes on a node that is not admitted, and bears no such note,
	// that its silence has begun (rule 13). The note goes with the data and with
	// an admission, so that a node which was admitted in the meantime and lost
	// its data again is told from one that stayed as it was. ErrRaced when it
	// is admitted, and ErrForeign.
	Quarantine(ctx context.Context, note string) error
	// Stage begins an admission: it purges every lock and counter (rule 11)
	// and keeps high = max(own, floor). ErrRaced when the node bears another
	// note, is admitted (but see MissedNote) or is staged under a larger epoch, and
	// ErrForeign.
	Stage(ctx context.Context, a Admission) error
	// Load writes counters, and reserves locks, on a node that a holds staged. ErrRaced.
	Load(ctx context.Context, a Admission, locks []CarriedLock) error
	// Admit ends the admission: the node votes from now on. ErrRaced.
	Admit(ctx context.Context, a Admission) error
	// RaiseMaxTTL makes the admission record's longest TTL at least ttl, which
	// a server does before it grants that long. ErrNotAdmitted.
	RaiseMaxTTL(ctx context.Context, ttl time.Duration) error
	// ReplaceSecrets makes the admission record's secrets those given, by
	// compare-and-set on those that it has. ErrNotAdmitted; ErrRaced where it has others.
	ReplaceSecrets(ctx context.Context, was, with Secrets) error
}

// Marks are what a fenced read returns.
type Marks struct {
	HighWater    fencing.Token // the largest counter or token the node ever saw
	MaxTTL       time.Duration // the longest TTL in use, from its admission record
	Bootstrapped Epoch         // the epoch of the last bootstrap that the node took part in, or read of
	Secrets      Secrets       // the cluster's, from its admission record
}

// CarriedLock is a resource's state on its way from admitted nodes to one that rejoins.
type CarriedLock struct {
	Resource  string
	Counter   fencing.Token // the effective counter to install, or as it was read
	Owner     string        // "" reserves no lock
	Grant     fencing.Token
	Remaining time.Duration
	TTL       time.Duration
	Meta      string
	Keyed     bool // made, or perhaps made, under an idempotency key
}

// Cluster names a node set: servers that are configured with other nodes are refused (rule 14).
type Cluster struct {
	Nodes int
	Hash  string // over the sorted node names
}

// Observation is a node's state at one moment.
type Observation struct {
	// Incarnation changes whenever the node may have lost state: at every
	// restart, promotion and fail-back. Redis calls it the replication id.
	Incarnation string
	// Admitted: its record exists and names this very incarnation.
	Admitted bool
	Cluster  Cluster // from its record; zero without one
	Epoch    Epoch   // from its record, admitted or not
	Staged   Epoch   // of an admission that was begun and not ended
	Marks    Marks   // what survives of them
	Empty    bool    // holds nothing at all, or only the note
	Note     string  // of its quarantine, "" without one or while admitted
	// Unfit says why it must not vote until somebody changes something, and
	// what to change: a replica, evicting, shared, too old. Empty if fit.
	Unfit string
}

// Admission is one attempt to admit a node.
type Admission struct {
	Incarnation string // pinned before the reads; anything else is ErrRaced (rule 10)
	Note        string // pinned like it; of a node that missed a bootstrap, its MissedNote
	Epoch       Epoch
	// Bootstrapped is the epoch of the bootstrap that View descends from; never above View.
	Bootstrapped Epoch
	Cluster      Cluster
	Floor        fencing.Token
	MaxTTL       time.Duration
	Secrets      Secrets
	OnlyIfEmpty  bool // the operator said that the cluster is new: ErrRaced if it holds anything
}

// MissedNote stands for the note of a node that missed a bootstrap: it is
// admitted in epoch, which is from before Admission.Bootstrapped, and may be staged while
// it is still in that very epoch (rule 12). Stage writes it into the node's data,
// so that the silence which others wait for is the same before and after.
//
// It names one silence though nothing in it is random, since an incarnation is never
// admitted in an epoch again (rule 9): who stages a node that missed a bootstrap does it under
// a larger epoch, no smaller one is staged over that, and Admit, which takes the
// note away, installs it. So a Stage that comes late or twice finds this very
// silence, or is refused. FLUSHALL forgets the epoch, and the note with it.
func MissedNote(epoch Epoch) string { return "missed " + strconv.FormatInt(int64(epoch), 10) }

// FloorAt is where the tokens of a cluster that is bootstrapped now begin at least
// (rule 12): the Unix time in microseconds. A lease uses up two numbers (its
// grant, and one more when it is released), so the clock stays ahead of any
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
// above where one bootstrapped now would begin. A broken node that names a larger
// one, or a guard in which somebody has claimed with one, must not drag every
// counter to the end of its range.
func Plausible(token fencing.Token, now time.Time) bool {
	const far = 1 << 51
	return token.Valid() && token <= FloorAt(now)+far
}

var (
	// ErrNotAdmitted: the node's gate is shut.
	ErrNotAdmitted = errors.New("node is not admitted")
	// ErrStaleEpoch: the node has gone on to another epoch. See StaleEpochError.
	ErrStaleEpoch = errors.New("node is in another epoch")
	// ErrRaced: somebody else admitted the node, or it restarted meanwhile.
	ErrRaced = errors.New("node changed during its admission")
	// ErrForeign: the node holds data that is not this cluster's; nothing was touched.
	ErrForeign = errors.New("node holds data of something else")
	// ErrUnreachableToken: an operation carries a token that no cluster can have
	// come to (Reachable). Nothing was done.
	ErrUnreachableToken = errors.New("the token is beyond what this cluster can have reached")
	// ErrQueueFull: more operations wait for the node than its bound allows.
	ErrQueueFull = errors.New("node queue is full")
	// ErrNodeDown: the node did not answer lately; operations fail at once until it does.
	ErrNodeDown = errors.New("node is down")
)

// StaleEpochError is ErrStaleEpoch with the node's epoch.
type StaleEpochError struct{ Epoch Epoch }

func (e *StaleEpochError) Error() string { return ErrStaleEpoch.Error() }

// Is makes errors.Is(err, ErrStaleEpoch) true.
func (e *StaleEpochError) Is(target error) bool { return target == ErrStaleEpoch }
