package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// growing changes the node sets while leases are held (rule 30): a third set is added and removed again.
// Operators begin, continue and take back the changes at several servers, which crash, are paused and cut
// off. One server gets each map much later than the others. Some requests arrive late during the whole run.
func growing(p *Plan) {
	p.quiet()
	rng := rand.New(rand.NewPCG(p.Seed, 30))
	p.Servers, p.Clients, p.Keepers, p.Resources, p.Keep, p.Forget = 3, 8, 3, 10, 0.05, 0.1
	p.MaxTTL, p.Length, p.Pause, p.Several = time.Second, 14*time.Second, 5*time.Millisecond, pick(rng, 0, 0.2)
	p.Maps, p.Sets = [][]int{{0, 1}, {0, 1, 2}, {0, 1}}, 3
	p.Rates = nil
	for range p.Nodes * p.Sets {
		p.Rates = append(p.Rates, (rng.Float64()-0.5)*0.008)
	}
	p.Tardy = []Tardy{
		{Kind: "release", Chance: 0.1, Min: 5 * time.Millisecond, Max: 40 * time.Millisecond},
		{Kind: "extend", Chance: 0.02, Again: true, Min: 5 * time.Millisecond, Max: 2 * p.MaxTTL},
		{Kind: "install-map", Chance: 0.05, Min: 5 * time.Millisecond, Max: 200 * time.Millisecond},
		{Kind: "receive", Chance: 0.05, Again: true, Min: 5 * time.Millisecond, Max: 2 * p.MaxTTL},
	}
	p.Faults = nil
	began := 3 * time.Second
	for change := range len(p.Maps) - 1 {
		begin := began + time.Duration(change)*p.Length/3
		for server := range p.Servers {
			late := time.Duration(server) * 100 * time.Millisecond
			if server == p.Servers-1 {
				late = 2 * time.Second
			}
			p.Faults = append(p.Faults, Fault{At: begin + late, Kind: Configure, Server: server, Node: change})
		}
		for at := begin + time.Second; at < begin+p.Length/3; at += between(rng, 50*time.Millisecond, 800*time.Millisecond) {
			kind := pick(rng, Apply, Apply, Apply, Revert)
			p.Faults = append(p.Faults, Fault{At: at, Kind: kind, Server: rng.IntN(p.Servers)})
			trouble := Fault{At: at + between(rng, 0, 30*time.Millisecond), Server: rng.IntN(p.Servers), Node: rng.IntN(p.Nodes * p.Sets)}
			trouble.Kind = pick(rng, Pause, Crash, Isolate, Lose, Cut, Restart, Restart)
			trouble.For = between(rng, 10*time.Millisecond, p.MaxTTL/2)
			if rng.IntN(2) == 0 {
				p.Faults = append(p.Faults, trouble)
			}
		}
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
}

// unlike gives servers different lists of node sets from the first start on: one set fewer, one more, or
// another set. They crash, are paused and are cut off while they start.
func unlike(p *Plan) {
	p.quiet()
	rng := rand.New(rand.NewPCG(p.Seed, 26))
	p.Servers, p.Clients, p.Keepers, p.Resources, p.Sets = 3, 8, 0, 10, 3
	p.MaxTTL, p.Length, p.Several = time.Second, 8*time.Second, pick(rng, 0, 0.2)
	one, other := []int{0, 1}, pick(rng, []int{0}, []int{1}, []int{0, 1, 2}, []int{1, 2})
	p.Lists = [][]int{one, other, pick(rng, one, other)}
	p.Rates, p.Faults = nil, nil
	for range p.Nodes * p.Sets {
		p.Rates = append(p.Rates, (rng.Float64()-0.5)*0.008)
	}
	for range 12 {
		p.Faults = append(p.Faults, Fault{
			At: between(rng, 0, 3*time.Second), Kind: pick(rng, Pause, Crash, Isolate, Cut, Restart), Server: rng.IntN(p.Servers),
			Node: rng.IntN(p.Nodes * p.Sets), For: between(rng, 10*time.Millisecond, p.MaxTTL),
		})
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
}

// departing is growing with releases that are on their way while resources move, and with clients that extend
// leases that they have released.
func departing(p *Plan) {
	growing(p)
	p.Clients, p.Old, p.Keepers = 12, 50, 0
	p.Tardy = []Tardy{{Kind: "release", Chance: 0.8, Min: 2 * time.Millisecond, Max: 16 * time.Millisecond}}
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Kind < Configure })
}

