package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Plan is everything about a run that a seed decides. It can be reduced by hand or by Shrink and still be run.
type Plan struct {
	Seed       uint64
	Nodes      int // number of nodes in each set
	Sets       int // number of node sets, over which the resources are spread
	Servers    int
	Clients    int
	Resources  int
	MaxOps     int // maximum number of calls of each client
	Length     time.Duration
	MaxTTL     time.Duration
	CounterTTL time.Duration
	Watch      time.Duration
	Delay      time.Duration // average delay of a message
	Loss       float64       // share of messages that are lost
	Double     float64       // share of requests that are delivered twice
	Late       float64       // share of messages that are delayed for long
	Keep       float64       // share of the leases of the first Keepers clients that they keep for several TTLs
	Dream      float64       // share of the second client's pauses that last as long as a lease
	Forget     float64       // share of a client's uses of a lease at which it forgets the lease
	Reuse      float64       // share of releases under an idempotency key after which the key is used again
	Several    float64       // share of acquires that are for several resources at once
	Doubts     float64       // share of extends that find the lease ended after which the client continues to extend
	Breaks     float64       // share of calls that are breaks by an operator
	Cancels    float64       // share of acquires under a key whose client hung up that are cancelled
	Slots      int           // slots of a resource: half of the acquires of one resource request one of that many slots, some fewer; 0: none
	Wait       time.Duration // longest wait in a queue; 0: twice the longest TTL
	Seen       time.Duration // time by which a clock's jump is seen, unless it is too small; 0: unknown
	Old        int           // percentage of calls about a lease from long ago
	Extend     int           // percentage of calls that are extends
	MinHold    bool          // resources stay locked for up to half the longest TTL
	MaxHold    bool          // leases are extended for up to twice the longest TTL
	Polls      bool          // requests that wait under a key do so as a series of polls
	Returns    bool          // the client of a poll always makes the next one, and soon; half of the requests have a key
	Sticky     bool          // each client uses one server
	Eager      bool          // refused clients try again at once
	HangUp     float64       // share of acquires at which the client hangs up; 0: a tenth
	Metadata   []byte        // metadata of every lease
	Keepers    int           // how many clients may keep their leases
	Tardy      []Tardy       // kinds of messages that the network delays
	Pause      time.Duration // longest pause between a client's calls, if longer than usual
	New        bool          // the operator declares the cluster new

	NodeTimeout time.Duration
	Options     Options

	// Wild: clocks jump and locks expire early. Then exclusion is not promised.
	Wild bool
	// Disasters: more than a minority may lose its state at once.
	Disasters bool
	// Tidy: one server, which never crashes, and requests that keep their order and are not doubled. Then no
	// lock may remain for as long as its TTL.
	Tidy bool
	// Twins: two clients have the same idempotency keys, and use one at the same time.
	Twins bool
	// Stubborn: clients take every lease under an idempotency key, and repeat the request again and again.
	Stubborn bool
	// Clocks: servers read the nodes' clocks, and expel nodes whose clock jumps (rule 22).
	Clocks bool
	// Queues: clients wait in the queue.
	Queues bool
	// Perfect: no message is lost, late or doubled and no server fails. Then a node set with a sound quorum
	// responds, and no client waits for a free resource.
	Perfect bool
	// Slow: the first server's clock runs slowTimes slower than the others', so
	// that its acquisitions outlast the wait of a node that restarted. Then
	// exclusion is not promised either.
	Slow bool

	Maps   [][]int   // lists of node sets, by number, one per map; nil: all sets, all the time
	Lists  [][]int   // by server: the node sets with which it is configured; nil: all. The run ends without a calm
	Scene  string    // name of its scene, if it has one
	Rates  []float64 // by node: how much faster its clock runs
	Faults []Fault
	Mutant Mutant
}

// Tardy is a kind of request that the network delays: with the given chance it takes this long, or (Again)
// arrives a second time after this long.
type Tardy struct {
	Kind     string // one of kinds
	Chance   float64
	Again    bool
	Server   int // only of the server of that number, from 1; 0: of all
	Min, Max time.Duration
}

// Fault is something that happens to a node, a server or a link.
type Fault struct {
	At     time.Duration
	Kind   FaultKind
	Node   int
	Server int
	For    time.Duration
}

// FaultKind is the kind of a fault.
type FaultKind int

