package demo

import "time"

// Actor is one of the two workers.
type Actor string

// The workers.
const (
	WorkerA Actor = "A"
	WorkerB Actor = "B"
)

var other = map[Actor]Actor{WorkerA: WorkerB, WorkerB: WorkerA}

// Kind is the kind of an event.
type Kind string

// The kinds of events, with the fields of Event that they use.
const (
	Started   Kind = "started"   // PID
	Held      Kind = "held"      // Left: how long the lease that holds the lock is valid
	Acquired  Kind = "acquired"  // Token, Left
	Read      Kind = "read"      // Balance, and Token if the read was a claim
	Checked   Kind = "checked"   // Left
	Stopped   Kind = "stopped"   //
	Expired   Kind = "expired"   // the lease of Who has expired
	Continued Kind = "continued" //
	Wrote     Kind = "wrote"     // Balance, and Token if the storage checks it
	Refused   Kind = "refused"   // Token, Highest
	Released  Kind = "released"  //
	TooLate   Kind = "too-late"  // the release found that the lease had ended
)

// Event is an action of a worker, or something that happened to it.
type Event struct {
	Who     Actor         `json:"who"`
	Kind    Kind          `json:"kind"`
	Time    time.Time     `json:"time,omitzero"` // by the machine's clock, which all processes share; not in a recording
	At      time.Duration `json:"at,omitempty"`  // since the round began; only in a recording
	PID     int           `json:"pid,omitempty"`
	Token   int64         `json:"token,omitempty"`
	Highest int64         `json:"highest,omitempty"` // the token that the guard had seen
	Balance int64         `json:"balance,omitempty"`
	Left    time.Duration `json:"left,omitempty"` // the remaining validity of the lease
}
