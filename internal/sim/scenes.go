package sim

import (
	"math/rand/v2"
	"slices"
	"time"
)

// The scenes are plans that bring about, again and again, what one rule is there
// for. In most the last node loses what it knew, some nodes know less than was
// given (the laggards), and the others know it (the knowers). Either are one node
// short of a quorum, which the last one makes.

var scenes = []struct {
	name string
	play func(*Plan)
}{
	{"forgetful", forgetful(Lose, nil)}, {"dropped", forgetful(Lose, dropped)}, {"older", forgetful(Rollback, nil)},
	{"revived", revived}, {"crossing", crossing}, {"again", again}, {"reloading", reloading}, {"flushed", flushed},
	{"duels", duels}, {"unreachable", unreachable}, {"relapse", relapse}, {"missing", missing}, {"shortening", shortening},
	{"revenants", revenants}, {"holding", holding}, {"crossed", crossed}, {"low carried", lowCarried}, {"again under its key", reusing},
	{"sparing", sparing}, {"keeping", keeping}, {"breaking", breaking}, {"stray votes", strayVotes}, {"ahead", ahead}, {"abrupt", abrupt}, {"refusing", refusing}, {"rings", rings}, {"gathering", gathering}, {"partly", partly},
	{"slots", slotted}, {"slots of a key", twins},
	{"several again", severalAgain}, {"apart", apart}, {"jumping", jumping}, {"set back", setBack}, {"sleeping", sleeping}, {"alone", alone},
	{"growing", growing}, {"losing", losing}, {"unread", unread},
}

// DrawPlan is what a seed stands for: one of NewPlan's, or, of every fourth, a
// scene, in half of these over the network of the plan.
func DrawPlan(seed uint64, nodes int) Plan {
	p := NewPlan(seed, nodes)
	rng := rand.New(rand.NewPCG(seed, ^uint64(nodes)))
	if rng.IntN(4) > 0 {
		if rng.IntN(6) == 0 {
			p.Scene = "impatient"
			impatient(&p)
		}
		return p
	}
	loss, late, double := p.Loss, p.Late, p.Double
	scene := pick(rng, scenes...)
	scene.play(&p)
	if p.Scene = scene.name; rng.IntN(2) == 0 {
		p.Loss, p.Late, p.Double, p.Perfect, p.Tidy, p.Seen = loss, late, double, false, false, 0
	}
	return p
}

// cast is who plays what.
type cast struct {
	knowers  []int // m-1 of them
	laggards []int // m-1
	last     int
}

func castOf(nodes int) cast {
	few := nodes / 2
	c := cast{knowers: []int{0}, last: nodes - 1}
	for i := 1; i < nodes-1; i++ {
		if i <= few {
			c.laggards = append(c.laggards, i)
		} else {
			c.knowers = append(c.knowers, i)
		}
	}
	return c
}

