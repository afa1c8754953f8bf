package lockcore

import (
	"encoding/json"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// Lease is one time-bounded grant of a resource.
type Lease struct {
	Resource string
	ID       string        // the capability; secret
	Token    fencing.Token // the same for the whole life of the lease
	TTL      time.Duration // as requested
	// Validity is how long the lease certainly holds, counted from the service's response: TTL minus the time
	// spent and the drift allowance.
	Validity time.Duration
	// Waited is how long the acquire waited before it sent this grant's requests to the nodes, on a monotonic
	// clock. A client may therefore count Validity from this long after it sent its request. Only an acquire
	// sets it.
	Waited time.Duration
	// Acquired is when the lease was granted, on the granting server's wall clock. For several resources it is
	// when the last of them was taken.
	Acquired time.Time
	// MaxHoldRemaining is how long extensions may continue; negative if unbounded.
	MaxHoldRemaining time.Duration
	Holder           string
	Metadata         json.RawMessage
	// Existing means that an idempotency key found its own live lease, and nothing new was granted.
	Existing bool
	// Parts are the resources of a lease of several, sorted by name. If set, Resource and Token are empty.
	Parts []LeasePart
}

// LeaseTerms is the content of a lease id.
type LeaseTerms struct {
	Parts   []LeasePart   // one or more, sorted by resource name
	Granted time.Time     // on the granting server's wall clock
	MinHold time.Duration // how long after Granted the resources stay locked
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
	TTL       time.Duration // the last TTL given to the lease
	HeldFor   time.Duration
	Metadata  json.RawMessage
	Waiting   int      // number of requests in the queue
	Waiters   []Waiter // the first of them, in order; at most MaxShown
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

// MaxPage is the maximum number of locks on a page of List.
const MaxPage = 1000

// ListRequest is a request for a page of locks.
type ListRequest struct {
	Caller Caller // the cursor is sealed for it
	Prefix string // of the resources, at most MaxResourceBytes
	Limit  int    // approximate number of locks on the page, 1 to MaxPage
	Cursor string // NextCursor of the previous page; "" for the first page
	// Show reports whether a resource may be shown; nil shows all. Only these resources fill a page. The page
	// has a NextCursor only if more of them follow, or may follow: the search for them is limited in time.
	Show func(resource string) bool
}

// End says how a lease ended.
type End uint8

// The ends. They are for statistics: uncertain cases are EndUnknown.
const (
	EndUnknown End = iota // released, broken or expired, and the resource was used afterwards
	EndNone               // the lease is held
	EndExpired            // its TTL passed without a release
)

// NodeState is the state of a node as this server sees it.
type NodeState string

// The states of a node.
const (
	NodeVoting      NodeState = "voting"      // admitted: its votes count
	NodeQuarantined NodeState = "quarantined" // without admission; casts no vote until its wait ends (rules 7, 12 and 13)
	NodeUnreachable NodeState = "unreachable" // does not answer
	NodeRefused     NodeState = "refused"     // responds, but is unfit to vote; Reason says what to change
)

// NodeStatus is one node in ClusterStatus.
type NodeStatus struct {
	Name   string
	State  NodeState
	Reason string        // why it is not voting, and what to do; empty while voting
	Since  time.Duration // for how long it has been in this state
	Wait   time.Duration // while quarantined: the rest of the wait, 0 when it only waits for other nodes
	Epoch  int64         // of its admission record; 0 without one
	// Version and Role are what the node last reported; "" if it reports none.
	Version, Role string
	LastError     string        // why it last failed to respond; "" if it never failed
	LastErrorAgo  time.Duration // how long ago it failed to respond
}

// ClusterStatus is the state of the node set as this server sees it.
type ClusterStatus struct {
	Ready  bool   // a quorum may vote
	Reason string // why nothing is granted, and until when; empty if ready
	Quorum int
	Voting int
	Nodes  []NodeStatus
	Sets   []ClusterStatus // the node sets one by one, if there are several
}
