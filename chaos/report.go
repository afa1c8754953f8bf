package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/internal/vacancy"
)

// Report sums up many rounds, fault by fault.
type Report struct {
	Seed     uint64
	Began    time.Time
	NoClocks error
	lines    []*reportLine
	vacant   vacancy.Sums // the vacancies of all rounds
}

type reportLine struct {
	fault     string
	rounds    int
	sum       Result
	recovered time.Duration // the longest
}

// Add counts a round. A round with several faults counts for each of them.
func (r *Report) Add(result Result) {
	if r.vacant == nil {
		r.vacant = vacancy.Sums{}
	}
	r.vacant.Add(result.Vacant)
	for _, fault := range result.Faults {
		line := r.line(fault)
		line.rounds++
		line.sum.Acquisitions += result.Acquisitions
		line.sum.Writes += result.Writes
		line.sum.Stale += result.Stale
		line.sum.Unanswered += result.Unanswered
		line.sum.Away += result.Away
		line.sum.Vacant.Add(result.Vacant)
		line.sum.Violations = append(line.sum.Violations, result.Violations...)
		line.recovered = max(line.recovered, result.Recovered)
	}
}

func (r *Report) line(fault string) *reportLine {
	i := slices.IndexFunc(r.lines, func(l *reportLine) bool { return l.fault == fault })
	if i < 0 {
		r.lines = append(r.lines, &reportLine{fault: fault, sum: Result{Vacant: vacancy.Sums{}}})
		i = len(r.lines) - 1
	}
	return r.lines[i]
}

// Markdown is the report as a table.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Seed %d, %s. A round with several faults counts for each of them.\n\n", r.Seed, time.Since(r.Began).Round(time.Second))
	if r.NoClocks != nil {
		fmt.Fprintf(&b, "**NO CLOCK WAS SHIFTED: %v**\n\n", r.NoClocks)
	}
	b.WriteString("| fault | rounds | leases | writes acknowledged | stale refused | unanswered | without service, a round | service back after, at most | idle | orphaned | allowed beside | violations |\n")
	b.WriteString("| --- |" + strings.Repeat(" ---: |", 11) + "\n") //nolint:mnd // as above
	for _, l := range r.lines {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %s | %s | %s | %s | %s | %d |\n", l.fault, l.rounds, l.sum.Acquisitions, l.sum.Writes,
			l.sum.Stale, l.sum.Unanswered, tenths(l.sum.Away/time.Duration(l.rounds)), tenths(l.recovered),
			tenths(l.sum.Vacant.Of(vacancy.Idle, false)), tenths(l.sum.Vacant.Of(vacancy.Orphaned, false)),
			tenths(l.sum.Vacant.Of(vacancy.Idle, true)+l.sum.Vacant.Of(vacancy.Orphaned, true)), len(l.sum.Violations))
	}
	fmt.Fprintf(&b, "\nWhile somebody waited for them, resources were: %s\n", r.vacant)
	for _, l := range r.lines {
		for _, v := range l.sum.Violations {
			fmt.Fprintf(&b, "\n- %s: %s", l.fault, v)
		}
	}
	return b.String()
}

func tenths(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
