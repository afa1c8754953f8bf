package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// feature is something about a run that may meet any other feature, and what it may be.
type feature struct {
	name   string
	values []string
}

// row has the value of each feature, by its place.
type row []int

// features are those of which each two values are to meet in a run. A value does to the plan
// what apply says.
var features = []feature{
	{"nodes", []string{"one", "three", "five", "three sets of three"}},
	{"key", []string{"some", "all"}},
	{"wait", []string{"no", "yes", "polls"}},
	{"several", []string{"no", "yes"}},
	{"slots", []string{"no", "yes"}},
	{"minimum hold", []string{"no", "yes"}},
	{"maximum hold", []string{"no", "yes"}},
	{"metadata", []string{"no", "yes"}},
	{"hang-up", []string{"rare", "often"}},
	{"give-up", []string{"never", "cancels"}},
	{"repeat", []string{"same server", "any server"}},
	{"trouble", []string{"none", "a node restarts", "a server crashes", "all data is lost"}},
	{"break", []string{"no", "yes"}},
	{"change of sets", []string{"no", "yes"}},
}

func (r row) is(name, value string) bool {
	i := slices.IndexFunc(features, func(f feature) bool { return f.name == name })
	return features[i].values[r[i]] == value
}

func (r row) String() string {
	text := ""
	for i, value := range r {
		text += fmt.Sprintf("%s: %s; ", features[i].name, features[i].values[value])
	}
	return text
}

// pair is two values of two features.
type pair struct{ feature, value, other, otherValue int }

func (r row) pairs() (pairs []pair) {
	for i := range r {
		for k := i + 1; k < len(r); k++ {
			pairs = append(pairs, pair{i, r[i], k, r[k]})
		}
	}
	return pairs
}

// allPairs are so many rows, always the same, in which each pair of values meets: every row is
// the one of some that are drawn in which most pairs meet that have met the fewest times.
func allPairs(rows int) (table []row) {
	const draws = 200
	rng, met := rand.New(rand.NewPCG(1, 2)), make(map[pair]int)
	for len(table) < rows {
		var best row
		most := -1.0
		for range draws {
			r := make(row, len(features))
			for i, f := range features {
				r[i] = rng.IntN(len(f.values))
			}
			news := 0.0
			for _, p := range r.pairs() {
				news += 1 / float64(1+10*met[p])
			}
			if news > most {
				best, most = r, news
			}
		}
		for _, p := range best.pairs() {
			met[p]++
		}
		table = append(table, best)
	}
	return table
}

const tableRows = 40

// Every pair of values meets in the table.
func TestAllPairsMeet(t *testing.T) {
	met := make(map[pair]bool)
	for _, r := range allPairs(tableRows) {
		for _, p := range r.pairs() {
			met[p] = true
		}
	}
	for i, f := range features {
		for k := i + 1; k < len(features); k++ {
			for v := range f.values {
				for w := range features[k].values {
					if !met[pair{i, v, k, w}] {
						t.Errorf("%s: %s never meets %s: %s", f.name, f.values[v], features[k].name, features[k].values[w])
					}
				}
			}
		}
	}
}

// Each two features meet in a run, and every promise is kept.
func TestAllPairs(t *testing.T) {
	testenv.Long(t, "a rule that two options break together")
	testenv.Computes(t)
	for i, r := range allPairs(tableRows) {
		plan := r.plan(uint64(i + 1))
		result := Run(t, plan)
		if result.Violation != nil {
			t.Errorf("row %d, %s", i+1, r)
			tell(t, plan, result.Violation)
		}
		if result.Acquisitions < 20 {
			t.Errorf("row %d has %d acquisitions only: %s", i+1, result.Acquisitions, r)
		}
	}
}

// plan is the run in which the features of a row meet.
func (r row) plan(seed uint64) Plan {
	nodes := 3
	switch {
	case r.is("nodes", "one"):
		nodes = 1
	case r.is("nodes", "five"):
		nodes = 5
	}
	p := NewPlan(seed, nodes)
	p.perfect()
	p.Perfect = r.is("trouble", "none") && r.is("change of sets", "no")
	p.New, p.Disasters, p.Faults, p.Servers, p.Clients, p.Resources, p.Forget = false, true, nil, 3, 6, 4, 0
	p.MaxTTL, p.Length, p.Wait, p.Pause = 2*time.Second, 16*time.Second, 4*time.Second, 20*time.Millisecond
	p.Rates, p.Scene = make([]float64, nodes), "table"
	r.ask(&p)
	p.spreadOver(r.is("nodes", "three sets of three"), r.is("change of sets", "yes"))
	r.trouble(&p)
	p.sortFaults()
	return p
}

// ask has the clients ask for what the row says.
func (r row) ask(p *Plan) {
	yes := func(name string) bool { return r.is(name, "yes") }
	p.Stubborn, p.Queues, p.Polls = r.is("key", "all"), !r.is("wait", "no"), r.is("wait", "polls")
	p.MinHold, p.MaxHold = yes("minimum hold"), yes("maximum hold")
	if yes("several") {
		p.Several = 0.4
	}
	if yes("slots") {
		p.Slots = 2
	}
	if yes("metadata") {
		p.Metadata = []byte(`{"job":[1,"two"]}`)
	}
	if r.is("hang-up", "often") {
		p.HangUp = 0.3
	}
	if p.Cancels = 0; r.is("give-up", "cancels") {
		p.Cancels = 1
	}
	if yes("break") {
		p.Breaks = 0.03
	}
	p.Sticky = r.is("repeat", "same server")
}

// spreadOver spreads the resources over sets of nodes, and changes these.
func (p *Plan) spreadOver(several, changes bool) {
	p.Sets = 1
	if several {
		p.Sets = 3
	}
	if changes {
		last := p.Sets
		p.Sets++
		present := make([]int, last)
		for i := range present {
			present[i] = i
		}
		p.Maps = [][]int{present, append(slices.Clone(present), last)}
		for server := range p.Servers {
			p.Faults = append(p.Faults, Fault{At: 6*time.Second + time.Duration(server)*50*time.Millisecond, Kind: Configure, Server: server})
		}
		p.Faults = append(p.Faults, Fault{At: 9 * time.Second, Kind: Apply})
	}
	p.Rates = make([]float64, p.Nodes*p.Sets)
}

// trouble brings in the faults of the row.
func (r row) trouble(p *Plan) {
	for _, at := range []time.Duration{4 * time.Second, 11 * time.Second} {
		switch {
		case r.is("trouble", "a node restarts"):
			p.fault(at, Restart, 0, 0)
		case r.is("trouble", "a server crashes"):
			p.Faults = append(p.Faults, Fault{At: at, Kind: Crash, Server: 1, For: time.Second})
		case r.is("trouble", "all data is lost"):
			for n := range p.Nodes {
				p.fault(at+time.Duration(n)*time.Millisecond, Lose, 0, n)
			}
		}
	}
}
