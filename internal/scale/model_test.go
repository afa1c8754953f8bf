package scale

import (
	"math"
	"testing"
	"time"
)

// site is a deployment in one place, on machines of their own.
func site(servers, sets, nodes int) Deployment {
	return Deployment{
		Servers: servers, Sets: sets, Nodes: nodes, ServerCores: 2, Trips: []time.Duration{time.Millisecond},
		ClientTrip: time.Millisecond, NodeTimeout: 50 * time.Millisecond, TTL: 30 * time.Second, Leases: 1000,
	}
}

// near fails unless got is want, but for a share of it.
func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*math.Abs(want) {
		t.Errorf("%s: %g, want %g", what, got, want)
	}
}

func TestOneProcessorIsMM1(t *testing.T) {
	for _, use := range []float64{0.1, 0.5, 0.9} {
		near(t, "wait", waitFor(1, use, 0.001), 0.001*use/(1-use), 1e-9)
	}
	// Erlang's formula for two processors: use²/(1-use²) of a visit.
	for _, use := range []float64{0.5, 0.8, 0.95} {
		near(t, "wait of two", waitFor(2, use, 1), use*use/(1-use*use), 0.1)
	}
	if w := waitFor(2, 1, 1); !math.IsInf(w, 1) {
		t.Errorf("a full processor: %g", w)
	}
}

// A batch takes in what arrives during its cycle, and at least one.
func TestBatchSize(t *testing.T) {
	near(t, "without load", batchSize(0, 0.001, 1e-6), 1, 1e-6)
	near(t, "at 100,000 a second", batchSize(1e5, 0.001, 5e-6), 100/(1-0.5), 1e-6) // b = l(base + each·b)
	near(t, "at one in a cycle", batchSize(1000, 0.001, 0), 1+math.Exp(-1), 1e-6)
	if b := batchSize(1e6, 0.001, 1e-6); !math.IsInf(b, 1) {
		t.Errorf("more than the node can do: batches of %g", b)
	}
}

func TestQuorumOfDelays(t *testing.T) {
	delays := []answer{{Least: 0.005}, {Least: 0.001}, {Least: 0.080}, {Least: 0.002}, {Least: 0.003}}
	for m, want := range []float64{1: 0.001, 2: 0.002, 3: 0.003, 4: 0.005, 5: 0.080} {
		if m > 0 {
			near(t, "fixed delays", quorumOf(m, delays).Mean, want, 1e-3)
		}
	}
	// The m-th of n exponential times is 1/n + … + 1/(n-m+1) of one, and so are the squares its variance.
	waits := []answer{{Wait: 1}, {Wait: 1}, {Wait: 1}}
	two := quorumOf(2, waits)
	near(t, "mean of 2 of 3", two.Mean, 1./3+1./2, 0.01)
	near(t, "variance of 2 of 3", two.Var, 1./9+1./4, 0.02)
	// The second of three that are anywhere in a cycle is in the middle.
	cycles := []answer{{Cycle: 1, Busy: 1}, {Cycle: 1, Busy: 1}, {Cycle: 1, Busy: 1}}
	near(t, "2 of 3 in a cycle", quorumOf(2, cycles).Mean, 0.5, 0.01)
	near(t, "its variance", quorumOf(2, cycles).Var, 1./20, 0.02)
}

func TestP99(t *testing.T) {
	near(t, "exponential", exponential(1).p99(), math.Log(100), 0.01)
	near(t, "without variance", fixed(3).p99(), 3, 1e-9)
	near(t, "four exponential", spread{0, 4, 4}.p99(), 10.045, 0.01) // gamma of shape 4
}