// The faults. Those up to Demote end a node's admission.
const (
	Restart    FaultKind = iota // the node restarts with the data that it kept
	Lose                        // the node restarts without data
	Flush                       // all data are deleted, without a restart
	Rollback                    // restart with an older state
	Promote                     // an empty or older replica takes over, and the node fails back later
	Demote                      // it is a replica for a while
	Stop                        // it is down for a while, and then restarts with what it kept
	Save                        // remembers a state for a rollback
	Freeze                      // requests wait
	Drop                        // its counters expire
	Cut                         // a link, both ways
	CutTo                       // requests are lost
	CutFrom                     // replies are lost
	Isolate                     // a node, from all servers
	Crash                       // a server; it starts again after a while
	Pause                       // a server stops executing for a while
	Expire                      // wild: its locks expire early
	Jump                        // its clock jumps by the fault's duration
	Disaster                    // several nodes of a set restart or lose everything at once
	faultKinds                  // number of faults that may be drawn
)

// The faults that are in some plans only.
const (
	Forge     = faultKinds + iota // a release of a lease that was never granted, with a made-up token
	Outage                        // a node set, from all servers
	Sleep                         // a server's monotonic clock loses time, as on a suspended machine
	Configure                     // a server gets the maps of the change with that number (Node)
	Apply                         // an operator looks at a change of the node sets, and begins or continues it after a while
	Revert                        // an operator takes it back after a while
)

var faultNames = [...]string{
	"restart", "lose", "flush", "rollback", "promote", "demote", "stop", "save", "freeze", "drop", "cut",
	"cut-to", "cut-from", "isolate", "crash", "pause", "expire", "jump", "disaster", "forge", "outage", "sleep", "configure", "apply", "revert",
}

func (k FaultKind) String() string { return faultNames[k] }

func (f Fault) String() string {
	return fmt.Sprintf("%s %s node%d server%d for %s", f.At, f.Kind, f.Node+1, f.Server+1, f.For)
}

// NewPlan draws a plan. Each kind of fault is absent from about half of the plans, so that some faults meet
// without disturbance by others.
func NewPlan(seed uint64, nodes int) Plan {
	rng := rand.New(rand.NewPCG(seed, uint64(nodes)))
	p := Plan{
		Seed: seed, Nodes: nodes,
		Old: 5, Extend: 16, Keepers: 1, Sets: 1,
		Servers: 1 + rng.IntN(3), Clients: 2 + rng.IntN(7), Resources: pick(rng, 1, 3, 6, 10), MaxOps: 8000,
		Length: pick(rng, 5*time.Second, 10*time.Second, 20*time.Second), CounterTTL: time.Hour,
		MaxTTL: pick(rng, 200*time.Millisecond, 500*time.Millisecond, time.Second, 2*time.Second),
		Watch:  pick(rng, 20*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, 250*time.Millisecond, 250*time.Millisecond),
		Delay:  pick(rng, 200*time.Microsecond, 200*time.Microsecond, time.Millisecond, time.Millisecond, 4*time.Millisecond),
		Keep:   pick(rng, 0, 0.002, 0.02, 0.1), Dream: pick(rng, 0.001, 0.005, 0.05),
		Forget: pick(rng, 0, 0.002, 0.02), Reuse: pick(rng, 0, 0.5, 0.9),
		Loss: pick(rng, 0, 0.001, 0.001, 0.01, 0.1), Double: pick(rng, 0, 0.01, 0.1, 0.3), Late: pick(rng, 0, 0.001, 0.001, 0.01, 0.1),
		Wild: rng.IntN(4) == 0, Disasters: rng.IntN(3) == 0, Queues: rng.IntN(3) == 0,
	}
	p.NodeTimeout = min(pick(rng, 10*time.Millisecond, 20*time.Millisecond, 50*time.Millisecond), p.MaxTTL/10)
	if !p.Disasters {
		p.New = rng.IntN(2) == 0
	}
	if !p.Wild && rng.IntN(6) == 0 {
		p.Tidy, p.Servers, p.Double, p.Late, p.MaxTTL = true, 1, 0, 0, 15*time.Second
		p.Length = 40 * time.Second
	}
	for range nodes {
		p.Rates = append(p.Rates, (rng.Float64()-0.5)*0.008)
	}
	if !p.Tidy && rng.IntN(5) == 0 {
		p.Slow, p.Servers, p.MaxTTL = true, max(p.Servers, 2), min(p.MaxTTL, 500*time.Millisecond)
	}
	if p.Seed%4 == 3 { // the default of the product
		p.NodeTimeout = min(time.Second, p.MaxTTL/10)
	}
	p.drawFaults(rng)
	p.Clocks = rng.IntN(3) == 0 || p.Wild && rng.IntN(2) == 0
	p.Several, p.Breaks = pick(rng, 0, 0, 0.2, 0.6), pick(rng, 0, 0, 0.01, 0.05)
	if rng.IntN(5) == 0 {
		p.spread(rng, 2+rng.IntN(2))
	}
	if p.Clocks && rng.IntN(2) == 0 {
		p.drawJumps(rng)
	}
	p.Slots = pick(rng, 0, 0, 2, 3)
	p.Cancels = pick(rng, 0, 0.5, 1)
	p.sortFaults()
	return p
}