// losing is growing with sets that lose their data.
func losing(p *Plan) {
	growing(p)
	rng := rand.New(rand.NewPCG(p.Seed, 31))
	p.Disasters = true
	for range 3 {
		p.Faults = append(p.Faults, Fault{At: between(rng, 4*time.Second, p.Length), Kind: Disaster, Node: p.Nodes * rng.IntN(p.Sets)})
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
}

// tired is growing with an operator who begins the first change again after it is complete, when the next
// change is complete or under way. The operator acts on an outdated look, at a server that still knows only
// the first change.
func tired(p *Plan) {
	growing(p)
	rng := rand.New(rand.NewPCG(p.Seed, 34))
	last := p.Servers - 1
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool {
		return f.Kind < Configure || f.Kind == Revert || f.Kind == Configure && f.Server == last
	})
	p.Faults = append(p.Faults, Fault{At: 3 * time.Second, Kind: Configure, Server: last})
	for range 4 {
		p.Faults = append(p.Faults, Fault{At: between(rng, 3*time.Second+1, 4*time.Second), Kind: Apply, Server: last, For: between(rng, p.Length/3, 2*p.Length/3)})
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
}

// forsaken is a change whose operator crashes when a set may have the next map. That set then loses its data,
// and other operators take the change back.
func forsaken(p *Plan) {
	growing(p)
	rng := rand.New(rand.NewPCG(p.Seed, 33))
	p.Disasters = true
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Kind != Configure })
	for change := range len(p.Maps) - 1 {
		at := 4*time.Second + time.Duration(change)*p.Length/3
		p.Faults = append(p.Faults,
			Fault{At: at, Kind: Apply, Server: 0},
			Fault{At: at + between(rng, 5*time.Millisecond, 100*time.Millisecond), Kind: Crash, Server: 0, For: p.MaxTTL},
			Fault{At: at + between(rng, 200*time.Millisecond, 600*time.Millisecond), Kind: Disaster, Node: p.Nodes * rng.IntN(p.Sets)})
		for late := 1500 * time.Millisecond; late < 3*time.Second; late += 300 * time.Millisecond {
			p.Faults = append(p.Faults, Fault{At: at + late, Kind: Revert, Server: 1})
		}
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
}

