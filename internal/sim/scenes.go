package sim

import (
	"math/rand/v2"
	"slices"
	"time"
)

// The scenes are plans that create, again and again, the situation that one rule protects against. In most of
// them the last node loses its state, some nodes (the laggards) know fewer grants than were made, and the
// others (the knowers) know all. Laggards and knowers are each one node short of a quorum, which the last node
// completes.

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
	{"growing", growing}, {"losing", losing}, {"unread", unread}, {"unlike", unlike},
}

// DrawPlan makes the plan of a seed. Three of four seeds get a plan of NewPlan. The others get a scene, and half of
// the scenes use the network of NewPlan's plan.
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

// cast assigns the nodes their roles.
type cast struct {
	knowers  []int // m-1 nodes
	laggards []int // m-1 nodes
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

// scene repeats what happens, each time a little differently: at draws a moment soon after the given one.
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

// quiet is a network that does only what the scene needs.
func (p *Plan) quiet() {
	p.Tidy, p.Disasters, p.Slow, p.Wild, p.Stubborn, p.Queues, p.Clocks = false, false, false, false, false, false, false
	p.Sets, p.Several, p.Breaks, p.Slots = 1, 0, 0, 0
	p.Loss, p.Late, p.Double = 0.001, 0.001, 0
	p.MaxTTL, p.NodeTimeout, p.Watch, p.Delay = 300*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond, 500*time.Microsecond
	p.Length, p.Dream, p.Forget = 10*time.Second, 0, 0.02
	p.Pause = 5 * time.Millisecond
}

// rejoined is about how long after its loss the last node votes again.
func (p *Plan) rejoined() time.Duration { return p.MaxTTL*11/10 + 2*p.Watch }

// forgetful: the last node forgets everything, or the latest part, while the laggards know fewer grants than
// were made. Clients keep leases meanwhile, so that their counters are carried to the last node. Then the
// knowers are cut off, and the last node forms a quorum with the laggards.
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

// revived: the last node comes back with an older state. The laggards, who come back just in time for its
// admission, do not know more.
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

// crossing: messages of an attempt of the slow server are on their way while the last node, whose vote counts
// in it, loses its state and comes back. That node's counters were dropped, so that it grants the largest
// token. The knowers' clocks are slow, so that the attempt's locks still exist.
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

// again: the messages that admitted the last node arrive again, after it was lost again.
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

// reloading: the state that was carried to the last node arrives again, after further leases were granted.
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

// flushed: the last node is emptied twice, and one server was cut off from it while it voted in between.
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

// duels: several servers bootstrap the cluster at once, and one of them is slow.
func duels(p *Plan) {
	p.quiet()
	p.Servers, p.Disasters, p.New, p.MaxTTL = 3, true, false, 500*time.Millisecond
	p.Tardy = []Tardy{{Kind: "stage", Chance: 0.4, Min: 10 * time.Millisecond, Max: 400 * time.Millisecond}}
	p.scene(3*p.MaxTTL, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Disaster, 0, c.last)
	})
}

// shortening: extends arrive again, after later extends with a longer TTL.
func shortening(p *Plan) {
	p.quiet()
	p.Resources, p.Extend, p.Old = 2, 80, 0
	p.Pause = 40 * time.Millisecond
	p.Tardy = []Tardy{{Kind: "extend", Chance: 0.7, Again: true, Min: 5 * time.Millisecond, Max: p.MaxTTL / 2}}
	p.Faults = nil
}

// revenants: acquires arrive again, after their lease has ended and others were granted, and the first client
// still extends its lease.
func revenants(p *Plan) {
	p.quiet()
	p.Resources, p.Old, p.Extend = 2, 40, 10
	p.Tardy = []Tardy{{Kind: "acquire", Chance: 0.5, Again: true, Min: 5 * time.Millisecond, Max: p.MaxTTL / 2}}
	p.Faults = nil
}

// holding: resources stay locked for a while after their release, and clients extend leases that they have
// released.
func holding(p *Plan) {
	p.quiet()
	p.Resources, p.Old, p.Extend, p.MinHold = 2, 40, 10, true
	p.Faults = nil
}

// unreachable: the last node is lost, and one server cannot reach the knowers, which vote for the other
// servers meanwhile.
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

// relapse: a bootstrap has closed the last node and opened others. A rejoin that began earlier would open the
// last node in the old epoch. There it would form a quorum with the laggards, for a server that cannot reach
// the others.
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

// missing: the last node misses a bootstrap, and rejoins while leases of the new epoch are released. Its
// carried state is written late, and some releases come late.
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

// crossed: an attempt of the slow server is confirmed late, after its acquire has arrived again. Locks expire
// early all the time.
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

// lowCarried: a lease has a smaller grant on the laggards, where it was not confirmed. It is carried to the
// last node, and then requested again under its key.
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

// reusing: clients release leases and take the resource again under the same key, while earlier releases and
// retractions are on their way. Many of these are late, or arrive twice.
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

// sparing: the last node's replies to acquires are lost. The retractions of its votes come late, after extends
// have counted the votes while a knower was cut off.
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

// keeping: extends keep leases under keys. They find the lock of the key's previous lease, whose release is
// late, or a vote whose retraction is late.
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

// expiring: leases are short, on a slow network, and expire while others wait for them.
func expiring(p *Plan) {
	p.quiet()
	p.Delay, p.Forget, p.Queues, p.Extend = 4*time.Millisecond, 0.9, true, 5
	p.Faults = nil
}

// perfect is a network without any faults.
func (p *Plan) perfect() {
	p.quiet()
	p.Perfect, p.Loss, p.Late, p.Length = true, 0, 0, 20*time.Second
}

