// Package wire holds the JSON bodies of the HTTP API, for the server and for
// clients. openapi.yaml describes the same bodies field by field.
//
// Durations are whole milliseconds (…_ms). The server rounds what a caller
// still has (validity) down, and what a caller has to wait for (remaining) up.
package wire

import (
	"encoding/json"
	"time"
)

// Header names that are not Go's own.
const (
	HeaderLease             = "Fencelock-Lease" // a lease id, for /leases/current
	HeaderFencingToken      = "Fencing-Token"
	HeaderFencingProof      = "Fencing-Proof"
	HeaderIdempotencyKey    = "Idempotency-Key"
	HeaderPrefer            = "Prefer"
	HeaderPreferenceApplied = "Preference-Applied"
	HeaderRequestID         = "X-Request-Id"
	HeaderResource          = "Fencelock-Resource" // the resource of the path, percent-encoded, where no proxy changes it
	HeaderServer            = "Fencelock-Server"   // the name of the server that answered
)

// Media types.
const (
	TypeJSON    = "application/json"
	TypeProblem = "application/problem+json"
)

// BreakRequest is the body of POST /breaks: exactly one of FencingToken and Any.
type BreakRequest struct {
	Resource     string `json:"resource"`
	FencingToken int64  `json:"fencing_token,omitempty"` // of the lease to break, and no other
	Any          bool   `json:"any,omitempty"`           // whatever lease is there, and repeated the next one, too
}

// AcquireRequest is the body of POST /locks: for one resource, or for several
// at once.
type AcquireRequest struct {
	Resource  string   `json:"resource,omitempty"`
	Resources []string `json:"resources,omitempty"` // instead of Resource
	Slots     int      `json:"slots,omitempty"`     // asks for one of this many slots of Resource; 0 for none
	TTLMS     *int64   `json:"ttl_ms,omitempty"`    // nil asks for the server's default
	WaitMS    *int64   `json:"wait_ms,omitempty"`   // nil tries once, as 0 does
	// MinHoldMS keeps the resource taken for so long from the grant, though the lease
	// is released before; 0 to TTLMS.
	MinHoldMS *int64 `json:"min_hold_ms,omitempty"`
	// MaxHoldMS ends extensions so long after the grant; at least TTLMS, 0 leaves it to the server.
	MaxHoldMS *int64          `json:"max_hold_ms,omitempty"`
	Holder    string          `json:"holder,omitempty"`   // a public label
	Metadata  json.RawMessage `json:"metadata,omitempty"` // any JSON value, public
}

// ExtendRequest is the body of POST /leases/current/extend.
type ExtendRequest struct {
	TTLMS *int64 `json:"ttl_ms,omitempty"` // nil gives the lease its own TTL again
}

// What an operation of a batch does.
const (
	OperationAcquire = "acquire" // as POST /locks, without wait_ms
	OperationExtend  = "extend"  // as POST /leases/current/extend
	OperationRelease = "release" // as DELETE /leases/current
)

// Batch is the body of POST /locks/batch: 1 to 128 operations, which are independent of
// each other and done in no order.
type Batch struct {
	Operations []BatchOperation `json:"operations"`
}

// BatchOperation is one of them. IdempotencyKey is for an acquire, LeaseID for the others.
type BatchOperation struct {
	Operation      string          `json:"operation"`
	IdempotencyKey string          `json:"idempotency_key,omitempty"`
	LeaseID        string          `json:"lease_id,omitempty"`
	Body           json.RawMessage `json:"body,omitempty"` // an AcquireRequest or ExtendRequest
}

// BatchResults is the answer to a batch, with the results in the order of its operations.
type BatchResults struct {
	Results []BatchResult `json:"results"`
}

// BatchResult is what the single request would have been answered.
type BatchResult struct {
	Status      int             `json:"status"`
	RetryAfterS int64           `json:"retry_after_s,omitempty"` // seconds, as in Retry-After
	Body        json.RawMessage `json:"body,omitempty"`          // a lease, Released or a Problem
}

// The kinds of leases.
const (
	KindLease  = "lease"  // of one resource
	KindBundle = "bundle" // of several
)

// Lease is a grant as its holder sees it. A bundle has Resources in place of
// Resource and FencingToken.
type Lease struct {
	Kind               string          `json:"kind"`
	Resource           string          `json:"resource,omitempty"`
	Slot               int             `json:"slot,omitempty"` // of a lease of one of several slots, whose name is Resource
	LeaseID            string          `json:"lease_id"`       // secret
	FencingToken       int64           `json:"fencing_token,omitempty"`
	FencingProof       string          `json:"fencing_proof,omitempty"` // where the server has a key for it
	Resources          LeaseParts      `json:"resources,omitempty"`     // in the order of their names
	TTLMS              int64           `json:"ttl_ms"`
	ValidityMS         int64           `json:"validity_ms"`
	WaitedMS           int64           `json:"waited_ms"`             // before the server asked the nodes for this grant
	MaxHoldRemainingMS *int64          `json:"max_hold_remaining_ms"` // null if unbounded
	Holder             string          `json:"holder"`
	Metadata           json.RawMessage `json:"metadata"` // null if none was given
}

// Released is the answer to a release before the lease's min hold (200; 204 otherwise).
type Released struct {
	TakenForMS int64 `json:"taken_for_ms"` // for how long the resources stay taken
}

// LeaseParts are the resources of a lease of several.
type LeaseParts []LeasePart

// LeasePart is one resource of a lease of several, with the token that is its own.
type LeasePart struct {
	Resource     string `json:"resource"`
	FencingToken int64  `json:"fencing_token"`
	FencingProof string `json:"fencing_proof,omitempty"`
}

