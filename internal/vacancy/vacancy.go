// Package vacancy finds out from outside when a lock service kept a resource from its waiters.
//
// A resource with a waiter must have a holder. Otherwise it is vacant: idle if it is free, and orphaned if it is locked
// but no living client believes that it holds the lock. Two successive looks at the lock that show the same state bound
// a vacancy. Who waited and who worked meanwhile is known to the caller only. The time counts from the end of the first
// look to the beginning of the next.
//
// The simulation has a check of its own, which sees inside the servers.
package vacancy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The kinds of vacancies.
const (
	Idle     = "idle"
	Orphaned = "orphaned"
)

// Worth is how long a vacancy lasts before it counts against the service: a hand-over takes a moment, and more on a
// busy machine.
const Worth = 300 * time.Millisecond

// apart is the maximum time between two looks that are compared.
const apart = time.Second

// Look is a response about a lock, produced at some moment between From and To. Both count from any moment that is the
// same for all looks and for the caller's history.
type Look struct {
	From, To time.Duration
	Blind    bool // no quorum voted then, or no server responded
	Held     bool
	Label    string // tells the lease that holds the resource from others; "" if it is free
	Token    int64
	Waiters  int
}

// Kind is the kind of a vacancy that the look shows.
func (l *Look) Kind() string {
	if l.Held {
		return Orphaned
	}
	return Idle
}

// same reports that the look shows no change since an earlier look, and came soon enough after it.
func (l *Look) same(earlier *Look) bool {
	return !l.Blind && !earlier.Blind && l.Held == earlier.Held && l.Label == earlier.Label &&
		l.From > earlier.To && l.From-earlier.To <= apart
}

// Cause is the kind and cause of vacant time.
type Cause struct {
	Kind, Why string
	// Excused means that the documentation allows this vacancy.
	Excused bool
}

func (c Cause) String() string {
	text := c.Kind + ", " + c.Why
	if c.Excused {
		text += " (allowed)"
	}
	return text
}

// Run is an uninterrupted vacancy with the same lock, or without one, and with the same cause.
type Run struct {
	Cause
	Label    string
	Token    int64
	From, To time.Duration
	Counted  time.Duration
}

// Find returns the vacancies that successive looks show, in order. cause is asked about each two of them that show the
// same state, and reports whether the resource was vacant between them, and why.
func Find(looks []Look, cause func(a, b *Look) (Cause, bool)) (runs []Run) {
	var last *Run
	for i := 1; i < len(looks); i++ {
		a, b := &looks[i-1], &looks[i]
		var why Cause
		vacant := b.same(a)
		if vacant {
			why, vacant = cause(a, b)
		}
		if !vacant {
			last = nil
			continue
		}
		if last == nil || last.Cause != why || last.Label != a.Label {
			runs = append(runs, Run{Cause: why, Label: a.Label, Token: a.Token, From: a.To})
			last = &runs[len(runs)-1]
		}
		last.To = b.From
		last.Counted += b.From - a.To
	}
	return runs
}

// Sums adds up vacant time by cause.
type Sums map[Cause]time.Duration

// Count adds the time of some vacancies.
func (s Sums) Count(runs []Run) {
	for _, r := range runs {
		s[r.Cause] += r.Counted
	}
}

// Add adds other sums.
func (s Sums) Add(other Sums) {
	for why, d := range other {
		s[why] += d
	}
}

// Of adds up all idle or orphaned time, excused or not.
func (s Sums) Of(kind string, excused bool) (sum time.Duration) {
	for why, d := range s {
		if why.Kind == kind && why.Excused == excused {
			sum += d
		}
	}
	return sum
}

// String lists the sums, and then the causes.
func (s Sums) String() string {
	tenths := func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
	var b strings.Builder
	fmt.Fprintf(&b, "idle %s, orphaned %s, allowed %s and %s",
		tenths(s.Of(Idle, false)), tenths(s.Of(Orphaned, false)), tenths(s.Of(Idle, true)), tenths(s.Of(Orphaned, true)))
	order := func(a, b Cause) int { return cmp.Compare(a.String(), b.String()) }
	for _, why := range slices.SortedFunc(maps.Keys(s), order) {
		if s[why] >= Worth {
			fmt.Fprintf(&b, "; %s: %s", why, tenths(s[why]))
		}
	}
	return b.String()
}
