package demo

import (
	"fmt"
	"strconv"
	"time"
)

// Actor is one of the two workers.
type Actor string

// The workers.
const (
	WorkerA Actor = "A"
	WorkerB Actor = "B"
)

var (
	other    = map[Actor]Actor{WorkerA: WorkerB, WorkerB: WorkerA}
	deposits = map[Actor]int64{WorkerA: depositA, WorkerB: depositB}
)

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
	Time    time.Time     `json:"time"` // by the machine's clock, which all processes share
	At      time.Duration `json:"-"`    // since the round began
	PID     int           `json:"pid,omitempty"`
	Token   int64         `json:"token,omitempty"`
	Highest int64         `json:"highest,omitempty"` // the token that the guard had seen
	Balance int64         `json:"balance,omitempty"`
	Left    time.Duration `json:"left,omitempty"` // the remaining validity of the lease
}

// Sentence describes the event.
func (e Event) Sentence() string {
	switch e.Kind {
	case Started:
		return fmt.Sprintf("starts as process %d", e.PID)
	case Held:
		return fmt.Sprintf("finds the lock held by %s for another %s, waits in the queue", other[e.Who], seconds(e.Left))
	case Acquired:
		return fmt.Sprintf("has the lock: token %d, good for %s", e.Token, seconds(e.Left))
	case Read:
		if e.Token != 0 {
			return fmt.Sprintf("claims the record with token %s and reads: %d", short(e.Token), e.Balance)
		}
		return fmt.Sprintf("reads the balance: %d", e.Balance)
	case Checked:
		return "checks its lease before it writes: good for " + seconds(e.Left)
	case Stopped:
		return "is stopped (SIGSTOP), as by a long garbage collection"
	case Expired:
		return "its lease expires, which it cannot know"
	case Continued:
		return "continues (SIGCONT), unaware of it"
	case Wrote:
		if e.Token != 0 {
			return fmt.Sprintf("writes the balance with token %s: %d", short(e.Token), e.Balance)
		}
		return fmt.Sprintf("writes the balance: %d", e.Balance)
	case Refused:
		return fmt.Sprintf("writes with token %s: 412 stale-token, %s has been seen", short(e.Token), short(e.Highest))
	case Released:
		return "releases the lock"
	case TooLate:
		return "releases the lock: 404, its lease had expired"
	}
	return string(e.Kind)
}

// seconds writes a duration the way people say it.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// short abbreviates a token. The tokens of a new cluster begin at the time in microseconds, so the tokens
// of one run differ only in the last digits.
func short(token int64) string {
	if token < 100_000 {
		return strconv.FormatInt(token, 10)
	}
	return fmt.Sprintf("…%03d", token%1000)
}