// scene repeats what happens, each time somewhat otherwise: at draws a moment
// soon after the one that it is given.
func (p *Plan) scene(step time.Duration, happen func(at func(time.Duration) time.Duration, c cast)) {
	rng := rand.New(rand.NewPCG(p.Seed, uint64(step)))
	p.Faults = nil
	for start := 2*p.MaxTTL + 100*time.Millisecond; start < p.Length; start += step {
		happen(func(after time.Duration) time.Duration {
			return start + after + between(rng, 0, p.MaxTTL/20)
		}, castOf(p.Nodes))
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
}

func (p *Plan) fault(at time.Duration, kind FaultKind, d time.Duration, nodes ...int) {
	for _, n := range nodes {
		p.Faults = append(p.Faults, Fault{At: at, Kind: kind, Node: n, For: d})
	}
}

// quiet is a network that does nothing but what the scene asks for.
func (p *Plan) quiet() {
	p.Tidy, p.Disasters, p.Slow, p.Wild, p.Stubborn, p.Queues, p.Clocks = false, false, false, false, false, false, false
	p.Sets, p.Several, p.Breaks, p.Slots = 1, 0, 0, 0
	p.Loss, p.Late, p.Double = 0.001, 0.001, 0
	p.MaxTTL, p.NodeTimeout, p.Watch, p.Delay = 300*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond, 500*time.Microsecond
	p.Length, p.Dream, p.Forget = 10*time.Second, 0, 0.02
	p.Pause = 5 * time.Millisecond
}

// rejoined is how long after its loss the last node votes again, about.
func (p *Plan) rejoined() time.Duration { return p.MaxTTL*11/10 + 2*p.Watch }

// forgetful: the last node forgets what it knew, all or the latest, while the
// laggards know less than was given. Leases are kept meanwhile, so that their
// counters are carried to it; then the knowers are cut off, and it decides with the
// laggards.
func forgetful(kind FaultKind, more func(p *Plan, at func(time.Duration) time.Duration, c cast)) func(*Plan) {
	return func(p *Plan) {
		p.quiet()
		p.Clients, p.Keepers, p.Resources, p.Keep, p.Forget = 6, 3, 4, 0.1, 0.5
		ttl := p.MaxTTL
		p.scene(5*ttl, func(at func(time.Duration) time.Duration, c cast) {
			p.fault(at(0), Save, 0, c.last)
			p.fault(at(0), Isolate, ttl, c.laggards...)
			p.fault(at(ttl*11/10), kind, 0, c.last)
			back := ttl*11/10 + p.rejoined()
			p.fault(at(ttl*11/10), Isolate, p.rejoined(), c.knowers[1:]...)
			p.fault(at(back), Isolate, ttl, c.knowers...)
			if more != nil {
				more(p, at, c)
			}
		})
	}
}

// revived: what the last node comes back with is older than what it knew. The
// laggards, who come back just in time for it to be admitted, know no more.
func revived(p *Plan) {
	p.quiet()
	p.Clients, p.Resources = 6, 10
	ttl := p.MaxTTL
	p.scene(5*ttl, func(at func(time.Duration) time.Duration, c cast) {
		back := ttl + p.rejoined()
		p.fault(at(0), Save, 0, c.last)
		p.fault(at(0), Isolate, back-ttl/10, c.laggards...)
		p.fault(at(ttl), Rollback, 0, c.last)
		p.fault(at(back), Isolate, ttl, c.knowers...)
	})
}

// crossing: messages of an attempt of the slow server are on their way while the
// last node, whose vote counts in it, loses what it knew and comes back. That
// node leads: its counters are dropped, so that it grants what is above all.
// The knowers' clocks are slow, so that the attempt's locks are there still.
func crossing(p *Plan) {
	p.quiet()
	p.Slow, p.Wild, p.Servers, p.Clients, p.Resources = true, true, 3, 8, 4
	p.MaxTTL = 200 * time.Millisecond
	for _, i := range castOf(p.Nodes).knowers {
		p.Rates[i] = -0.9
	}
	ttl := p.MaxTTL
	p.Tardy = []Tardy{{Kind: "confirm", Chance: 0.8, Server: slowServer, Min: ttl, Max: 3 * ttl}}
	p.scene(5*ttl/2, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Lose, 0, c.last)
		p.fault(at(p.rejoined()+ttl/3), Drop, 0, c.last)
	})
}

// again: what admitted the last node comes again, after it was lost again.
func again(p *Plan) {
	p.quiet()
	ttl := p.MaxTTL
	step := p.rejoined() + ttl/2
	p.Tardy = []Tardy{
		{Kind: "stage", Chance: 0.9, Again: true, Min: ttl / 2, Max: ttl * 6 / 10},
		{Kind: "admit", Chance: 0.9, Again: true, Min: ttl * 6 / 10, Max: ttl * 8 / 10},
	}
	p.scene(step, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Lose, 0, c.last)
		p.fault(at(0), Isolate, ttl/2, c.knowers...)
		p.fault(at(p.rejoined()), Isolate, ttl/2, c.laggards...)
	})
}