// Without round trips and batches a server or a node is a queue that is full at 1/cost.
func TestSaturationIsOneByTheCostOfTheBottleneck(t *testing.T) {
	const us = time.Microsecond
	d := site(1, 1, 1)
	d.NodeTimeout = time.Second
	server := Capacity(d, Costs{ServerPair: 200 * us, NodeBatch: Work{Op: us}})
	near(t, "server with two cores", server.Pairs, 2/200e-6, 0.02)
	if server.First != ServerCPU {
		t.Errorf("the first bottleneck is %s", server.First)
	}
	d.Servers = 50 // so that batches have one operation at 50 · 100 pairs a second
	d.Trips = []time.Duration{0}
	node := Capacity(d, Costs{ServerPair: us, NodeBatch: Work{Op: 100 * us}})
	near(t, "node", node.Pairs, 1/(2*100e-6), 0.02)
	if node.First != NodeCPU {
		t.Errorf("the first bottleneck is %s", node.First)
	}
	d = site(1, 1, 5)
	d.Trips, d.NodeTimeout = []time.Duration{80 * time.Millisecond}, 800*time.Millisecond
	far := Capacity(d, Costs{ServerPair: us, NodeBatch: Work{Op: us / 10}})
	near(t, "places in flight over 1.5 round trips", far.Pairs, MaxInFlight/0.120, 0.02)
	if far.First != InFlight {
		t.Errorf("the first bottleneck is %s", far.First)
	}
}

// One caller never waits: its pairs take two client trips, two round trips and the work.
func TestOneCaller(t *testing.T) {
	c := Measured()
	c.ServerWatch, c.NodeWatch, c.LeakPage = 0, 0, 0
	p := Closed(site(1, 1, 1), c, 1)
	work := c.ServerPair.Seconds() + 2*(c.ServerBatch.Seconds()+c.NodeBatch.Of(1))
	near(t, "pairs", p.Pairs, 1/(0.004+work), 0.02)
	near(t, "batch", p.Batch, 1, 1e-6)
}

// Callers that are answered together ask again together, one cycle later: their
// operations take two, half of them in each batch.
func TestCallersOfABatchStayTogether(t *testing.T) {
	d := site(1, 1, 1)
	d.Trips, d.ClientTrip, d.NodeTimeout = []time.Duration{40 * time.Millisecond}, 0, time.Second
	p := Closed(d, Costs{ServerPair: time.Microsecond, NodeBatch: Work{Op: time.Nanosecond}}, 64)
	near(t, "pairs", p.Pairs, 64/(4*0.040), 0.02)
	near(t, "batch", p.Batch, 32, 0.05)
}

// On one machine all work adds up: one caller waits for each part in turn, and many fill it.
func TestSharedMachine(t *testing.T) {
	d := site(1, 1, 1)
	d.Shared = 2
	const us = time.Microsecond
	c := Costs{ClientPair: Work{Fixed: 20 * us, Op: 30 * us}, ServerPair: 90 * us, ServerBatch: 40 * us, NodeBatch: Work{Fixed: 50 * us, Op: 5 * us}, LocalTrip: 60 * us}
	d.ClientTrip = 0
	// Two requests: what a pair has once, and what each of its operations has.
	alone := 30e-6 + 90e-6 + 2*(20e-6+40e-6+55e-6+60e-6)
	one := Closed(d, c, 1)
	near(t, "pairs of one caller", one.Pairs, 1/alone, 0.01)
	many := Closed(d, c, 200)
	near(t, "the machine's use by many", many.ServerUse, many.Pairs/2*(30e-6+90e-6+10e-6+2/many.Batch*(20e-6+40e-6+50e-6)), 0.01)
	near(t, "callers under way", 2*many.Pairs*many.Acquire, 200, 0.01) // none waits for a place in flight
	if many.First != SharedCPU {
		t.Errorf("the first bottleneck is %s", many.First)
	}
}

// On a shared machine a request waits twice, and its batch twice; else a server's request once.
func TestWaitsForProcessors(t *testing.T) {
	s := state{load: load{Deployment: site(1, 1, 1)}, server: 0.001, batch: 1}
	s.ClientTrip = 0
	near(t, "apart", s.around().Mean, 0.001, 1e-9)
	s.Shared = 2
	near(t, "shared", s.around().Mean, 0.004, 1e-9)
}

// Little's law holds for every number of callers: what is not in the nodes and servers waits for a place.
func TestCallersAddUp(t *testing.T) {
	for _, callers := range []int{1, 16, 256, 4096} {
		p := Closed(site(2, 1, 5), Measured(), callers)
		release := float64(callers)/p.Pairs - p.Acquire
		if release <= 0 || release > p.Acquire*1.001 {
			t.Errorf("%d callers: %g pairs a second, an acquire takes %g s and a release %g s", callers, p.Pairs, p.Acquire, release)
		}
	}
}

