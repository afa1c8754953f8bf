package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/nodetest"
)

// Mutant is a protocol with one rule switched off. The zero value is the
// protocol as it is.
type Mutant struct {
	Rule string // its number
	Name string // what is done instead

	weak nodetest.Weakness
	wrap func(rules) rules
	plan func(*Plan) // brings in what the rule is there for, where few plans have it

	force    bool // silent nodes count as lost
	longer   bool // leases are longer than anybody waits
	careless bool // nothing is taken back but by clients
	quick    bool // is caught within a few hundred acquisitions
}

// Mutants are the rules, switched off one by one. Each runs in plans that
// bring in often what the rule is there for.
var Mutants = []Mutant{
	{Rule: "1", Name: "unequal grants are not confirmed", wrap: func(r rules) rules { return unconfirmed{r} }, quick: true},
	{Rule: "2", Name: "confirm does not ask who owns the lock", weak: nodetest.ConfirmsForAnybody, plan: messy},
	{Rule: "3", Name: "confirm takes any grant of the lease", weak: nodetest.ConfirmsAnyGrant, plan: messy},
	{Rule: "3", Name: "extend takes any grant of the lease", weak: nodetest.ExtendsAnyGrant, plan: messy},
	{Rule: "4", Name: "a missing counter reads as 0", weak: nodetest.ForgetsHigh, quick: true},
	{Rule: "5", Name: "extend makes any absent lock again", weak: nodetest.RevivesAnybody, quick: true},
	{Rule: "5", Name: "extend may shorten", weak: nodetest.ShortensLocks, plan: late},
	{Rule: "6", Name: "the gate takes any incarnation", weak: nodetest.OpensForAnyLife, plan: rolling(Rollback), quick: true},
	{Rule: "7", Name: "R-1 nodes are read", wrap: func(r rules) rules { return doubled{r} }, plan: rolling(Lose)},
	{Rule: "8", Name: "votes carry no view", weak: nodetest.VotesInAnyView, plan: slowAnd(rolling(Lose))},
	{Rule: "8", Name: "there are no views", weak: nodetest.VotesInAnyView | nodetest.FencesWithoutView, plan: slowAnd(rolling(Lose))},
	{Rule: "9", Name: "two rejoins may share a view", weak: nodetest.SharesViews, plan: slowAnd(rolling(Lose))},
	{Rule: "10", Name: "an admission outlives a restart", weak: nodetest.AdmitsAnyLife, plan: slowAnd(rolling(Lose))},
	{Rule: "11", Name: "staging purges nothing", weak: nodetest.KeepsOnStaging, plan: rolling(Rollback)},
	{Rule: "12", Name: "silent nodes count as lost", force: true, plan: cutting, quick: true},
	{Rule: "12", Name: "a founding has no floor", weak: nodetest.ForgetsFloor, plan: disasters, quick: true},
	{Rule: "12", Name: "a founding purges what another opened", weak: nodetest.StagesAdmitted, plan: foundings},
	{Rule: "12", Name: "a smaller view is staged over a larger", weak: nodetest.ForgetsStaging, plan: foundings},
	{Rule: "13", Name: "leases outlive the wait", longer: true, weak: nodetest.GrantsTooLong, plan: rolling(Lose)},
	{Rule: "13", Name: "the silence is not noted", weak: nodetest.NotesNothing, plan: flushing},
	{Rule: "16", Name: "lost votes are not taken back", careless: true, plan: tidy, quick: true},
	{Rule: "21", Name: "counters are read before the fence", wrap: func(r rules) rules { return hasty{r} }, plan: lagging},
	{Rule: "21", Name: "missing counters are skipped", weak: nodetest.SkipsMissing, plan: dropping},
	{Rule: "21", Name: "the smallest counter is carried", wrap: func(r rules) rules { return modest{r} }, plan: lagging},
	{Rule: "21", Name: "a lock is carried with the smallest grant", wrap: func(r rules) rules { return low{r} }, plan: laggingKeys},
	{Rule: "21", Name: "an admitted node is written on", weak: nodetest.LoadsAdmitted, plan: lateLoads},
}

// Catches reports whether the violation is one that the mutant is about: the
// service that stays away, or a lock that stays, is so for one of them only.
func (m Mutant) Catches(v *Violation) bool {
	if v == nil {
		return false
	}
	return v.Safety() || m.careless
}

// In returns the plan with the rule switched off. Its clients are slower, so that
// more goes wrong between two acquisitions.
func (m Mutant) In(p Plan) Plan {
	p.Mutant, p.Pause = m, 30*time.Millisecond
	if m.plan != nil {
		m.plan(&p)
	}
	return p
}

