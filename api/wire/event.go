package wire

import "time"

// TypeEvents is the media type of GET /events.
const TypeEvents = "text/event-stream"

// HeaderLastEventID is the header with which a reader resumes.
const HeaderLastEventID = "Last-Event-ID"

// EventKind is the name of a server-sent event (its "event:" line).
type EventKind string

// The kinds of events.
const (
	EventGranted    EventKind = "granted"
	EventExtended   EventKind = "extended"
	EventReleased   EventKind = "released"
	EventBroken     EventKind = "broken"
	EventExpired    EventKind = "expired"
	EventWaiting    EventKind = "waiting"
	EventLeft       EventKind = "left"
	EventStaleToken EventKind = "stale-token-refused" //nolint:gosec // a fencing token, no credential
	EventNode       EventKind = "node"
	EventGap        EventKind = "gap" // some events are missing here
)

// Event is the data of a server-sent event. It contains no secret: no lease id and no metadata. The kind
// determines which fields are set.
type Event struct {
	At           time.Time `json:"at"`     // the wall clock of the server that published it
	Server       string    `json:"server"` // the name of that server, new after each start
	Resource     string    `json:"resource,omitempty"`
	FencingToken int64     `json:"fencing_token,omitempty"` // 0 if it is unknown
	Holder       string    `json:"holder,omitempty"`
	TTLMS        int64     `json:"ttl_ms,omitempty"`        // granted, extended
	Attempt      string    `json:"attempt,omitempty"`       // stale-token-refused: write, claim
	HighestToken int64     `json:"highest_token,omitempty"` // stale-token-refused: the guard's mark
	Node         string    `json:"node,omitempty"`          // node
	State        string    `json:"state,omitempty"`         // node: as in Ready
	Was          string    `json:"was,omitempty"`           // node: the state before
	Reason       string    `json:"reason,omitempty"`
}