// spread distributes the plan over several node sets.
func (p *Plan) spread(rng *rand.Rand, sets int) {
	p.Sets = sets
	for range p.Nodes * (sets - 1) {
		p.Rates = append(p.Rates, (rng.Float64()-0.5)*0.008)
	}
	for i := range p.Faults {
		p.Faults[i].Node += p.Nodes * rng.IntN(sets)
	}
	for range rng.IntN(4) {
		p.Faults = append(p.Faults, Fault{
			At: between(rng, p.MaxTTL, p.Length), Kind: Outage, Node: p.Nodes * rng.IntN(sets),
			For: between(rng, time.Millisecond, 3*p.MaxTTL),
		})
	}
}

// drawJumps adds jumps of 50 ms to hours to the clocks of nodes and, sometimes, of servers.
func (p *Plan) drawJumps(rng *rand.Rand) {
	for range 1 + rng.IntN(10) {
		f := Fault{
			At: between(rng, p.MaxTTL, p.Length), Kind: pick(rng, Jump, Jump, Jump, Sleep),
			Node: rng.IntN(p.Nodes * p.Sets), Server: rng.IntN(p.Servers), For: jumpOf(rng),
		}
		if rng.IntN(2) == 0 {
			f.For = -f.For
		}
		p.Faults = append(p.Faults, f)
	}
}

func jumpOf(rng *rand.Rand) time.Duration {
	return between(rng, 50*time.Millisecond, pick(rng, 150*time.Millisecond, time.Second, time.Minute, 5*time.Hour))
}

func (p *Plan) sortFaults() {
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
}

// longestWait is how long a client waits in a queue at most.
func (p *Plan) longestWait() time.Duration { return max(p.Wait, 2*p.MaxTTL) }

// timed reports that the clocks are good enough for exclusion.
func (p *Plan) timed() bool { return !p.Wild && !p.Slow }

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func (p *Plan) drawFaults(rng *rand.Rand) {
	var kinds []FaultKind
	for kind := range faultKinds {
		if p.allows(kind) && rng.IntN(2) == 0 {
			kinds = append(kinds, kind)
		}
	}
	if rng.IntN(3) == 0 {
		p.roll(pick(rng, Restart, Lose, Flush, Rollback, Promote, Stop))
	}
	if len(kinds) == 0 {
		return
	}
	start := p.MaxTTL // time for an undisturbed start
	for range 1 + rng.IntN(pick(rng, 3, 10, 30, 60)) {
		f := Fault{
			At: between(rng, start, p.Length), Kind: kinds[rng.IntN(len(kinds))],
			Node: rng.IntN(p.Nodes), Server: rng.IntN(p.Servers),
			For: between(rng, time.Millisecond, pick(rng, 50*time.Millisecond, p.MaxTTL, 3*p.MaxTTL)),
		}
		if f.Kind == Jump {
			f.For -= p.MaxTTL
		}
		p.Faults = append(p.Faults, f)
	}
}

// roll makes one node after the other fail in the same way, each as soon as the previous one votes again: a
// rolling restart, or a rolling loss.
func (p *Plan) roll(kind FaultKind) {
	const slack = 100 * time.Millisecond
	step := p.MaxTTL*5/4 + 2*p.Watch + slack
	for k, at := 0, 2*p.MaxTTL+slack; at < p.Length; k, at = k+1, at+step {
		simNode := k % p.Nodes
		p.Faults = append(p.Faults,
			Fault{At: at - step/2, Kind: Save, Node: (simNode + 1) % p.Nodes},
			Fault{At: at, Kind: kind, Node: simNode, For: slack})
	}
}

func (p *Plan) allows(kind FaultKind) bool {
	switch kind {
	case Expire, Jump:
		return p.Wild
	case Disaster:
		return p.Disasters
	case Crash, Pause, Freeze:
		return !p.Tidy
	}
	return true
}

// String shows the plan on one line, and each fault on another.
func (p *Plan) String() string {
	type fields Plan // a type without the method String
	line := fields(*p)
	line.Faults = nil
	lines := []string{fmt.Sprintf("%+v", line)}
	for _, f := range p.Faults {
		lines = append(lines, f.String())
	}
	return strings.Join(lines, "\n  ")
}