// late is a network that keeps and doubles many messages, with sound clocks.
func late(p *Plan) {
	p.Double, p.Late = 0.3, 0.1
	p.Tidy, p.Wild, p.Slow = false, false, false
	p.MaxTTL = min(p.MaxTTL, 500*time.Millisecond)
	p.NodeTimeout = min(p.NodeTimeout, p.MaxTTL/10)
}

// messy is one where locks end early as well, and a server is slow.
func messy(p *Plan) {
	late(p)
	p.Wild, p.Slow, p.Servers, p.Resources, p.Loss = true, true, 2, 1, 0.02
	p.scatter(40, Expire, CutTo, CutFrom)
}

// foundings are frequent, by many servers at once.
func foundings(p *Plan) {
	late(p)
	p.Servers, p.Double, p.Disasters, p.New = 3, 0, true, false
	p.Watch, p.MaxTTL, p.NodeTimeout = 20*time.Millisecond, 200*time.Millisecond, 20*time.Millisecond
	p.scatter(40, Disaster)
}

func disasters(p *Plan) {
	p.Disasters, p.New, p.Tidy = true, false, false
	p.scatter(6, Disaster)
}

// cutting lets nodes be cut off while others have lost their state.
func cutting(p *Plan) {
	late(p)
	p.Disasters, p.New = true, false
	p.scatter(30, Isolate, Restart, Lose)
}

// flushing empties nodes while servers are cut off from them.
func flushing(p *Plan) {
	late(p)
	p.Servers, p.New, p.Double, p.Late = 3, false, 0, 0
	p.MaxTTL, p.NodeTimeout = 200*time.Millisecond, 20*time.Millisecond
	p.scatter(120, Flush, Cut, Cut)
}

// tidy is one server and a network that loses messages.
func tidy(p *Plan) {
	p.Tidy, p.Wild, p.Slow, p.Servers, p.Double, p.Late, p.Loss = true, false, false, 1, 0, 0, 0.1
	p.MaxTTL, p.Length = 15*time.Second, 40*time.Second
	p.scatter(20, CutTo, CutFrom, Cut)
}

// lagging restarts one node after the other, while many of the others know
// less than was given: requests to them get lost, and leases are held for long.
func lagging(p *Plan) {
	rolling(Restart)(p)
	p.Keep, p.Forget, p.Loss, p.Resources = 0.1, 0.05, 0.05, max(p.Resources, 3)
	more := *p
	more.scatter(40, CutTo, Isolate)
	for i := range more.Faults {
		more.Faults[i].For /= 6
	}
	p.Faults = append(p.Faults, more.Faults...)
}

// laggingKeys does the same to clients that always ask again under one key.
func laggingKeys(p *Plan) {
	lagging(p)
	p.Stubborn = true
}

// lateLoads restarts one node after the other over a network that doubles nearly
// every message, while leases are kept: what comes again is of an earlier lease.
func lateLoads(p *Plan) {
	rolling(Restart)(p)
	p.Double, p.Keep, p.Resources = 0.9, 0.3, min(p.Resources, 2)
}

// dropping takes counters away between the restarts.
func dropping(p *Plan) {
	rolling(Restart)(p)
	p.Keep, p.Forget = 0.3, 0.05
	more := *p
	more.scatter(400, Drop)
	p.Faults = append(p.Faults, more.Faults...)
}

// rolling lets one node after the other fail in the same way.
func rolling(kind FaultKind) func(*Plan) {
	return func(p *Plan) {
		p.Tidy, p.Disasters, p.Slow, p.Wild = false, false, false, false
		p.MaxTTL = min(p.MaxTTL, 500*time.Millisecond)
		p.NodeTimeout, p.Watch = min(p.NodeTimeout, p.MaxTTL/10), 20*time.Millisecond
		p.Loss, p.Late = min(p.Loss, 0.02), min(p.Late, 0.02)
		p.scatter(10, Save, CutTo, CutFrom, Drop)
		p.roll(kind)
	}
}

// slowAnd adds a server with a slow clock.
func slowAnd(plan func(*Plan)) func(*Plan) {
	return func(p *Plan) {
		plan(p)
		p.Slow, p.Servers, p.Late = true, 3, 0.1
	}
}

// scatter makes the plan's faults anew.
func (p *Plan) scatter(n int, kinds ...FaultKind) {
	rng := rand.New(rand.NewPCG(p.Seed, uint64(n)))
	p.Faults = nil
	for range n {
		p.Faults = append(p.Faults, Fault{
			At: between(rng, p.MaxTTL, p.Length), Kind: pick(rng, kinds...),
			Node: rng.IntN(p.Nodes), Server: rng.IntN(p.Servers), For: between(rng, time.Millisecond, 3*p.MaxTTL),
		})
	}
}

