// Package wire holds the JSON bodies of the HTTP API, for the server and for
// clients. openapi.yaml describes the same bodies field by field.
//
// Durations are whole milliseconds (…_ms). The server rounds down the time that a caller still has
// (validity), and rounds up the time that a caller has to wait (remaining).
package wire

import (
	"encoding/json"
	"time"
)

// Headers that the Go library does not define.
const (
	HeaderLease             = "Fencelock-Lease" // a lease id, for /leases/current
	HeaderFencingToken      = "Fencing-Token"
	HeaderFencingProof      = "Fencing-Proof"
	HeaderIdempotencyKey    = "Idempotency-Key"
	HeaderPrefer            = "Prefer"
	HeaderPreferenceApplied = "Preference-Applied"
	HeaderRequestID         = "X-Request-Id"
	HeaderResource          = "Fencelock-Resource" // the resource of the path, percent-encoded: proxies may change a path, but not this header
	HeaderServer            = "Fencelock-Server"   // the name of the server that responded
)

// Media types.
const (
	TypeJSON    = "application/json"
	TypeProblem = "application/problem+json"
)

// BreakRequest is the body of POST /breaks: exactly one of FencingToken and Any.
type BreakRequest struct {
	Resource     string `json:"resource"`
	FencingToken int64  `json:"fencing_token,omitempty"` // the token of the lease to break; no other lease is broken
	Any          bool   `json:"any,omitempty"`           // breaks any lease; a repeated request may break the next one
}

// AcquireRequest is the body of POST /locks: for one resource, or for several
// at once.
type AcquireRequest struct {
	Resource  string   `json:"resource,omitempty"`
	Resources []string `json:"resources,omitempty"` // instead of Resource
	Slots     int      `json:"slots,omitempty"`     // requests one of this many slots of Resource; 0 requests the resource itself
	TTLMS     *int64   `json:"ttl_ms,omitempty"`    // nil means the server's default
	WaitMS    *int64   `json:"wait_ms,omitempty"`   // nil and 0 mean a single try
	// MinHoldMS keeps the resource taken for this long from the grant, even if the lease is released
	// earlier; 0 to TTLMS.
	MinHoldMS *int64 `json:"min_hold_ms,omitempty"`
	// MaxHoldMS is how long after the grant extensions end; at least TTLMS, 0 means the server's limit.
	MaxHoldMS *int64          `json:"max_hold_ms,omitempty"`
	Holder    string          `json:"holder,omitempty"`   // a public label
	Metadata  json.RawMessage `json:"metadata,omitempty"` // any JSON value, public
}

// ExtendRequest is the body of POST /leases/current/extend.
type ExtendRequest struct {
	TTLMS *int64 `json:"ttl_ms,omitempty"` // nil restarts the lease's last TTL
}

// The operations of a batch.
const (
	OperationAcquire = "acquire" // as POST /locks, without wait_ms
	OperationExtend  = "extend"  // as POST /leases/current/extend
	OperationRelease = "release" // as DELETE /leases/current
)

// Batch is the body of POST /locks/batch: 1 to 128 operations, which are independent of each other and are
// done in no particular order.
type Batch struct {
	Operations []BatchOperation `json:"operations"`
}

// BatchOperation is one operation. IdempotencyKey is for an acquire, LeaseID for the others.
type BatchOperation struct {
	Operation      string          `json:"operation"`
	IdempotencyKey string          `json:"idempotency_key,omitempty"`
	LeaseID        string          `json:"lease_id,omitempty"`
	Body           json.RawMessage `json:"body,omitempty"` // an AcquireRequest or ExtendRequest
}

// BatchResults is the response to a batch, with the results in the order of its operations.
type BatchResults struct {
	Results []BatchResult `json:"results"`
}

// BatchResult is the response that the single request would get.
type BatchResult struct {
	Status      int             `json:"status"`
	RetryAfterS int64           `json:"retry_after_s,omitempty"` // seconds, as in Retry-After
	Body        json.RawMessage `json:"body,omitempty"`          // a lease, Released or a Problem
}

