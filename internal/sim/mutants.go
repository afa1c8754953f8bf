package sim

import (
	"context"
	"errors"
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
}

// Mutants are the rules, switched off one by one.
var Mutants = []Mutant{
	{Rule: "1", Name: "unequal grants are not confirmed", wrap: func(r rules) rules { return unconfirmed{r} }},
	{Rule: "2", Name: "confirm does not ask who owns the lock", weak: nodetest.ConfirmsForAnybody},
	{Rule: "3", Name: "confirm takes any grant of the lease", weak: nodetest.ConfirmsAnyGrant, plan: doubling},
	{Rule: "3", Name: "extend takes any grant of the lease", weak: nodetest.ExtendsAnyGrant, plan: doubling},
	{Rule: "4", Name: "a missing counter reads as 0", weak: nodetest.ForgetsHigh},
	{Rule: "5", Name: "extend makes any absent lock again", weak: nodetest.RevivesAnybody},
	{Rule: "5", Name: "extend may shorten", weak: nodetest.ShortensLocks, plan: doubling},
	{Rule: "6", Name: "the gate takes any incarnation", weak: nodetest.OpensForAnyLife},
	{Rule: "7", Name: "R-1 nodes are read", wrap: func(r rules) rules { return doubled{r} }},
	{Rule: "8", Name: "votes carry no view", weak: nodetest.VotesInAnyView},
	{Rule: "8", Name: "fenced reads install no view", weak: nodetest.FencesWithoutView},
	{Rule: "9", Name: "two rejoins may share a view", weak: nodetest.SharesViews, plan: manyServers},
	{Rule: "10", Name: "an admission outlives a restart", weak: nodetest.AdmitsAnyLife},
	{Rule: "11", Name: "staging purges nothing", weak: nodetest.KeepsOnStaging},
	{Rule: "12", Name: "silent nodes count as lost", force: true},
	{Rule: "12", Name: "a founding has no floor", weak: nodetest.ForgetsFloor, plan: disasters},
	{Rule: "12", Name: "a founding purges what another opened", weak: nodetest.StagesAdmitted, plan: manyServers},
	{Rule: "12", Name: "a smaller view is staged over a larger", weak: nodetest.ForgetsStaging, plan: manyServers},
	{Rule: "13", Name: "leases outlive the wait", longer: true, weak: nodetest.GrantsTooLong},
	{Rule: "16", Name: "lost votes are not taken back", careless: true},
	{Rule: "21", Name: "counters are read before the fence", wrap: func(r rules) rules { return hasty{r} }},
	{Rule: "21", Name: "missing counters are skipped", weak: nodetest.SkipsMissing},
	{Rule: "21", Name: "the smallest counter is carried", wrap: func(r rules) rules { return modest{r} }},
	{Rule: "21", Name: "an admitted node is written on", weak: nodetest.LoadsAdmitted, plan: doubling},
}

// With returns the plan with the rule switched off.
func (p Plan) With(m Mutant) Plan {
	p.Mutant = m
	if m.plan != nil {
		m.plan(&p)
	}
	return p
}

func doubling(p *Plan) { p.Double, p.Tidy = 0.1, false }

func manyServers(p *Plan) { p.Servers, p.Tidy = 3, false }

func disasters(p *Plan) { p.Disasters, p.New = true, false }

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
	if n.id == 0 {
		return n.w.nodes[1]
	}
	return n
}

func (d doubled) fence(ctx context.Context, n *node, view lockcore.View) (lockcore.Marks, error) {
	n = d.source(n)
	marks, err := d.rules.fence(ctx, n, view)
	var stale *lockcore.StaleViewError
	if errors.As(err, &stale) && stale.View == view {
		seen, err := n.model.Observe(ctx)
		return seen.Marks, err
	}
	return marks, err
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