// mutate wraps a node's rules.
func (m Mutant) mutate(r rules) rules {
	if m.wrap == nil {
		return r
	}
	return m.wrap(r)
}

// change is what a mutant does to a message: it may answer in the node's place.
func (m Mutant) change(msg *message) (answered bool) {
	switch {
	case msg.op == nil:
	case m.longer && msg.op.Kind == lockcore.OpAcquire:
		const times = 10
		longer := *msg.op
		longer.TTL *= times
		msg.op = &longer
	case m.careless && msg.op.Kind == lockcore.OpRelease:
		return !msg.w.check.ledger(msg.op.Resource).released[secretOf(msg.op.Lease)]
	}
	return false
}

// unconfirmed says yes to every confirm, and does nothing.
type unconfirmed struct{ rules }

func (u unconfirmed) vote(n *node, op lockcore.Op) lockcore.Reply {
	if op.Kind == lockcore.OpConfirm {
		return lockcore.Reply{Outcome: lockcore.Granted, Grant: op.Token}
	}
	return u.rules.vote(n, op)
}

// doubled answers for the first node what the second knows: whoever reads both
// has read one node less than it believes.
type doubled struct{ rules }

func (doubled) source(n *node) *node {
	if other := n.w.nodes[1]; n.id == 0 && other.votes() {
		return other
	}
	return n
}

func (d doubled) fence(ctx context.Context, n *node, view lockcore.View) (lockcore.Marks, error) {
	marks, err := d.rules.fence(ctx, n, view)
	if err != nil {
		return marks, err
	}
	seen, err := d.source(n).model.Observe(ctx)
	return seen.Marks, err
}

func (d doubled) survey(ctx context.Context, n *node, view lockcore.View, cursor string) ([]lockcore.CarriedLock, string, error) {
	return d.rules.survey(ctx, d.source(n), view, cursor)
}

func (d doubled) counters(ctx context.Context, n *node, view lockcore.View, resources []string) ([]fencing.Token, error) {
	return d.rules.counters(ctx, d.source(n), view, resources)
}

// hasty answers surveys and counters with what it knew at an earlier look.
type hasty struct{ rules }

func (h hasty) observe(ctx context.Context, n *node) (lockcore.Observation, error) {
	const age = 200 * time.Millisecond
	if n.shadow == nil {
		n.shadow = nodetest.NewModel(nodetest.ModelOptions{
			Now: n.clock, CounterTTL: n.w.plan.CounterTTL, Weak: nodetest.OpensForAnyLife | nodetest.ReadsInAnyView,
		})
	}
	seen, err := h.rules.observe(ctx, n)
	if seen.Admitted && n.w.now() > n.shadowAt+age {
		n.shadowAt = n.w.now()
		n.shadow.Join(seen.Cluster)
		n.shadow.Restore(n.model.Snapshot())
	}
	return seen, err
}

func (h hasty) counters(ctx context.Context, n *node, view lockcore.View, resources []string) ([]fencing.Token, error) {
	counters, err := h.rules.counters(ctx, n, view, resources)
	if err != nil || n.shadow == nil {
		return counters, err
	}
	if old, err := n.shadow.Counters(ctx, view, resources); err == nil {
		return old, nil
	}
	return counters, nil
}

// low installs locks with the smallest grant that their lease has anywhere.
type low struct{ rules }

func (l low) load(ctx context.Context, n *node, a lockcore.Admission, locks []lockcore.CarriedLock) error {
	locks = slices.Clone(locks)
	for i := range locks {
		for _, other := range n.w.nodes {
			r := other.model.Apply(lockcore.Op{Kind: lockcore.OpRead, Resource: locks[i].Resource})
			if r.Outcome == lockcore.Granted && r.Lease == locks[i].Lease {
				locks[i].Grant = min(locks[i].Grant, r.Grant)
			}
		}
	}
	return l.rules.load(ctx, n, a, locks)
}

// modest answers with the smallest counter that any node has.
type modest struct{ rules }

func (m modest) counters(ctx context.Context, n *node, view lockcore.View, resources []string) ([]fencing.Token, error) {
	least, err := m.rules.counters(ctx, n, view, resources)
	if err != nil {
		return nil, err
	}
	for _, other := range n.w.nodes {
		counters, err := m.rules.counters(ctx, other, view, resources)
		if err != nil {
			continue
		}
		for i := range least {
			least[i] = min(least[i], counters[i])
		}
	}
	return least, nil
}