// The kinds of leases.
const (
	KindLease  = "lease"  // a lease of one resource
	KindBundle = "bundle" // a lease of several
)

// Lease is a grant as its holder sees it. A bundle has Resources instead of Resource and FencingToken.
type Lease struct {
	Kind               string          `json:"kind"`
	Resource           string          `json:"resource,omitempty"`
	Slot               int             `json:"slot,omitempty"` // the number of a slot, whose name is Resource; 0 for other leases
	LeaseID            string          `json:"lease_id"`       // secret
	FencingToken       int64           `json:"fencing_token,omitempty"`
	FencingProof       string          `json:"fencing_proof,omitempty"` // present if the server has a key for it
	Resources          LeaseParts      `json:"resources,omitempty"`     // in the order of their names
	TTLMS              int64           `json:"ttl_ms"`
	ValidityMS         int64           `json:"validity_ms"`
	WaitedMS           int64           `json:"waited_ms"`             // how long the request waited before the server requested this grant
	MaxHoldRemainingMS *int64          `json:"max_hold_remaining_ms"` // null if unbounded
	Holder             string          `json:"holder"`
	Metadata           json.RawMessage `json:"metadata"` // null if the request had none
}

// Released is the response to a release before the end of the lease's min hold (200; otherwise it is 204).
type Released struct {
	TakenForMS int64 `json:"taken_for_ms"` // how long the resources stay taken
}

// LeaseParts are the resources of a bundle.
type LeaseParts []LeasePart

// LeasePart is one resource of a bundle, with its own token.
type LeasePart struct {
	Resource     string `json:"resource"`
	FencingToken int64  `json:"fencing_token"`
	FencingProof string `json:"fencing_proof,omitempty"`
}

// Lock is the public state of a resource. A free resource has only Resource, Held and the queue.
type Lock struct {
	Resource     string          `json:"resource"`
	Held         bool            `json:"held"`
	Holder       *string         `json:"holder,omitempty"`
	FencingToken int64           `json:"fencing_token,omitempty"`
	RemainingMS  *int64          `json:"remaining_ms,omitempty"`
	TTLMS        *int64          `json:"ttl_ms,omitempty"` // the lease's last TTL
	HeldMS       *int64          `json:"held_ms,omitempty"`
	Metadata     json.RawMessage `json:"metadata,omitempty"`
	Waiters      int             `json:"waiters"` // the number of requests in the queue
	Queue        []Waiter        `json:"queue"`   // the first of them, in the order of the queue
}

// Waiter is a place in the queue.
type Waiter struct {
	Holder    string `json:"holder"`
	WaitingMS int64  `json:"waiting_ms"`
}

// LockPage is the response to GET /locks.
type LockPage struct {
	Locks      []Lock `json:"locks"`
	NextCursor string `json:"next_cursor,omitempty"` // absent after the last page
}

// Blocked is the response to GET /blocked: who blocks a name.
type Blocked struct {
	Name       string          `json:"name"`
	Locks      []Lock          `json:"locks"`   // the resource with this name and its slots, if they are held or waited for
	Holders    []BlockedHolder `json:"holders"` // the chain, nearest first
	Deadlocks  []Deadlock      `json:"deadlocks"`
	Unlabelled int             `json:"unlabelled"` // leases and waits without a label, which no chain contains
	Truncated  bool            `json:"truncated"`  // more exists than was read
}

// BlockedHolder is a label with all that it holds and waits for.
type BlockedHolder struct {
	Holder string `json:"holder"`
	Holds  []Hold `json:"holds"`
	Waits  []Wait `json:"waits"`
}

// Hold is a resource that a holder holds.
type Hold struct {
	Resource     string `json:"resource"`
	FencingToken int64  `json:"fencing_token"`
	HeldMS       int64  `json:"held_ms"`
	RemainingMS  int64  `json:"remaining_ms"`
	Waiters      int    `json:"waiters"` // the number of requests in its queue
}