// unread is growing with leases on a bare quorum, and with nodes that do not respond while a change reads the
// sets.
func unread(p *Plan) {
	growing(p)
	rng := rand.New(rand.NewPCG(p.Seed, 32))
	dark := p.Nodes - quorum.Readers(p.Nodes)
	for _, f := range slices.Clone(p.Faults) {
		if f.Kind != Apply {
			continue
		}
		set := rng.IntN(p.Sets)
		for _, node := range rng.Perm(p.Nodes)[:dark] {
			p.Faults = append(p.Faults, Fault{At: f.At - between(rng, 0, 5*time.Millisecond), Kind: Isolate, Node: set*p.Nodes + node, For: between(rng, 50*time.Millisecond, p.MaxTTL/2)})
		}
	}
	for at := time.Second; at < p.Length; at += 200 * time.Millisecond {
		for set := range p.Sets {
			server := rng.IntN(p.Servers)
			for _, node := range rng.Perm(p.Nodes)[:p.Nodes-quorum.Of(p.Nodes)] {
				p.Faults = append(p.Faults, Fault{At: at, Kind: CutTo, Server: server, Node: set*p.Nodes + node, For: 200 * time.Millisecond})
			}
		}
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
}

// setsOf returns the node sets with which a server is configured; next is nil without a change.
func (s *server) setsOf(all [][]node.Node) (present, next [][]node.Node) {
	maps, lists := s.w.plan.Maps, s.w.plan.Lists
	if maps == nil && lists == nil {
		return all, nil
	}
	list := func(sets []int) (nodes [][]node.Node) {
		for _, set := range sets {
			nodes = append(nodes, all[set])
		}
		return nodes
	}
	if lists != nil {
		return list(lists[s.id]), nil
	}
	if s.change == 0 {
		return list(maps[0]), nil
	}
	return list(maps[s.change-1]), list(maps[s.change])
}

// configure restarts a server with the maps of a change, after the previous change is complete.
func (w *world) configure(s *server, change int) {
	if w.complete < change || s.change > change {
		return
	}
	s.change = change + 1
	if s.alive() {
		s.crash()
		s.start()
	}
}

// act is apply or revert of a change that is planned from this generation of the maps.
type act func(l *sets.Locker, ctx context.Context, from int64) error

// command is an operator's command at a server. The operator first looks at the state of the change for which
// the server is configured, and sends the command some time later. A complete change needs none.
func (w *world) command(s *server, how act, later time.Duration) {
	change, from := s.change, w.generation()
	if w.noteComplete(); w.complete >= change {
		return
	}
	w.after(later, func() {
		if s.change == change {
			w.operate(s, how, from)
		}
	})
}

// generation returns the largest generation of the nodes' maps.
func (w *world) generation() (largest int64) {
	for _, n := range w.nodes {
		if seen, err := n.model.Observe(context.Background()); err == nil {
			largest = max(largest, seen.Marks.Map.Generation)
		}
	}
	return largest
}

// operate is a change of the node sets by an operator at a server.
func (w *world) operate(s *server, how act, from int64) {
	if !s.alive() || s.change == 0 {
		return
	}
	o := &operation{server: s, epoch: s.epoch, change: s.change, caller: w.caller()}
	ctx, locker := context.WithValue(s.ctx, operator{}, true), s.real
	w.underWay++
	s.operating++
	w.logf("server %d changes the sets (%d)", s.id+1, s.change)
	o.caller <- func() {
		if w.plan.Mutant.timeless {
			from = locker.Generation()
		}
		o.err = how(locker, ctx, from)
		w.post(o)
	}
}

// operator is the context key of operators' calls.
type operator struct{}

// operation is a change by an operator that has returned.
type operation struct {
	server        *server
	epoch, change int
	caller        chan<- func()
	err           error
}

func (o *operation) rank() rank { return rank{server: o.server.id, kind: kindOf("done"), n: -1} }

func (o *operation) accept(w *world) {
	w.callers = append(w.callers, o.caller)
	w.underWay--
	w.logf("server %d has changed the sets (%d): %v", o.server.id+1, o.change, o.err)
	if o.epoch == o.server.epoch {
		o.server.operating--
	}
}

func apply(l *sets.Locker, ctx context.Context, from int64) error { //nolint:revive // as act
	return l.ApplyNext(ctx, from)
}

func revert(l *sets.Locker, ctx context.Context, from int64) error { //nolint:revive // as act
	return l.RevertNext(ctx, from)
}

// noteComplete counts the changes that all nodes have completed. After each one, the operators configure the
// servers for the next.
func (w *world) noteComplete() {
	for w.complete < len(w.plan.Maps)-1 {
		if !w.allHave(w.mapNames[w.complete+1]) {
			return
		}
		w.complete++
	}
}

// allHave reports whether all nodes vote under the map with that name.
func (w *world) allHave(name string) bool {
	return !slices.ContainsFunc(w.nodes, func(n *simNode) bool {
		seen, err := n.model.Observe(context.Background())
		return err != nil || !seen.Admitted || seen.Marks.Map.Name != name
	})
}

// begunAgain records that a completed change has begun again on a node that had the map in force, so that
// servers that know no other map lose every lease. If a set lost its data later, it is given the maps of the
// change again, which is no violation.
func (w *world) begunAgain(had, installed string) {
	if !slices.Contains(w.mapNames, had) {
		return
	}
	for change := 1; change <= w.complete; change++ {
		if strings.HasPrefix(installed, w.mapNames[change-1]+"-"+w.mapNames[change]+"-") {
			w.check.violatef("changes", "the change %d of the node sets is complete, and began again", change)
		}
	}
}

// completeChange makes an operator continue the change under way until all nodes have its map.
func (w *world) completeChange() {
	if w.plan.Maps == nil {
		return
	}
	change := slices.MaxFunc(w.servers, func(a, b *server) int { return a.change - b.change }).change
	for _, s := range w.servers {
		if s.change != change {
			s.change = change
			if s.alive() {
				s.crash()
				s.start()
			}
		}
	}
	deadline := w.now() + 2*w.recovery(1) + 10*time.Second
	for s := w.servers[0]; !w.check.failed(); {
		switch {
		case s.change == 0, w.allHave(w.mapNames[s.change]):
			return
		case w.now() > deadline:
			w.check.violatef("recovery", "the change of the node sets is not complete %s after the last fault", w.now()-w.calmAt)
		case s.operating == 0:
			w.operate(s, apply, w.generation())
		}
		w.runUntil(w.now() + 100*time.Millisecond)
	}
}

// uncounted is a mutant node that counts votes by the present map while resources move.
type uncounted struct{ *nodetest.Model }

func (u uncounted) Apply(op node.Op) node.Reply {
	const dashes = 2
	if seen, err := u.Observe(context.Background()); err == nil && strings.Count(seen.Marks.Map.Name, "-") >= dashes {
		op.Map = seen.Marks.Map.Name
	}
	return u.Model.Apply(op)
}

// certain is a mutant node that takes no lock for a lease of which too little was read.
type certain struct{ *nodetest.Model }

func (c certain) Receive(ctx context.Context, epoch node.Epoch, name string, locks []node.CarriedLock) error {
	locks = slices.Clone(locks)
	locks = slices.DeleteFunc(locks, func(l node.CarriedLock) bool { return strings.HasPrefix(l.Owner, "-") })
	return c.Model.Receive(ctx, epoch, name, locks)
}
