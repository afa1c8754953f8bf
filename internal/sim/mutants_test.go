package sim

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
)

var (
	mutantTable = flag.String("sim.mutants", "", "write the table of mutants into this file, between its marks")
	mutantLimit = flag.Duration("sim.limit", 2*time.Minute, "after which a mutant of the table counts as not caught")
	mutantOnly  = flag.String("sim.only", "", "only mutants that match")
)

// TestMutants switches off rules that the simulation misses at once. The
// others, which take longer to be caught, are in TestSoakMutants and in the table.
func TestMutants(t *testing.T) {
	testenv.Long(t, "that the simulation no longer notices a rule that is missing")
	huntAll(t, func(m Mutant) bool { return m.quick })
}

// TestSoakMutants switches off rules that take a little longer to be missed.
func TestSoakMutants(t *testing.T) {
	testenv.Long(t, "that the simulation no longer notices a missing rule that takes some hunting")
	huntAll(t, func(m Mutant) bool { return m.soak })
}

func TestEveryWeaknessIsHunted(t *testing.T) {
	for _, w := range replica.Weaknesses {
		hunted := slices.ContainsFunc(Mutants, func(m Mutant) bool { return m.weak&w.Weakness != 0 })
		if hunted == w.TextOnly {
			t.Errorf("%s: a mutant has it: %t", w.Name, hunted)
		}
	}
}

func huntAll(t *testing.T, which func(Mutant) bool) {
	t.Helper()
	testenv.Computes(t)
	if *mutantTable != "" || *mutantOnly != "" {
		t.Skip("TestMutantTable runs them all")
	}
	const limit = 40_000
	for _, m := range Mutants {
		if which(m) {
			t.Run(m.Name, func(t *testing.T) {
				t.Parallel()
				c := hunt(t, m, cmp.Or(m.nodes, 3), func(c *catch) bool { return c.acquisitions < limit })
				if c.by == nil {
					t.Errorf("not caught in %d acquisitions", c.acquisitions)
				}
				control(t, m, cmp.Or(m.nodes, 3), c.seed, 1) // of the very run that caught it
			})
		}
	}
}

// catch is how a mutant fared.
type catch struct {
	mutant       Mutant
	nodes        int
	acquisitions int
	runs         int
	seed         uint64
	by           *Violation // nil: not caught
	took         time.Duration
	control      int // acquisitions of the same plans with the rule in place
}

func (c catch) String() string {
	text := fmt.Sprintf("rule %s, N=%d: %s: ", c.mutant.Rule, c.nodes, c.mutant.Name)
	if c.by == nil {
		return text + fmt.Sprintf("not caught in %d acquisitions, %d runs", c.acquisitions, c.runs)
	}
	return text + fmt.Sprintf("%d acquisitions, %d runs, %s: %s (seed %d); %d acquisitions with the rule",
		c.acquisitions, c.runs, c.took.Round(time.Millisecond), c.by.Rule, c.seed, c.control)
}

// hunt runs seed after seed until the mutant is caught, while it may continue.
func hunt(t *testing.T, m Mutant, nodes int, goOn func(*catch) bool) (c catch) {
	t.Helper()
	c = catch{mutant: m, nodes: nodes}
	began := time.Now()
	defer func() { c.took = time.Since(began) }()
	for c.seed = 1; goOn(&c); c.seed++ {
		r := Run(t, m.In(NewPlan(c.seed, nodes)))
		c.acquisitions += r.Acquisitions
		c.runs++
		if m.Catches(r.Violation) {
			c.by = r.Violation
			break
		}
	}
	return c
}

// control runs the plans of a mutant from that seed on with every rule in place, and counts
// what was acquired: what catches the mutant must be no fault of its plans.
func control(t *testing.T, m Mutant, nodes int, first uint64, runs int) (acquisitions int) {
	t.Helper()
	for seed := first; seed < first+uint64(runs); seed++ {
		plan := m.control(NewPlan(seed, nodes))
		r := Run(t, plan)
		if m.Catches(r.Violation) {
			tell(t, plan, r.Violation)
		}
		acquisitions += r.Acquisitions
	}
	return acquisitions
}

// TestMutantTable hunts every mutant, at three nodes and at five, and writes
// down how long each went unnoticed.
func TestMutantTable(t *testing.T) {
	if *mutantTable == "" && *mutantOnly == "" {
		t.Skip("no -sim.mutants")
	}
	began, only := time.Now(), regexp.MustCompile(*mutantOnly)
	rows := make([][2]catch, len(Mutants))
	t.Run("hunt", func(t *testing.T) {
		for i, m := range Mutants {
			for k, nodes := range []int{3, 5} {
				if !only.MatchString(fmt.Sprintf("%s %s N=%d", m.Rule, m.Name, nodes)) {
					continue
				}
				t.Run(fmt.Sprintf("%s N=%d", m.Name, nodes), func(t *testing.T) {
					t.Parallel()
					end := time.Now().Add(*mutantLimit)
					rows[i][k] = hunt(t, m, nodes, func(*catch) bool { return time.Now().Before(end) })
					rows[i][k].control = control(t, m, nodes, 1, max(rows[i][k].runs, 20))
					fmt.Fprintln(os.Stderr, rows[i][k])
				})
			}
		}
	})
	if *mutantTable != "" {
		writeTable(t, rows, time.Since(began))
	}
}

const (
	tableMark    = "<!-- mutants: written by make mutants -->\n"
	tableEndMark = "<!-- end of mutants -->\n"
)

func writeTable(t *testing.T, rows [][2]catch, took time.Duration) {
	t.Helper()
	old, err := os.ReadFile(*mutantTable)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(old), tableMark)
	_, foot, ended := strings.Cut(rest, tableEndMark)
	if !ok || !ended {
		t.Fatalf("%s has no place for the table", *mutantTable)
	}
	var table strings.Builder
	table.WriteString("| rule | switched off | N=3: acquisitions | by | N=5: acquisitions | by |\n| --- | --- | ---: | --- | ---: | --- |\n")
	controls := 0
	for _, row := range rows {
		controls += row[0].control + row[1].control
		fmt.Fprintf(&table, "| %s | %s |%s|%s|\n", row[0].mutant.Rule, row[0].mutant.Name, row[0].cells(), row[1].cells())
	}
	fmt.Fprintf(&table, "\nHunted for %s in all, and up to %s each.\nThe same plans with every rule in place: %d acquisitions, %s.\n",
		took.Round(time.Minute), *mutantLimit, controls, verdict(t))
	if err := os.WriteFile(*mutantTable, []byte(head+tableMark+table.String()+tableEndMark+foot), 0o644); err != nil {
		t.Fatal(err)
	}
}

// verdict is what the controls came to.
func verdict(t *testing.T) string {
	if t.Failed() {
		return "**and a violation**"
	}
	return "no violation"
}

func (c catch) cells() string {
	if c.by == nil {
		return fmt.Sprintf(" > %d | **not caught** ", c.acquisitions)
	}
	return fmt.Sprintf(" %d | %s ", c.acquisitions, c.by.Rule)
}