// Wait says that Holder waits for Resource, which HeldBy holds.
type Wait struct {
	Holder       string `json:"holder"`
	Resource     string `json:"resource"`
	Position     int    `json:"position"` // in the queue; the first is 1
	WaitingMS    int64  `json:"waiting_ms"`
	HeldBy       string `json:"held_by"`       // "" if the lease has no label
	FencingToken int64  `json:"fencing_token"` // of the lease that holds Resource
}

// Deadlock is two or more holders that wait for each other.
type Deadlock struct {
	DeadlockedMS int64        `json:"deadlocked_ms"` // since the last wait began
	Waits        []Wait       `json:"waits"`         // in the order of the circle, beginning with the wait that began last
	Break        LeaseToBreak `json:"break"`
}

// LeaseToBreak is the lease that an operator should break to resolve a deadlock: the lease of the holder
// whose wait began last.
type LeaseToBreak struct {
	Resource     string `json:"resource"`
	FencingToken int64  `json:"fencing_token"`
	Holder       string `json:"holder"`
}

// Record is a guarded record.
type Record struct {
	Resource     string          `json:"resource"`
	HighestToken int64           `json:"highest_token"` // the highest seen
	Value        json.RawMessage `json:"value"`         // null before the first write
	Version      int64           `json:"version"`       // the number of accepted writes
}

// RecordPage is the response to GET /guarded, in the order of the resources' bytes.
type RecordPage struct {
	Records    []RecordSummary `json:"records"`
	NextCursor string          `json:"next_cursor,omitempty"` // absent after the last page
}

// RecordSummary is a Record without its value.
type RecordSummary struct {
	Resource     string `json:"resource"`
	HighestToken int64  `json:"highest_token"`
	Version      int64  `json:"version"`
}

// HistoryPage is the response to GET /history, newest first.
type HistoryPage struct {
	Resource   string    `json:"resource"`
	Attempts   []Attempt `json:"attempts"`
	NextCursor string    `json:"next_cursor,omitempty"` // absent after the last page
}

// Attempt is a write or a claim, accepted or refused.
type Attempt struct {
	FencingToken int64     `json:"fencing_token"`
	HighestToken int64     `json:"highest_token"` // the mark with which the token was compared
	Kind         string    `json:"kind"`          // write, claim
	Accepted     bool      `json:"accepted"`
	Version      int64     `json:"version"`
	At           time.Time `json:"at"`
}

// Activity is the response to GET /activity: one server's last hour.
type Activity struct {
	Minutes     []ActivityMinute    `json:"minutes"`      // the oldest first
	Contended   []ContendedResource `json:"contended"`    // the one waited for most comes first
	LongestHeld []HeldResource      `json:"longest_held"` // longest first
}

// ActivityMinute counts what happened in one minute.
type ActivityMinute struct {
	Start         time.Time `json:"start"`
	Granted       int64     `json:"granted"`
	Waited        int64     `json:"waited"`
	RefusedWrites int64     `json:"refused_writes"`
}

// ContendedResource is a resource that requests found held.
type ContendedResource struct {
	Resource string `json:"resource"`
	Requests int64  `json:"requests"`
	WaitedMS int64  `json:"waited_ms"` // of all requests together
}

// HeldResource is a resource with the longest time for which a lease that has ended held it.
type HeldResource struct {
	Resource string `json:"resource"`
	HeldMS   int64  `json:"held_ms"`
}

// Caller is the response to GET /whoami.
type Caller struct {
	Name  string `json:"name"`  // "" without access control
	Rules []Rule `json:"rules"` // the first rule whose prefix matches decides; without one there is no right
}

// Rule gives a right over the resources that begin with a prefix.
type Rule struct {
	Prefix string `json:"prefix"`
	Right  string `json:"right"` // none, read, acquire or admin; each contains the previous ones
}

