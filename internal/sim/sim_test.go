package sim

import (
	"flag"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

var (
	seeds   = flag.Uint64("sim.seeds", 4, "how many seeds to simulate; 0: as many as there is time for")
	budget  = flag.Duration("sim.budget", 0, "how long to simulate; 0: no limit")
	start   = flag.Uint64("sim.start", 1, "the first seed; 0: one that follows the clock")
	workers = flag.Int("sim.workers", 2, "how many simulations at once")
	seed    = flag.Uint64("sim.seed", 0, "run this seed alone, with -sim.nodes, and print its trace")
	nodes   = flag.Int("sim.nodes", 3, "of the seed")
	repeats = flag.Uint64("sim.repeats", 4, "how many seeds to run twice, to compare")
	lines   = flag.Int("sim.lines", 200, "how many lines of a trace to print, the last ones")
)

// A run allocates much and keeps little, so that collecting less often is faster.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// TestSimulation runs seed after seed, at three nodes and at five, and finds
// nothing wrong. Without flags these are the same seeds in every run; make explore
// draws others.
func TestSimulation(t *testing.T) {
	if *seed != 0 {
		t.Skip("TestSeed runs one seed")
	}
	simulate(t, *seeds)
}

// TestManySeeds is TestSimulation for some 70,000 acquisitions.
func TestManySeeds(t *testing.T) {
	testenv.Long(t, "a violation that one in fifty seeds has")
	testenv.Computes(t)
	simulate(t, 50)
}

// simulate runs so many seeds; 0 means as many as there is time for.
func simulate(t *testing.T, seeds uint64) {
	t.Helper()
	c := &campaign{next: *start, began: time.Now()}
	if c.next == 0 {
		c.next = uint64(time.Now().Unix()) << 20
	}
	c.first = c.next
	if c.end = math.MaxUint64; seeds > 0 {
		c.end = c.first + seeds
	}
	stop := make(chan struct{})
	if *budget > 0 {
		time.AfterFunc(*budget, func() { close(stop) })
	}
	done := make(chan struct{})
	var progress sync.WaitGroup
	progress.Go(func() { c.report(done) })
	t.Run("seeds", func(t *testing.T) {
		for range *workers {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				c.work(t, stop)
			})
		}
	})
	close(done)
	progress.Wait()
	t.Log(c)
	const least = 100 // of a run, on average; in some nothing can be had
	if runs, all, extended := c.runs.Load(), c.acquisitions.Load(), c.extensions.Load(); all < least*runs || extended < least*runs/10 {
		t.Errorf("only %d acquisitions and %d extensions in %d runs", all, extended, runs)
	}
}

// campaign is a run over many seeds.
type campaign struct {
	began        time.Time
	mu           sync.Mutex
	first, next  uint64 // seeds: where it began, and the first that is not taken
	end          uint64 // the first seed that is not simulated
	runs         atomic.Int64
	acquisitions atomic.Int64
	atFive       atomic.Int64 // of the acquisitions, those over five nodes
	extensions   atomic.Int64
	calls        atomic.Int64
	violations   atomic.Int64
	vacancies    Vacancies // guarded by mu
}

func (c *campaign) String() string {
	took := time.Since(c.began)
	c.mu.Lock()
	last, vacancies := c.next-1, c.vacancies
	c.mu.Unlock()
	all := c.acquisitions.Load()
	return fmt.Sprintf("seeds %d to %d: %d acquisitions (N=3: %d, N=5: %d), %d extensions, %d calls in %d runs over %s (%.0f acquisitions a second): %d violations; resources that were waited for had %s",
		c.first, last, all, all-c.atFive.Load(), c.atFive.Load(), c.extensions.Load(), c.calls.Load(), c.runs.Load(),
		took.Round(time.Second), float64(all)/took.Seconds(), c.violations.Load(), vacancies)
}

// report prints progress, with -v.
func (c *campaign) report(done <-chan struct{}) {
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			if testing.Verbose() {
				fmt.Fprintln(os.Stderr, c)
			}
		}
	}
}

func (c *campaign) work(t *testing.T, stop <-chan struct{}) {
	t.Helper()
	for {
		select {
		case <-stop:
			return
		default:
		}
		one, more := c.take()
		if !more {
			return
		}
		for _, n := range []int{3, 5} {
			c.one(t, one, n)
		}
	}
}

// take is the next seed, until all are taken.
func (c *campaign) take() (seed uint64, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == c.end {
		return 0, false
	}
	c.next++
	return c.next - 1, true
}

func (c *campaign) one(t *testing.T, seed uint64, nodes int) {
	t.Helper()
	plan := DrawPlan(seed, nodes)
	plan.DrawOptions()
	r := Run(t, plan)
	c.runs.Add(1)
	c.acquisitions.Add(int64(r.Acquisitions))
	if nodes == 5 {
		c.atFive.Add(int64(r.Acquisitions))
	}
	c.extensions.Add(int64(r.Extensions))
	c.calls.Add(int64(r.Calls))
	c.mu.Lock()
	c.vacancies.addAll(r.Vacancies)
	c.mu.Unlock()
	if r.Violation != nil {
		c.violations.Add(1)
		tell(t, plan, r.Violation)
	}
}