// reloading: what was carried to the last node comes again, when leases
// have been given since.
func reloading(p *Plan) {
	p.quiet()
	p.Resources, p.Keep, p.Keepers = 3, 0.3, 2
	ttl := p.MaxTTL
	p.Tardy = []Tardy{{Kind: "load", Chance: 0.9, Again: true, Min: ttl / 2, Max: ttl}}
	p.scene(p.rejoined()+3*ttl, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Lose, 0, c.last)
		p.fault(at(p.rejoined()), Isolate, ttl, c.laggards...)
		p.fault(at(p.rejoined()+ttl), Isolate, ttl, c.knowers...)
	})
}

// flushed: the last node is emptied twice, and one server was cut off from it
// while it voted in between.
func flushed(p *Plan) {
	p.quiet()
	p.Servers, p.New, p.MaxTTL, p.Forget = 3, false, 500*time.Millisecond, 0.3
	ttl := p.MaxTTL
	p.scene(4*ttl, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Flush, 0, c.last)
		second := p.rejoined() + ttl/2
		cut := at(5 * p.Watch)
		then := at(second)
		p.Faults = append(p.Faults, Fault{At: cut, Kind: Cut, Node: c.last, Server: 2, For: then - cut})
		p.fault(at(second-ttl*4/10), Isolate, ttl*4/10, c.laggards...)
		p.fault(then, Flush, 0, c.last)
	})
}

// duels: several servers bootstrap the cluster at once, and one of them is slow at it.
func duels(p *Plan) {
	p.quiet()
	p.Servers, p.Disasters, p.New, p.MaxTTL = 3, true, false, 500*time.Millisecond
	p.Tardy = []Tardy{{Kind: "stage", Chance: 0.4, Min: 10 * time.Millisecond, Max: 400 * time.Millisecond}}
	p.scene(3*p.MaxTTL, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Disaster, 0, c.last)
	})
}

// shortening: extends come again, after others that ask for longer.
func shortening(p *Plan) {
	p.quiet()
	p.Resources, p.Extend, p.Old = 2, 80, 0
	p.Pause = 40 * time.Millisecond
	p.Tardy = []Tardy{{Kind: "extend", Chance: 0.7, Again: true, Min: 5 * time.Millisecond, Max: p.MaxTTL / 2}}
	p.Faults = nil
}

// revenants: acquires come again, when their lease has ended and others were
// given, and its client extends it all the same.
func revenants(p *Plan) {
	p.quiet()
	p.Resources, p.Old, p.Extend = 2, 40, 10
	p.Tardy = []Tardy{{Kind: "acquire", Chance: 0.5, Again: true, Min: 5 * time.Millisecond, Max: p.MaxTTL / 2}}
	p.Faults = nil
}

// holding: resources stay taken for a while after their release, and clients extend
// leases that they have released.
func holding(p *Plan) {
	p.quiet()
	p.Resources, p.Old, p.Extend, p.MinHold = 2, 40, 10, true
	p.Faults = nil
}

// unreachable: the last node is lost, and one server cannot see the knowers, which
// vote for the others all the while.
func unreachable(p *Plan) {
	p.quiet()
	p.Servers, p.New, p.Keep = 2, false, 0.1
	ttl := p.MaxTTL
	p.scene(5*ttl, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Lose, 0, c.last)
		for _, k := range c.knowers {
			p.Faults = append(p.Faults, Fault{At: at(ttl / 3), Kind: Cut, Node: k, Server: 1, For: 5 * ttl / 2})
		}
	})
}

// relapse: a bootstrap has closed the last node, and opened others, when a rejoin
// that began before would open it in the old epoch. With the laggards it is a
// quorum there, for a server that cannot see the others.
func relapse(p *Plan) {
	p.quiet()
	p.Servers, p.Disasters, p.New, p.Resources, p.Forget = 3, true, false, 2, 0.3
	const bootstrapper, blind, late = 1, 2, 3
	ttl := p.MaxTTL
	p.Tardy = []Tardy{
		{Kind: "stage", Chance: 0.9, Server: late, Min: ttl * 12 / 10, Max: ttl * 15 / 10},
		{Kind: "admit", Chance: 0.7, Server: bootstrapper, Min: 10 * time.Millisecond, Max: 100 * time.Millisecond},
	}
	p.scene(7*ttl, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Lose, 0, c.last)
		for _, server := range []int{bootstrapper, blind} {
			p.Faults = append(p.Faults, Fault{At: at(ttl * 6 / 10), Kind: Cut, Node: c.last, Server: server - 1, For: ttl * 6 / 10})
		}
		p.fault(at(ttl*12/10), Lose, 0, c.knowers...)
		for _, k := range c.knowers {
			p.Faults = append(p.Faults, Fault{At: at(ttl * 12 / 10), Kind: Cut, Node: k, Server: blind - 1, For: ttl * 35 / 10})
		}
	})
}

