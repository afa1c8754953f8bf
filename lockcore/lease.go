package lockcore

import (
	"encoding/json"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// AcquireRequest asks for a lease.
type AcquireRequest struct {
	Resource string        // 1 to 256 bytes of UTF-8 without control characters
	TTL      time.Duration // MinTTL to Config.MaxTTL; 0 asks for Config.DefaultTTL
	Wait     time.Duration // 0 tries once; at most MaxWait
	// Poll answers a request that still waits then with ErrWaitTimeout; 0 for not before
	// Wait ends. With an IdempotencyKey its place in the queue, and what it has of
	// several resources, is kept for two seconds for the next request.
	Poll   time.Duration
	Holder string // a label, at most 256 bytes; public
	// MinHold keeps the resource taken for that long from the grant, though the lease
	// is released before; at most TTL. A holder that dies frees it with the TTL.
	MinHold time.Duration
	// MaxHold bounds how long extensions may keep the lease, from the grant: at least
	// TTL, and not more than the service allows. 0 leaves it to the service.
	MaxHold  time.Duration
	Metadata json.RawMessage // any JSON value, at most 4096 bytes; public
	// IdempotencyKey makes a retried request find its own live lease; of the retry only
	// Wait and Poll may differ. The same key of two callers (WithCaller) means two leases.
	IdempotencyKey string
	// Slots asks for one of this many slots of Resource, 1 to MaxSlots, each with a lock of
	// its own: the lease is of the resource that SlotName names. 0 is for no slots.
	Slots int
	// Resources asks for several at once instead of Resource: all or none,
	// MinBundle to MaxBundle of them, in any order.
	Resources []string
}

// Polls reports whether the request is answered before its wait ends.
func (r *AcquireRequest) Polls() bool { return r.Poll > 0 && r.Poll < r.Wait }

// AnswerWithin is how long this request waits.
func (r *AcquireRequest) AnswerWithin() time.Duration {
	if r.Polls() {
		return r.Poll
	}
	return r.Wait
}

// Lease is one time-bounded grant of a resource.
type Lease struct {
	Resource string
	ID       string        // the capability; secret
	Token    fencing.Token // the same for the whole life of the lease
	TTL      time.Duration // as asked for
	// Validity is how long the lease is sure to hold, counted from the moment
	// the service answered: TTL less the time spent and the drift allowance.
	Validity time.Duration
	// Waited is how long the acquire waited before it asked the nodes for this grant,
	// on a monotonic clock: so whoever made the request may count Validity from so
	// long after it. Only an acquire sets it.
	Waited time.Duration
	// Acquired is when it was granted, on the granting server's wall clock: of
	// several resources when the last of them was taken.
	Acquired time.Time
	// MaxHoldRemaining is how long extensions may continue; negative if unbounded.
	MaxHoldRemaining time.Duration
	Holder           string
	Metadata         json.RawMessage
	// Existing: an idempotency key found its own live lease; nothing was granted again.
	Existing bool
	// Parts are the resources of a lease of several, in the order of their
	// names; then Resource and Token are empty.
	Parts []LeasePart
}

// LeaseTerms are what a lease id says of its lease.
type LeaseTerms struct {
	Parts   []LeasePart   // one or several, in the order of their resources' names
	Granted time.Time     // on the granting server's wall clock
	MinHold time.Duration // for how long from Granted the resources stay taken
}

// LeasePart is one resource of a lease.
type LeasePart struct {
	Resource string
	Token    fencing.Token
}

// LockState is the public state of a resource.
type LockState struct {
	Resource  string
	Held      bool
	Holder    string
	Token     fencing.Token
	Remaining time.Duration
	TTL       time.Duration // what the lease was last given
	HeldFor   time.Duration
	Metadata  json.RawMessage
	Waiting   int      // how many requests wait in the queue
	Waiters   []Waiter // the first of them, in their order; MaxShown at most
}

// Waiter is a place in a resource's queue.
type Waiter struct {
	Holder     string
	WaitingFor time.Duration
}

// LockPage is one page of a listing. The order is the nodes' own, not sorted.
type LockPage struct {
	Locks      []LockState
	NextCursor string // "" after the last page
}

// MaxPage is the most locks on a page of List.
const MaxPage = 1000

// ListRequest asks for a page of locks.
type ListRequest struct {
	Prefix string // of the resources, at most MaxResourceBytes
	Limit  int    // about how many locks the page holds, 1 to MaxPage
	Cursor string // the NextCursor of the page before; "" for the first
	// Show says which resources may be shown; nil for all. A page is filled from these
	// alone, and has a NextCursor only if more of them follow, or may: the search for
	// them is bounded in time.
	Show func(resource string) bool
}

// End says how a lease ended.
type End uint8

// The ends. They are for statistics: what is not certain is EndUnknown.
const (
	EndUnknown End = iota // released, broken or expired, and the resource was used since
	EndNone               // it is held
	EndExpired            // its TTL passed without a release
)

// NodeState is where a node stands with this server.
type NodeState string

// The states of a node.
const (
	NodeVoting      NodeState = "voting"      // admitted: its votes count
	NodeQuarantined NodeState = "quarantined" // without admission; casts no vote until its wait ends (rules 7, 12 and 13)
	NodeUnreachable NodeState = "unreachable" // does not answer
	NodeRefused     NodeState = "refused"     // answers, but is unfit to vote; Reason says what to change
)

// NodeStatus is one node in ClusterStatus.
type NodeStatus struct {
	Name   string
	State  NodeState
	Reason string        // why, and what to do; empty while voting
	Since  time.Duration // for how long it has been in this state
	Wait   time.Duration // quarantined: what is left of the wait, 0 when it only waits for others
	Epoch  int64         // of its admission record, 0 without one
	// Version and Role are as the node last reported them, "" if it reports none.
	Version, Role string
	LastError     string        // why it last did not answer; "" if it always did
	LastErrorAgo  time.Duration // how long ago that was
}

// ClusterStatus is the state of the node set as this server sees it.
type ClusterStatus struct {
	Ready  bool   // a quorum may vote
	Reason string // when not ready: why nothing is granted, and until when
	Quorum int
	Voting int
	Nodes  []NodeStatus
	Sets   []ClusterStatus // the node sets one by one, where there are several
}