// tell shrinks what failed and prints what is left of it.
func tell(t *testing.T, plan Plan, v *Violation) {
	t.Helper()
	small := Shrink(t, plan, v.Rule, time.Now().Add(30*time.Second))
	r := Trace(t, small)
	t.Errorf("%s\nRun it again: go test ./internal/sim -run TestSeed -v -sim.seed=%d -sim.nodes=%d\nThe smallest plan that fails alike: %s\n%s\n%s",
		v, plan.Seed, plan.Nodes, &small, r.Violation, tail(r.Trace))
}

func tail(trace []string) string { return strings.Join(trace[max(0, len(trace)-*lines):], "\n") }

// TestSeed runs one seed and prints its trace.
func TestSeed(t *testing.T) {
	if *seed == 0 {
		t.Skip("no -sim.seed")
	}
	plan := DrawPlan(*seed, *nodes)
	plan.DrawOptions()
	r := Trace(t, plan)
	t.Logf("%s\n%s", &plan, tail(r.Trace))
	if r.Violation != nil {
		tell(t, plan, r.Violation)
	}
}

// A node whose clock jumps loses its admission and comes back (rule 22), while
// the leases of the others stay.
func TestJumpsAreMinded(t *testing.T) {
	for _, n := range []int{3, 5} {
		plan := NewPlan(1, n)
		plan.quiet()
		plan.Wild, plan.Clocks, plan.Resources = true, true, 3
		plan.Faults = nil
		for k := range 4 {
			plan.fault(time.Duration(2*k+1)*time.Second, Jump, 3*plan.MaxTTL, k%n)
		}
		r := Trace(t, plan)
		expelled := 0
		for _, line := range r.Trace {
			if strings.Contains(line, ": expel ") && strings.HasSuffix(line, "err:<nil>}") {
				expelled++
			}
		}
		if expelled != 4 || r.Violation != nil || r.Acquisitions < 100 {
			t.Errorf("N=%d: %d of 4 jumps cost an admission, %d acquisitions, violation %v", n, expelled, r.Acquisitions, r.Violation)
		}
	}
}

// One seed is one run, exactly; also where requests wait for several slots at once.
func TestRunsRepeat(t *testing.T) {
	testenv.Computes(t)
	runsRepeat(t, 1)
}

func TestManyRunsRepeat(t *testing.T) {
	testenv.Long(t, "a run that differs from its repetition, as one in many does")
	testenv.Computes(t)
	runsRepeat(t, *repeats)
}

func runsRepeat(t *testing.T, seeds uint64) {
	t.Helper()
	for one := range seeds {
		for _, n := range []int{3, 5} {
			drawn := DrawPlan(one+1000, n)
			waiting := drawn
			slotted(&waiting)
			drawn.DrawOptions()
			for _, plan := range []Plan{drawn, waiting} {
				plan.Length /= 4
				a, b := Trace(t, plan), Trace(t, plan)
				if a.Hash != b.Hash || a.Calls != b.Calls {
					t.Errorf("seed %d, %d nodes: two runs differ: %d calls, hash %x; %d calls, hash %x",
						plan.Seed, n, a.Calls, a.Hash, b.Calls, b.Hash)
					firstDifference(t, a.Trace, b.Trace)
				}
			}
		}
	}
}

func firstDifference(t *testing.T, a, b []string) {
	t.Helper()
	const around = 20 // lines: the cause is often some events before
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Logf("the first difference, in line %d of %d and %d:\n%s\n\nand\n%s\nafter\n%s", i, len(a), len(b),
				strings.Join(a[i:min(len(a), i+around)], "\n"), strings.Join(b[i:min(len(b), i+around)], "\n"), strings.Join(a[max(0, i-around):i], "\n"))
			return
		}
	}
}

// Servers whose lists differ serve in the scenes that are there for it: what one of them grants
// is not refused by accident.
func TestServersAreUnlike(t *testing.T) {
	testenv.Computes(t)
	t.Parallel()
	for one := range uint64(8) {
		plan := NewPlan(one+1, 3)
		unlike(&plan)
		r := Trace(t, plan)
		if r.Violation != nil {
			tell(t, plan, r.Violation)
		}
		t.Logf("%v: %d acquisitions", plan.Lists, r.Acquisitions)
		if r.Acquisitions < 50 {
			t.Errorf("%v: %d acquisitions", plan.Lists, r.Acquisitions)
		}
	}
}

// Node sets change in the scenes that are there for it: what they try does succeed.
func TestSetsGrow(t *testing.T) {
	testenv.Computes(t)
	t.Parallel()
	for one := range uint64(4) {
		plan := NewPlan(one+1, 3)
		growing(&plan)
		r := Trace(t, plan)
		if r.Violation != nil {
			tell(t, plan, r.Violation)
		}
		changes := 0
		for _, line := range r.Trace {
			if strings.Contains(line, "has changed the sets") && strings.HasSuffix(line, "<nil>") {
				changes++
			}
		}
		if changes < 1 || r.Acquisitions < 100 || r.Extensions < 10 {
			t.Errorf("%d changes, %d acquisitions, %d extensions", changes, r.Acquisitions, r.Extensions)
		}
		t.Logf("%d changes, %d acquisitions, %d extensions", changes, r.Acquisitions, r.Extensions)
	}
}