// missing: the last node misses a bootstrap, and rejoins while leases of the new epoch are
// released. What it has been given is written down late, and some releases come late.
func missing(p *Plan) {
	p.quiet()
	p.Disasters, p.Servers, p.Clients, p.Resources, p.Old, p.Forget, p.Pause = true, 3, 8, 6, 40, 0.1, 10*time.Millisecond
	ttl := p.MaxTTL
	p.Tardy = []Tardy{
		{Kind: "stage", Chance: 0.9, Min: ttl / 20, Max: ttl / 3},
		{Kind: "release", Chance: 0.4, Min: ttl / 10, Max: 2 * ttl},
	}
	p.scene(5*ttl, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Isolate, ttl*17/10, c.last)
		p.fault(at(ttl/10), Lose, 0, append(c.knowers, c.laggards...)...)
	})
}

// crossed: an attempt of the slow server is confirmed late, when its acquire has
// come again. Locks end early all the time.
func crossed(p *Plan) {
	p.quiet()
	p.Slow, p.Wild, p.Servers, p.Clients, p.Resources = true, true, 3, 8, 2
	p.MaxTTL = 200 * time.Millisecond
	ttl := p.MaxTTL
	p.Tardy = []Tardy{
		{Kind: "confirm", Chance: 0.8, Server: slowServer, Min: ttl / 4, Max: ttl},
		{Kind: "acquire", Chance: 0.6, Again: true, Server: slowServer, Min: ttl / 8, Max: ttl},
	}
	p.scatter(600, Expire)
}

// lowCarried: a lease that has a smaller grant on the laggards, where it was not
// confirmed, is carried to the last node and then asked for again under its key.
func lowCarried(p *Plan) {
	p.quiet()
	p.Wild, p.Stubborn = true, true
	p.Clients, p.Keepers, p.Resources, p.Keep, p.Forget = 6, 6, 4, 0.2, 0.3
	ttl := p.MaxTTL
	p.Tardy = []Tardy{{Kind: "confirm", Chance: 0.95, Min: 4 * ttl, Max: 8 * ttl}}
	p.scene(5*ttl, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Isolate, ttl/2, c.laggards...)
		p.fault(at(ttl), Lose, 0, c.last)
		back := ttl + p.rejoined()
		p.fault(at(back), Expire, 0, c.laggards[0])
		p.fault(at(back), Isolate, ttl, c.knowers...)
	})
}

// reusing: clients release leases and take the resource again under the same key,
// while earlier releases and retractions are on their way: many are late, and
// come twice.
func reusing(p *Plan) {
	p.quiet()
	p.Stubborn, p.Reuse, p.Servers, p.Clients, p.Resources, p.Extend = true, 0.95, 3, 6, 2, 5
	ttl := p.MaxTTL
	p.Tardy = []Tardy{
		{Kind: "release", Chance: 0.5, Min: ttl / 30, Max: ttl / 2},
		{Kind: "release", Chance: 0.5, Again: true, Min: ttl / 30, Max: ttl / 2},
		{Kind: "retract", Chance: 0.5, Min: ttl / 30, Max: ttl / 2},
		{Kind: "retract", Chance: 0.5, Again: true, Min: ttl / 30, Max: ttl / 2},
	}
	p.scatter(100, CutTo, CutFrom)
	for i := range p.Faults {
		p.Faults[i].For = min(p.Faults[i].For, ttl/3)
	}
}

