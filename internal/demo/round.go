package demo

import (
	"fmt"
	"slices"
	"time"
)

// What the account holds at first, and what the workers add.
const (
	opening  = 100
	depositA = 30
	depositB = 20
	both     = opening + depositA + depositB
)

// Report is what a run showed.
type Report struct {
	Backend string // what the server stood on, in words
	Account string // the resource
	TTL     time.Duration
	Begun   time.Time
	Took    time.Duration
	Version string
	Rounds  []Round
}

// OK says whether the run showed what it is for.
func (r Report) OK() bool {
	return len(r.Rounds) == 2 && !slices.ContainsFunc(r.Rounds, func(round Round) bool { return !round.Verdict().OK })
}

// Round is one run of the two workers.
type Round struct {
	Guarded bool
	Storage string // what holds the account, in words
	Events  []Event
	Final   int64 // the balance in the end
	Tokens  tokenStyle
}

// Title is the round's heading.
func (r Round) Title() string {
	if r.Guarded {
		return "Round two: storage that checks the token"
	}
	return "Round one: storage that takes every write"
}

// Verdict is the judgement of a round, in two lines.
type Verdict struct {
	OK     bool // it went as it must
	Title  string
	Detail string
}

// Verdict judges the round.
func (r Round) Verdict() Verdict {
	if wrong := r.wrong(); wrong != "" {
		title := "Round one did not lose an update as it should have."
		if r.Guarded {
			title = "Round two did not protect the account as it should have."
		}
		return Verdict{Title: title, Detail: "What happened: " + wrong + "."}
	}
	if r.Guarded {
		return Verdict{
			OK:     true,
			Title:  "Round two: the late write was refused, and nothing was lost.",
			Detail: fmt.Sprintf("The balance is %d: %d + A's %d + B's %d. A got 412 and began again.", r.Final, opening, depositA, depositB),
		}
	}
	return Verdict{
		OK:     true,
		Title:  "Round one: an update was lost.",
		Detail: fmt.Sprintf("The balance is %d, but %d + A's %d + B's %d are %d: B's deposit is gone.", r.Final, opening, depositA, depositB, both),
	}
}

// wrong says what did not go as it must, or nothing.
func (r Round) wrong() string {
	if wrong := r.wrongTakeover(); wrong != "" {
		return wrong
	}
	if r.Guarded {
		return r.wrongRefusal()
	}
	return r.wrongLoss()
}

// wrongTakeover looks at what both rounds share: A was stopped between its
// check and its write, its lease ended, B took over with a larger token and
// wrote, and only then A went on.
func (r Round) wrongTakeover() string {
	a, b := r.first(WorkerA, Acquired), r.first(WorkerB, Acquired)
	wrote, stopped, continued := r.first(WorkerB, Wrote), r.first(WorkerA, Stopped), r.first(WorkerA, Continued)
	late := r.lateWrite()
	for _, e := range []struct {
		event *Event
		what  string
	}{
		{a, "A never had the lock"}, {b, "B never had the lock"}, {wrote, "B never wrote"},
		{stopped, "A was not stopped"}, {continued, "A was not continued"}, {late, "A never tried to write"},
	} {
		if e.event == nil {
			return e.what
		}
	}
	switch {
	case late.At < stopped.At || late.At < continued.At:
		return "A wrote before it could be stopped (this machine may be very busy)"
	case b.At < a.At+a.Left:
		return fmt.Sprintf("B had the lock %s before A's lease ended", seconds(a.At+a.Left-b.At))
	case b.Token <= a.Token:
		return fmt.Sprintf("B's token %d is not above A's token %d", b.Token, a.Token)
	case late.At < wrote.At:
		return "A wrote before B"
	}
	return ""
}

func (r Round) wrongLoss() string {
	late := r.lateWrite()
	switch {
	case late.Kind != Wrote:
		return "A's late write was refused by storage that checks nothing"
	case r.Final != opening+depositA:
		return fmt.Sprintf("the balance is %d, and %d was expected", r.Final, opening+depositA)
	}
	return ""
}

func (r Round) wrongRefusal() string {
	late, a, b := r.lateWrite(), r.first(WorkerA, Acquired), r.first(WorkerB, Acquired)
	switch {
	case late.Kind != Refused:
		return "A's late write was accepted"
	case late.Token != a.Token || late.Highest < b.Token:
		return fmt.Sprintf("A was refused token %d after %d, and its token was %d and B's %d", late.Token, late.Highest, a.Token, b.Token)
	case r.Final != both:
		return fmt.Sprintf("the balance is %d, and %d was expected", r.Final, both)
	}
	return ""
}

// first is the first event of a kind, or nil.
func (r Round) first(who Actor, kind Kind) *Event {
	return r.find(func(e Event) bool { return e.Who == who && e.Kind == kind })
}

// lateWrite is A's first attempt to write, or nil.
func (r Round) lateWrite() *Event {
	return r.find(func(e Event) bool { return e.Who == WorkerA && (e.Kind == Wrote || e.Kind == Refused) })
}

func (r Round) find(wanted func(Event) bool) *Event {
	i := slices.IndexFunc(r.Events, wanted)
	if i < 0 {
		return nil
	}
	return &r.Events[i]
}