func TestMoreIsMore(t *testing.T) {
	c := Measured()
	rising := func(what string, of func(i int) float64) {
		t.Helper()
		for i := range 6 {
			if a, b := of(i), of(i+1); b < a*(1-1e-4) {
				t.Errorf("%s: step %d falls from %g to %g", what, i, a, b)
			}
		}
	}
	rising("pairs with callers", func(i int) float64 { return Closed(site(2, 2, 3), c, 1<<(2*i)).Pairs })
	rising("time with callers", func(i int) float64 { return Closed(site(2, 2, 3), c, 1<<(2*i)).Acquire })
	rising("capacity with sets", func(i int) float64 { return Capacity(site(100, 1+i, 5), c).Pairs })
	rising("time with load", func(i int) float64 { p, _ := At(site(4, 2, 5), c, float64(1+i)*1000); return p.Acquire })
	rising("p99 with load", func(i int) float64 { p, _ := At(site(4, 2, 5), c, float64(1+i)*8000); return p.P99 })
	rising("batches with load", func(i int) float64 { p, _ := At(site(4, 2, 5), c, float64(1+i)*1000); return p.Batch })
	rising("p99 with distance", func(i int) float64 {
		d := site(4, 2, 5)
		d.Trips, d.NodeTimeout = []time.Duration{time.Millisecond, time.Duration(1+8*i) * time.Millisecond}, time.Second
		p, _ := At(d, c, 1000)
		return p.P99
	})
	rising("node's work with servers", func(i int) float64 { return IdleOf(site(1+100*i, 1, 5), c).Node })
	rising("memory with leases", func(i int) float64 {
		d := site(1, 1, 5)
		d.Leases = i * 1_000_000
		return MemoryOf(d, c).Node
	})
}

// A node down costs a quorum its choice: the slower of two instead of the second of three.
func TestNodeDown(t *testing.T) {
	d := site(4, 1, 3)
	d.Trips = []time.Duration{time.Millisecond, time.Millisecond, 20 * time.Millisecond}
	all, ok1 := At(d, Measured(), 1000)
	d.Down = 1
	down, ok2 := At(d, Measured(), 1000)
	if !ok1 || !ok2 || all.Acquire > 0.010 || down.Acquire < 0.020 {
		t.Errorf("an acquire takes %g s, and with the near node down %g s", all.Acquire, down.Acquire)
	}
	d.Down = 2
	if d.Check() == nil {
		t.Error("a set without a quorum passes")
	}
}

func TestBoundsOfMemoryAndEvents(t *testing.T) {
	c := Costs{NodeLease: 300, NodeCounter: 100, NodeServer: 1000, ServerBase: 30e6, ServerNode: 1e6, ServerLease: 800, Publish: 20_000, Deliver: 5000}
	d := site(10, 4, 5)
	d.Leases, d.Counters, d.Readers = 10_000_000, 1_000_000, 2
	m := MemoryOf(d, c)
	near(t, "node", m.Node, 10e6/4*300+1e6/4*100+10*1000, 1e-9)
	near(t, "server", m.Server, 30e6+20e6+MaxFollowed*800, 1e-9)
	e := EventsOf(d, c, 100_000)
	near(t, "passed on", e.Passed, 10*512*10, 1e-9)
	near(t, "left out", e.Lost, 100_000-51_200, 1e-9)
	near(t, "the first set's nodes", e.Node, 100*(20e-6+2*5e-6)+2*(20e-6+10*5e-6), 1e-9)
	d.Readers = 0
	if e := EventsOf(d, c, 100_000); e != (Events{}) {
		t.Errorf("without readers: %+v", e)
	}
}

func TestFailures(t *testing.T) {
	list := Failures(site(3, 4, 5), time.Minute)
	if list[0].Stops != "none" || list[1].Stops != "1/4" || list[2].For != "1m1.1s after the last needed one is back" {
		t.Errorf("%+v", list[:3])
	}
	for _, f := range Failures(site(1, 1, 1), time.Minute) {
		if f.From == "" || f.Stops == "" || f.For == "" {
			t.Errorf("%+v", f)
		}
	}
}