// sparing: the last node's answers to acquires are lost, and the retractions of its
// votes come late, when extends have counted them while a knower was cut off.
func sparing(p *Plan) {
	p.quiet()
	p.Stubborn, p.Servers, p.Clients, p.Keepers, p.Resources, p.Keep = true, 2, 6, 6, 4, 0.5
	ttl := p.MaxTTL
	p.Tardy = []Tardy{{Kind: "retract", Chance: 0.95, Min: ttl / 2, Max: 2 * ttl}}
	p.scene(4*ttl, func(at func(time.Duration) time.Duration, c cast) {
		for server := range p.Servers {
			p.Faults = append(p.Faults, Fault{At: at(0), Kind: CutFrom, Node: c.last, Server: server, For: ttl / 2})
		}
		p.fault(at(0), Isolate, 3*ttl, c.laggards[1:]...)
		p.fault(at(ttl/2), Isolate, ttl*12/10, c.knowers[0])
	})
}

// keeping: leases under keys are kept by extends, which find the lock of the key's lease
// before where its release is late, or a vote whose retraction is.
func keeping(p *Plan) {
	p.quiet()
	p.Stubborn, p.Reuse, p.Servers, p.Clients, p.Resources, p.Extend, p.Forget = true, 0.95, 3, 6, 2, 20, 0
	p.Keepers, p.Keep, p.Pause = 6, 0.3, 15*time.Millisecond
	ttl := p.MaxTTL
	p.Tardy = []Tardy{
		{Kind: "release", Chance: 0.5, Min: ttl / 6, Max: ttl * 3 / 2},
		{Kind: "retract", Chance: 0.5, Min: ttl / 6, Max: ttl * 3 / 2},
	}
	p.scatter(80, CutTo, CutFrom, Isolate)
	for i := range p.Faults {
		p.Faults[i].For = min(p.Faults[i].For, ttl*2/3)
	}
}

// expiring: leases are short, on a network that takes its time, and end by
// themselves while others wait for them.
func expiring(p *Plan) {
	p.quiet()
	p.Delay, p.Forget, p.Queues, p.Extend = 4*time.Millisecond, 0.9, true, 5
	p.Faults = nil
}

// perfect is a network that does nothing at all.
func (p *Plan) perfect() {
	p.quiet()
	p.Perfect, p.Loss, p.Late, p.Length = true, 0, 0, 20*time.Second
}

// breaking: leases are broken whose holders still extend them, while nodes are
// slow to hear of it, and some know less than was given.
func breaking(p *Plan) {
	p.quiet()
	p.Breaks, p.Resources, p.Clients, p.Keepers, p.Keep, p.Servers = 0.1, 3, 6, 4, 0.5, 2
	ttl := p.MaxTTL
	p.Tardy = []Tardy{{Kind: "release", Chance: 0.3, Min: ttl / 10, Max: ttl}, {Kind: "break", Chance: 0.3, Min: ttl / 10, Max: ttl}}
	p.scatter(60, CutTo, CutFrom, Drop)
	for i := range p.Faults {
		p.Faults[i].For = min(p.Faults[i].For, ttl)
	}
}

// strayVotes: leases are given while the laggards are cut off; they come back, and give
// votes to attempts that fail, which stay for a while, as breaks do on their way.
func strayVotes(p *Plan) {
	p.quiet()
	p.Breaks, p.Resources, p.Clients, p.Keepers, p.Keep, p.Servers, p.Forget = 0.15, 3, 8, 4, 0.6, 3, 0.5
	ttl := p.MaxTTL
	p.Tardy = []Tardy{
		{Kind: "release", Chance: 0.3, Min: ttl / 20, Max: ttl / 2},
		{Kind: "break", Chance: 0.3, Min: ttl / 20, Max: ttl / 2},
		{Kind: "retract", Chance: 0.5, Min: ttl / 20, Max: ttl / 4},
	}
	p.scene(2*ttl, func(at func(time.Duration) time.Duration, c cast) { p.fault(at(0), Isolate, ttl, c.laggards...) })
}

// ahead: as with stray votes, but breaks are long on their way, so that one with the token of
// a node that counts ahead reaches the others when they have granted a later lease.
func ahead(p *Plan) {
	strayVotes(p)
	p.Resources, p.Breaks = 1, 0.3
	p.Tardy[1].Chance = 0.7
}