// Lock is what anyone may see of a resource. A free one has Resource, Held and
// the queue only.
type Lock struct {
	Resource     string          `json:"resource"`
	Held         bool            `json:"held"`
	Holder       *string         `json:"holder,omitempty"`
	FencingToken int64           `json:"fencing_token,omitempty"`
	RemainingMS  *int64          `json:"remaining_ms,omitempty"`
	TTLMS        *int64          `json:"ttl_ms,omitempty"` // what the lease was last given
	HeldMS       *int64          `json:"held_ms,omitempty"`
	Metadata     json.RawMessage `json:"metadata,omitempty"`
	Waiters      int             `json:"waiters"` // how many wait in the queue
	Queue        []Waiter        `json:"queue"`   // the first of them, first in the queue first
}

// Waiter is a place in the queue.
type Waiter struct {
	Holder    string `json:"holder"`
	WaitingMS int64  `json:"waiting_ms"`
}

// LockPage is the answer to GET /locks.
type LockPage struct {
	Locks      []Lock `json:"locks"`
	NextCursor string `json:"next_cursor,omitempty"` // absent after the last page
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

// HistoryPage is the answer to GET /history, newest first.
type HistoryPage struct {
	Resource   string    `json:"resource"`
	Attempts   []Attempt `json:"attempts"`
	NextCursor string    `json:"next_cursor,omitempty"` // absent after the last page
}

// Attempt is a write or a claim, accepted or refused.
type Attempt struct {
	FencingToken int64     `json:"fencing_token"`
	HighestToken int64     `json:"highest_token"` // what the token was compared with
	Kind         string    `json:"kind"`          // write, claim
	Accepted     bool      `json:"accepted"`
	Version      int64     `json:"version"`
	At           time.Time `json:"at"`
}

// Activity is the response to GET /activity: what one server remembers of its last hour.
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

// Caller is the answer to GET /whoami.
type Caller struct {
	Name  string `json:"name"`  // "" where there is no access control
	Rules []Rule `json:"rules"` // the first whose prefix fits a resource decides; no right without one
}

// Rule gives a right over the resources that begin with a prefix.
type Rule struct {
	Prefix string `json:"prefix"`
	Right  string `json:"right"` // none, read, acquire, admin: each contains the ones before it
}

// Health is the answer to GET /healthz.
type Health struct {
	Status string `json:"status"` // ok
}

// Ready is the answer to GET /readyz, with 200 as with 503.
type Ready struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason"` // empty while ready
	Quorum int    `json:"quorum"`
	Voting int    `json:"voting"`
	Nodes  []Node `json:"nodes"`
	// Sets are the node sets one by one, where there are several; each needs a quorum of its
	// own, and Quorum and Voting are their sums.
	Sets []NodeSet `json:"sets,omitempty"`
	// Guard is the storage of the guarded records; nil for a server without one. It
	// does not count in Ready, which is about locks.
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

// GuardState is the storage of the guarded records as this server sees it.
type GuardState struct {
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason"` // why not; empty while ready
	SinceMS int64  `json:"since_ms"`
}

// Node is one node as this server sees it.
type Node struct {
	Name    string `json:"name"`
	State   string `json:"state"`    // voting, quarantined, unreachable, refused
	Reason  string `json:"reason"`   // why, and what to do; empty while voting
	SinceMS int64  `json:"since_ms"` // for how long it has been so
	WaitMS  int64  `json:"wait_ms"`  // quarantined: what is left of the wait
	Epoch   int64  `json:"epoch"`    // of its admission record, 0 without one
	// For people; absent where the node reports none.
	Version   string `json:"version,omitempty"`
	Role      string `json:"role,omitempty"`
	LastError string `json:"last_error,omitempty"` // why it last did not answer
	// LastErrorMS is how long ago that was; absent without LastError.
	LastErrorMS *int64 `json:"last_error_ms,omitempty"`
}

// ProblemPrefix is what a problem's type begins with; its page is served there.
const ProblemPrefix = "/problems/"

// Problem is every refusal (RFC 9457). The embedded details are there for the
// problem types that have them.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Field  string `json:"field,omitempty"` // invalid-request: the JSON field, header, or parameter
	// RequestID is the response's X-Request-Id, under which the server's log has the request.
	RequestID string `json:"request_id,omitempty"`
	Resource  string `json:"resource,omitempty"` // what it is about, where that is one resource
	*HeldDetails
	*WaitDetails
	*QuorumDetails
	*StaleDetails
}

// HeldDetails describe the lease in the way: lock-held, wait-timeout, other-lease.
type HeldDetails struct {
	Holder       string `json:"holder"`
	FencingToken int64  `json:"fencing_token,omitempty"` // absent if no quorum agreed on a holder
	RemainingMS  int64  `json:"remaining_ms"`
	Waiters      int    `json:"waiters"`
}

// WaitDetails say where in the queue a wait ended: wait-timeout.
type WaitDetails struct {
	// Queued: the request still has its place; nobody passes it for two seconds, in which
	// it should come again under its Idempotency-Key.
	Queued   bool  `json:"queued"`
	Position int   `json:"position"` // place in the queue when the wait ended; 1 is the first
	WaitedMS int64 `json:"waited_ms"`
}

// QuorumDetails say why there was no quorum: no-quorum.
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

// StaleDetails say which token was refused: stale-token.
type StaleDetails struct {
	Presented    int64 `json:"presented"`
	HighestToken int64 `json:"highest_token"`
}
