package demo

import (
	"fmt"
	"slices"
	"time"
)

// The opening balance of the account, and the deposits of the workers.
const (
	opening  = 100
	depositA = 30
	depositB = 20
	both     = opening + depositA + depositB
)

// Report is the result of a run.
type Report struct {
	Backend string // the storage that the server uses, in words
	Account string // the resource
	TTL     time.Duration
	Begun   time.Time
	Version string
	Rounds  []Round
}

// OK reports whether both rounds ended as the demonstration promises.
func (r Report) OK() bool {
	return len(r.Rounds) == 2 && r.Rounds[0].Verdict().OK && r.Rounds[1].Verdict().OK
}

// Round is one run of the two workers.
type Round struct {
	Title   string
	Storage string // where the account is stored
	Guarded bool   // the storage is a guarded record, not a file
	Events  []Event
	Final   int64 // the balance at the end
	want    int64 // the correct balance at the end
}

// The rounds, before they are played.
var (
	roundOne = Round{Title: "Round one: storage that takes every write", Storage: "a plain file", want: opening + depositA}
	roundTwo = Round{Title: "Round two: storage that checks the token", Storage: "a guarded record", Guarded: true, want: both}
)

// Verdict judges a round, in two lines.
type Verdict struct {
	OK     bool // the round went as expected
	Title  string
	Detail string
}

// Verdict judges the round.
func (r Round) Verdict() Verdict {
	wrong := r.wrong()
	switch {
	case wrong != "" && r.Guarded:
		return Verdict{false, "Round two did not protect the account as it should have.", "What happened: " + wrong + "."}
	case wrong != "":
		return Verdict{false, "Round one did not lose an update as it should have.", "What happened: " + wrong + "."}
	case r.Guarded:
		return Verdict{true, "Round two: the late write was refused, and nothing was lost.",
			fmt.Sprintf("The balance is %d: %d + A's %d + B's %d. A got 412 and began again.", r.Final, opening, depositA, depositB)}
	}
	return Verdict{true, "Round one: an update was lost.",
		fmt.Sprintf("The balance is %d, but %d + A's %d + B's %d are %d: B's deposit is gone.", r.Final, opening, depositA, depositB, both)}
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
		{r.Final != r.want, fmt.Sprintf("the balance is %d, and %d was expected", r.Final, r.want)},
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