// Health is the response to GET /healthz.
type Health struct {
	Status string `json:"status"` // ok
}

// Ready is the response to GET /readyz, with status 200 or 503.
type Ready struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason"` // empty while ready
	Quorum int    `json:"quorum"`
	Voting int    `json:"voting"`
	Nodes  []Node `json:"nodes"`
	// Sets are the node sets, if there are several. Each needs its own quorum; Quorum and Voting are their
	// sums.
	Sets []NodeSet `json:"sets,omitempty"`
	// Guard is the storage of the guarded records; nil if the server has none. It does not affect Ready,
	// which is about locks.
	Guard *GuardState `json:"guard,omitempty"`
}

// NodeSet is one of several node sets.
type NodeSet struct {
	Ready  bool     `json:"ready"`
	Reason string   `json:"reason"` // empty while ready
	Quorum int      `json:"quorum"`
	Voting int      `json:"voting"`
	Nodes  []string `json:"nodes,omitempty"` // their names
}

// GuardState is the state of the guarded records' storage as this server sees it.
type GuardState struct {
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason"` // why it is not ready; empty while ready
	SinceMS int64  `json:"since_ms"`
}

// Node is one node as this server sees it.
type Node struct {
	Name    string `json:"name"`
	State   string `json:"state"`    // voting, quarantined, unreachable, refused
	Reason  string `json:"reason"`   // why, and what to do; empty while voting
	SinceMS int64  `json:"since_ms"` // how long it has been in this state
	WaitMS  int64  `json:"wait_ms"`  // if quarantined, the rest of the wait
	Epoch   int64  `json:"epoch"`    // of its admission record; 0 without one
	// For display; absent if the node does not report them.
	Version   string `json:"version,omitempty"`
	Role      string `json:"role,omitempty"`
	LastError string `json:"last_error,omitempty"` // the last error of a request to the node
	// LastErrorMS is how long ago that error occurred; absent without LastError.
	LastErrorMS *int64 `json:"last_error_ms,omitempty"`
}

// ProblemPrefix is the prefix of every problem's type. The type is the path of the problem's page.
const ProblemPrefix = "/problems/"

// Problem is the body of every refusal (RFC 9457). Only some problem types have the embedded details.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Field  string `json:"field,omitempty"` // invalid-request: the JSON field, header, or parameter
	// RequestID is the response's X-Request-Id, which identifies the request in the server's log.
	RequestID string `json:"request_id,omitempty"`
	Resource  string `json:"resource,omitempty"` // the resource that the problem is about, if there is one
	*HeldDetails
	*WaitDetails
	*QuorumDetails
	*StaleDetails
}

// HeldDetails describe the lease that holds the resource: lock-held, wait-timeout, other-lease.
type HeldDetails struct {
	Holder       string `json:"holder"`
	FencingToken int64  `json:"fencing_token,omitempty"` // absent if no quorum agreed on a holder
	RemainingMS  int64  `json:"remaining_ms"`
	Waiters      int    `json:"waiters"`
}

// WaitDetails describe the place in the queue at the end of a wait: wait-timeout.
type WaitDetails struct {
	// Queued says that the request keeps its place for two seconds. It should be repeated within this time,
	// under its Idempotency-Key.
	Queued   bool  `json:"queued"`
	Position int   `json:"position"` // place in the queue when the wait ended; 1 is the first
	WaitedMS int64 `json:"waited_ms"`
}

// QuorumDetails describe why there was no quorum: no-quorum.
type QuorumDetails struct {
	Asked    int           `json:"asked"`
	Answered int           `json:"answered"`
	Granted  int           `json:"granted"`
	Quorum   int           `json:"quorum"`
	Nodes    []NodeOutcome `json:"nodes"`
}

// NodeOutcome is one node's part in a failed round.
type NodeOutcome struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

// StaleDetails describe the refused token: stale-token.
type StaleDetails struct {
	Presented    int64 `json:"presented"`
	HighestToken int64 `json:"highest_token"`
}
