package demo

import (
	"fmt"
	"slices"
	"time"
)

// Report is the result of a run.
type Report struct {
	Backend string        `json:"backend"` // the storage that the server uses, in words
	Account string        `json:"account"` // the resource
	TTL     time.Duration `json:"ttl"`
	Begun   time.Time     `json:"begun"`
	Version string        `json:"version"`
	Rounds  []Round       `json:"rounds"`
}

// OK reports whether both rounds ended as the demonstration promises.
func (r Report) OK() bool {
	return len(r.Rounds) == 2 && r.Rounds[0].Verdict().OK && r.Rounds[1].Verdict().OK
}

// Round is one run of the two workers.
type Round struct {
	Telling `json:"-"`

	Events []Event `json:"events"`
	Final  int64   `json:"final"` // the balance at the end
}

// Verdict judges a round, in two lines.
type Verdict struct {
	OK     bool // the round went as expected
	Title  string
	Detail string
}

// Verdict judges the round.
func (r Round) Verdict() Verdict {
	if wrong := r.wrong(); wrong != "" {
		return Verdict{false, r.Bad, "What happened: " + wrong + "."}
	}
	sum, all := told().sum()
	return Verdict{true, r.Good, fill(r.Because, "final", r.Final, "sum", sum, "all", all)}
}

// wrong describes the first deviation from the expected round; "" if there is none. The expected round: A
// is stopped between its check and its write, and its lease expires. B acquires the lock with a larger
// token and writes. Only then A continues, and its write is lost or refused.
func (r Round) wrong() string {
	a, b := r.first(WorkerA, Acquired), r.first(WorkerB, Acquired)
	stopped, continued := r.first(WorkerA, Stopped), r.first(WorkerA, Continued)
	wrote, late := r.first(WorkerB, Wrote), r.first(WorkerA, Wrote, Refused)
	for _, check := range []struct {
		wrong bool
		what  string
	}{
		{a.Kind == "", "A never had the lock"},
		{b.Kind == "", "B never had the lock"},
		{wrote.Kind == "", "B never wrote"},
		{stopped.Kind == "", "A was not stopped"},
		{continued.Kind == "", "A was not continued"},
		{late.Kind == "", "A never tried to write"},
		{late.At < max(stopped.At, continued.At), "A wrote before it could be stopped (this machine may be very busy)"},
		{b.At < a.At+a.Left, fmt.Sprintf("B had the lock %s before A's lease expired", seconds(a.At+a.Left-b.At))},
		{b.Token <= a.Token, fmt.Sprintf("B's token %d is not above A's token %d", b.Token, a.Token)},
		{late.At < wrote.At, "A wrote before B"},
		{!r.Guarded && late.Kind == Refused, "A's late write was refused by storage that checks nothing"},
		{r.Guarded && late.Kind == Wrote, "A's late write was accepted"},
		{r.Guarded && (late.Token != a.Token || late.Highest < b.Token), fmt.Sprintf("A was refused token %d after %d, and its token was %d and B's %d", late.Token, late.Highest, a.Token, b.Token)},
		{r.Final != r.Want, fmt.Sprintf("the balance is %d, and %d was expected", r.Final, r.Want)},
	} {
		if check.wrong {
			return check.what
		}
	}
	return ""
}

// first returns the first event of these kinds, or the zero Event.
func (r Round) first(who Actor, kinds ...Kind) Event {
	for _, e := range r.Events {
		if e.Who == who && slices.Contains(kinds, e.Kind) {
			return e
		}
	}
	return Event{}
}