// refusing: leases are given while the laggards are cut off, and then extended on one node
// alone. Of the other nodes each of two servers reaches one, so that the attempts through it
// have its vote, and fail; and what retracts the votes and releases the lease is long on its
// way. The third server reaches all again, and the holder does not believe that it is over.
func refusing(p *Plan) {
	p.quiet()
	p.Resources, p.Clients, p.Keepers, p.Keep, p.Servers, p.Forget, p.Extend, p.Doubts = 1, 6, 3, 0.3, 3, 0.1, 60, 0.9
	ttl := p.MaxTTL
	p.Tardy = []Tardy{
		{Kind: "release", Chance: 0.7, Min: ttl / 10, Max: ttl / 2},
		{Kind: "retract", Chance: 0.95, Min: ttl / 10, Max: ttl / 3},
	}
	p.scene(5*ttl, func(at func(time.Duration) time.Duration, c cast) {
		others := slices.Concat(c.laggards, c.knowers)
		p.fault(at(0), Isolate, 2*ttl, c.laggards...)
		p.fault(at(2*ttl), Isolate, ttl, others...)
		for i, n := range others {
			for server := range p.Servers {
				end := 4 * ttl
				switch server {
				case p.Servers - 1:
					end = 3*ttl + ttl/5
				case i % (p.Servers - 1):
					continue
				}
				p.Faults = append(p.Faults, Fault{At: at(2 * ttl), Kind: CutTo, Node: n, Server: server, For: end - 2*ttl})
			}
		}
	})
}

// rings: all clients wait for the same resources, each asking in an order of its own.
func rings(p *Plan) {
	p.perfect()
	p.Queues, p.Wait, p.Several, p.Resources, p.Servers, p.Clients, p.Forget = true, 8*time.Second, 1, 2, 3, 6, 0
	p.Faults = nil
}

// slotted: clients wait for slots, of which some are kept for long.
func slotted(p *Plan) {
	p.perfect()
	p.Queues, p.Wait, p.Slots, p.Resources, p.Servers, p.Clients, p.Forget = true, 8*time.Second, 3, 1, 3, 7, 0.1
	p.Keepers, p.Keep, p.Faults = 4, 0.1, nil
}

// impatient: clients wait for whatever there is, repeat what they lost the answer of, hang up,
// and cancel.
func impatient(p *Plan) {
	p.perfect()
	p.Queues, p.Wait, p.Slots, p.Several, p.Resources, p.Servers, p.Clients = true, 8*time.Second, 2, 0.2, 3, 3, 8
	p.MaxTTL, p.Length = 8*time.Second, 40*time.Second // what stays locked for nobody is seen long before it expires
	p.Stubborn, p.Cancels, p.Forget, p.Faults = p.Seed%2 == 0, 0.5, 0, nil
}

// abrupt: a server that reaches a part of the nodes has them count ahead. Then clients hang up in
// the middle of an acquisition, and repeat it at another server.
func abrupt(p *Plan) {
	impatient(p)
	p.Wait, p.Queues, p.Slots, p.Several, p.Resources, p.Cancels = 0, false, 0, 0, 1, 0
	p.HangUp, p.Delay, p.NodeTimeout, p.Stubborn = 0.7, 3*time.Millisecond, 300*time.Millisecond, true
	p.scene(time.Second, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Isolate, 300*time.Millisecond, c.laggards...)
	})
}

// twins: clients ask twice for a slot under one key, at the same time and one after the other.
func twins(p *Plan) {
	p.quiet()
	p.Stubborn, p.Twins, p.Slots, p.Resources, p.Servers, p.Clients = true, true, 3, 2, 3, 8
	p.scatter(60, CutTo, CutFrom)
	for i := range p.Faults {
		p.Faults[i].For = min(p.Faults[i].For, p.MaxTTL/3)
	}
}

// crowd: more clients than slots, of which each asks a part of the nodes.
func crowd(p *Plan) {
	p.quiet()
	p.Slots, p.Resources, p.Servers, p.Clients, p.Keepers, p.Keep = 2, 1, 3, 9, 9, 0.5
	p.scatter(200, CutTo)
}