// breaking: leases are broken whose holders still extend them, while some nodes get the break late, and some
// know fewer grants than were made.
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

// strayVotes: leases are granted while the laggards are cut off. The laggards come back, and vote for attempts
// that fail. These votes stay for a while, and so do breaks on their way.
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

// ahead: like strayVotes, but breaks travel for long. A break whose token comes from a node with a larger
// counter reaches the other nodes after they have granted a later lease.
func ahead(p *Plan) {
	strayVotes(p)
	p.Resources, p.Breaks = 1, 0.3
	p.Tardy[1].Chance = 0.7
}

// refusing: leases are granted while the laggards are cut off, and then extended on one node only. Two servers
// each reach one of the other nodes, so their attempts get its vote, and fail. The messages that retract the
// votes and release the lease travel for long. The third server reaches all nodes again, and the holder
// continues to extend.
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

// rings: all clients wait for the same resources, and each requests them in a different order.
func rings(p *Plan) {
	p.perfect()
	p.Queues, p.Wait, p.Several, p.Resources, p.Servers, p.Clients, p.Forget = true, 8*time.Second, 1, 2, 3, 6, 0
	p.Faults = nil
}

// slotted: clients wait for slots, some of which are kept for long.
func slotted(p *Plan) {
	p.perfect()
	p.Queues, p.Wait, p.Slots, p.Resources, p.Servers, p.Clients, p.Forget = true, 8*time.Second, 3, 1, 3, 7, 0.1
	p.Keepers, p.Keep, p.Faults = 4, 0.1, nil
}

// impatient: clients wait for any resource, repeat requests whose response was lost, hang up, and cancel.
func impatient(p *Plan) {
	p.perfect()
	p.Queues, p.Wait, p.Slots, p.Several, p.Resources, p.Servers, p.Clients = true, 8*time.Second, 2, 0.2, 3, 3, 8
	p.MaxTTL, p.Length = 8*time.Second, 40*time.Second // a lock without a holder is seen long before it expires
	p.Stubborn, p.Cancels, p.Forget, p.Faults = p.Seed%2 == 0, 0.5, 0, nil
}

// polling: clients wait by polls under keys, at either of two servers, while others wait without a key.
// Leases end by a release, by a release within the minimum hold, or by their TTL.
func polling(p *Plan) {
	impatient(p)
	p.Polls, p.Returns, p.Slots, p.Several, p.Resources, p.Clients, p.Servers = true, true, 0, 0, 1, 4, 2
	p.Options.Poll = pick(rand.New(rand.NewPCG(p.Seed, 1)), 300*time.Millisecond, time.Second, 2*time.Second)
	p.MinHold, p.HangUp, p.Cancels, p.Forget = p.Seed%2 == 0, 0.001, 0, 0.1
	p.Stubborn, p.Keep, p.Dream, p.MaxTTL, p.Pause, p.Length = false, 0, 0, 8*time.Second, 1500*time.Millisecond, time.Minute
}

// abrupt: a server that reaches only some nodes makes their counters run ahead. Then clients hang up in the
// middle of an acquisition, and repeat it at another server.
func abrupt(p *Plan) {
	impatient(p)
	p.Wait, p.Queues, p.Slots, p.Several, p.Resources, p.Cancels = 0, false, 0, 0, 1, 0
	p.HangUp, p.Delay, p.NodeTimeout, p.Stubborn = 0.7, 3*time.Millisecond, 300*time.Millisecond, true
	p.scene(time.Second, func(at func(time.Duration) time.Duration, c cast) {
		p.fault(at(0), Isolate, 300*time.Millisecond, c.laggards...)
	})
}

// twins: clients request a slot twice under one key, at the same time and one after the other.
func twins(p *Plan) {
	p.quiet()
	p.Stubborn, p.Twins, p.Slots, p.Resources, p.Servers, p.Clients = true, true, 3, 2, 3, 8
	p.scatter(60, CutTo, CutFrom)
	for i := range p.Faults {
		p.Faults[i].For = min(p.Faults[i].For, p.MaxTTL/3)
	}
}

// crowd: more clients than slots, and each client reaches only some of the nodes.
func crowd(p *Plan) {
	p.quiet()
	p.Slots, p.Resources, p.Servers, p.Clients, p.Keepers, p.Keep = 2, 1, 3, 9, 9, 0.5
	p.scatter(200, CutTo)
}

// gathering: acquisitions of several resources wait for one part for longer than the other parts' TTL.
func gathering(p *Plan) {
	p.quiet()
	p.Queues, p.Several, p.Resources, p.Servers, p.Clients, p.Forget = true, 0.6, 4, 3, 8, 0.1
	p.Faults = nil
}

// partly: acquisitions of several resources get some parts and fail.
func partly(p *Plan) {
	p.quiet()
	p.Tidy, p.New, p.Servers, p.Loss, p.Late = true, true, 1, 0, 0
	p.MaxTTL, p.Several, p.Resources, p.Clients = 15*time.Second, 0.6, 6, 6
	p.Faults = nil
}

// severalAgain: several attempts at the same resources under one key; some of them fail.
func severalAgain(p *Plan) {
	reusing(p)
	p.Several, p.Resources = 1, 3
}

// apart: two or three node sets, the first of which is cut off again and again, and leases that span several
// sets.
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

// jumping: leases are granted while the laggards are cut off, and stay. The laggards come back, and the last
// node's clock jumps.
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

// setBack: the last node is lost, and a knower's clock is set back just before the rejoin reads it, so that
// the locks carried from it would last for as long as the jump.
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

// alone: the last node's clock jumps while the others are not a quorum.
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
