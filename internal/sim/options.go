package sim

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// Options are settings of an operator, and values that depend on how busy a server is. No promise depends on
// them. The zero value is the behaviour of plans before options existed.
type Options struct {
	InFlight  int           // acquires of a server that query the nodes at once; 0: the product's default
	DownAfter time.Duration // time limit of a call to a node; 0: the default
	Page      int           // locks of a page of a survey; 0: 3
	Batch     int           // maximum number of a server's votes that a node executes in one transaction; 0: each alone
	Gather    time.Duration // how long a vote waits for others, if there are batches
	Poll      time.Duration // wait of one poll, in a request that waits as a series of polls; 0: a second or two
}

// usualPage is small, so that there are several pages.
const usualPage = 3

func (o Options) page() int { return cmp.Or(o.Page, usualPage) }

// DrawOptions gives the plan other options, from a separate random source. So the plans that DrawPlan makes
// from a seed, on which tests of single seeds depend, stay the same.
func (p *Plan) DrawOptions() {
	const options = 0x0b7105
	rng := rand.New(rand.NewPCG(p.Seed, options^uint64(p.Nodes)))
	p.Options = Options{
		InFlight: pick(rng, 0, 1, 2, 8), Page: pick(rng, 0, 1, 2, 100),
		DownAfter: pick(rng, 0, 2*p.NodeTimeout, 10*p.NodeTimeout),
		Batch:     pick(rng, 0, 2, 7, 256), Gather: between(rng, 10*time.Microsecond, min(time.Millisecond, p.NodeTimeout/10)),
	}
	p.Options.Poll = pick(rng, 0, 300*time.Millisecond, 5*time.Second)
	if rng.IntN(3) == 0 { // counters expire, and read as the high-water mark
		p.CounterTTL = 4 * p.MaxTTL
	}
}

// crowd is how long an acquire may wait at a server for others that query the nodes.
func (p *Plan) crowd(tries int, round time.Duration) time.Duration {
	if p.Options.InFlight == 0 {
		return 0
	}
	return time.Duration(tries*p.Clients/p.Options.InFlight) * round
}

// gather delays a vote until others of its server to the same node can travel with it. It returns false for
// messages that travel alone.
func (m *message) gather() bool {
	w := m.w
	most := w.plan.Options.Batch
	if m.op == nil || most == 0 {
		return false
	}
	first := m.gathering
	if first == nil {
		m.gathering = m
		w.after(w.plan.Options.Gather, func() { m.depart() })
		return true
	}
	if first.with = append(first.with, m); len(first.with)+1 >= most {
		first.depart()
	}
	return true
}

// depart sends a vote and those that go with it, once.
func (m *message) depart() {
	if m.gathering == m {
		m.gathering = nil
		m.send()
	}
}

// together returns the message and those that travel with it.
func (m *message) together() []*message { return append([]*message{m}, m.with...) }

// apply executes votes that came together in one transaction.
func (n *simNode) apply(ops []node.Op) []node.Reply {
	if len(ops) == 1 {
		return []node.Reply{n.rules.Apply(ops[0])}
	}
	if n.w.plan.Mutant.clumsy {
		return n.applyClumsily(ops)
	}
	return n.model.ApplyAll(ops...)
}

// applyClumsily skips the releases of a batch, except as its first operation, and reports them as executed.
func (n *simNode) applyClumsily(ops []node.Op) (replies []node.Reply) {
	for i, op := range ops {
		if op.Kind == node.OpRelease && i > 0 {
			replies = append(replies, node.Reply{Outcome: node.Granted, Grant: op.Token})
			continue
		}
		replies = append(replies, n.rules.Apply(op))
	}
	return replies
}