// gathering: acquisitions of several wait for one part for longer than the others last.
func gathering(p *Plan) {
	p.quiet()
	p.Queues, p.Several, p.Resources, p.Servers, p.Clients, p.Forget = true, 0.6, 4, 3, 8, 0.1
	p.Faults = nil
}

// partly: acquisitions of several get some and fail.
func partly(p *Plan) {
	p.quiet()
	p.Tidy, p.New, p.Servers, p.Loss, p.Late = true, true, 1, 0, 0
	p.MaxTTL, p.Several, p.Resources, p.Clients = 15*time.Second, 0.6, 6, 6
	p.Faults = nil
}

// severalAgain: several attempts at the same resources under one key, some of which fail.
func severalAgain(p *Plan) {
	reusing(p)
	p.Several, p.Resources = 1, 3
}

// apart: two or three node sets, of which the first is cut off again and again, and
// leases of resources of several of them.
func apart(p *Plan) {
	p.perfect()
	rng := rand.New(rand.NewPCG(p.Seed, 0))
	p.Rates, p.Faults = p.Rates[:p.Nodes], nil
	p.Several, p.Resources, p.Servers, p.Clients = 0.4, 8, 2, 6
	p.scene(8*p.MaxTTL, func(at func(time.Duration) time.Duration, _ cast) { p.fault(at(0), Outage, 4*p.MaxTTL, 0) })
	outages := p.Faults
	p.Faults = nil
	p.spread(rng, 2+rng.IntN(2))
	p.Faults = outages
}

// jumping: leases are given while the laggards are cut off, and stay; the laggards come
// back, and the last node's clock jumps.
func jumping(p *Plan) {
	p.perfect()
	p.Clocks, p.Clients, p.Resources, p.Extend, p.Old, p.Keep, p.Forget = true, 8, 6, 0, 0, 0, 0.7
	p.MaxTTL, p.Seen = time.Second, 250*time.Millisecond
	rng := rand.New(rand.NewPCG(p.Seed, 0))
	ttl := p.MaxTTL
	p.scene(4*ttl, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Isolate, ttl/2, c.laggards...)
		p.fault(at(ttl*6/10), Jump, 250*time.Millisecond+jumpOf(rng), c.last)
	})
}

// setBack: the last node is lost, and a knower's clock is set back just before it is read
// for the rejoin: what is carried of its locks would last for as long as the jump.
func setBack(p *Plan) {
	p.quiet()
	p.Clocks, p.Disasters, p.New, p.Clients, p.Resources, p.Forget, p.Extend, p.Old = true, true, false, 8, 6, 0.7, 0, 0
	p.Loss, p.Late, p.Length = 0, 0, 3*time.Second
	rng := rand.New(rand.NewPCG(p.Seed, 0))
	p.scene(6*p.MaxTTL, func(at func(time.Duration) time.Duration, c cast) {
		lost := at(0)
		p.fault(lost, Lose, 0, c.last)
		p.fault(lost+p.MaxTTL+between(rng, 0, 4*p.Watch), Jump, -time.Minute-jumpOf(rng), c.knowers[0])
	})
}

// sleeping: servers lose time, and see all clocks jump.
func sleeping(p *Plan) {
	p.perfect()
	p.Clocks, p.Servers, p.MaxTTL, p.Faults = true, 2, 2*time.Second, nil
	rng := rand.New(rand.NewPCG(p.Seed, 0))
	p.scene(3*time.Second, func(at func(time.Duration) time.Duration, _ cast) {
		p.Faults = append(p.Faults, Fault{At: at(0), Kind: Sleep, Server: rng.IntN(2), For: time.Second + jumpOf(rng)})
	})
}

// alone: the last node's clock jumps while the others are no quorum.
func alone(p *Plan) {
	p.perfect()
	p.Clocks, p.MaxTTL = true, 2*time.Second
	rng := rand.New(rand.NewPCG(p.Seed, 0))
	ttl := p.MaxTTL
	p.scene(4*ttl, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Isolate, 2*ttl, c.laggards...)
		p.fault(at(ttl/2), Jump, time.Second+jumpOf(rng), c.last)
	})
}
