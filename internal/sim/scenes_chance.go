package sim

import (
	"math/rand/v2"
	"time"
)

// In the following plans, chance decides what happens.

// late is a network that keeps and doubles many messages, with sound clocks.
func late(p *Plan) {
	p.Double, p.Late = 0.3, 0.1
	p.Tidy, p.Wild, p.Slow = false, false, false
	p.MaxTTL = min(p.MaxTTL, 500*time.Millisecond)
	p.NodeTimeout = min(p.NodeTimeout, p.MaxTTL/10)
}

// messy is a network on which locks also expire early, and a server is slow.
func messy(p *Plan) {
	late(p)
	p.Wild, p.Slow, p.Servers, p.Resources, p.Loss = true, true, 2, 1, 0.02
	p.scatter(40, Expire, CutTo, CutFrom)
}

func disasters(p *Plan) {
	p.Disasters, p.New, p.Tidy = true, false, false
	p.scatter(6, Disaster)
}

// tidy is one server and a network that loses messages.
func tidy(p *Plan) {
	p.Tidy, p.Wild, p.Slow, p.Servers, p.Double, p.Late, p.Loss = true, false, false, 1, 0, 0, 0.1
	p.MaxTTL, p.Length = 15*time.Second, 40*time.Second
	p.scatter(20, CutTo, CutFrom, Cut)
}

// dropped takes the knowers' counters away while the last node waits.
func dropped(p *Plan, at func(time.Duration) time.Duration, c cast) {
	p.fault(at(p.MaxTTL*13/10), Drop, 0, c.knowers...)
}

// forged: every node gets operations with tokens that were never granted.
func forged(p *Plan) {
	p.quiet()
	p.Faults = nil
	for at := 2 * p.MaxTTL; at < p.Length; at += p.MaxTTL {
		for simNode := range p.Nodes {
			p.fault(at, Forge, 0, simNode)
		}
	}
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

// scatter draws the plan's faults again.
func (p *Plan) scatter(n int, kinds ...FaultKind) {
	rng := rand.New(rand.NewPCG(p.Seed, uint64(n)))
	p.Faults = nil
	for range n {
		p.Faults = append(p.Faults, Fault{
			At: between(rng, p.MaxTTL, p.Length), Kind: pick(rng, kinds...),
			Node: rng.IntN(p.Nodes * p.Sets), Server: rng.IntN(p.Servers), For: between(rng, time.Millisecond, 3*p.MaxTTL),
		})
	}
}
