package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// strike starts a fault, if the plan's assumptions permit it now.
func (w *world) strike(f Fault) {
	n, s := w.nodes[f.Node], w.servers[f.Server]
	losing := f.Kind <= Stop || f.Kind == Jump && w.plan.Clocks // the fault is noticed, and costs the node's admission
	if losing && !w.mayLose(n) {
		return
	}
	w.logf("fault %s", f)
	w.troubled = max(w.troubled, w.now()+f.For+w.recovery(1))
	w.struck = max(w.struck, w.now()+f.For)
	w.trace.number(int64(f.Kind))
	switch f.Kind {
	case Cut, CutTo, CutFrom:
		w.cutLink(n, s, f)
	case Isolate:
		n.isolate(f)
	case Outage:
		for _, other := range w.nodes {
			if other.set == n.set {
				other.isolate(f)
			}
		}
	case Configure:
		w.noteComplete()
		w.configure(s, f.Node)
	case Apply:
		w.command(s, apply, f.For)
	case Revert:
		w.command(s, revert, f.For)
	case Sleep:
		s.skew += f.For
		w.plan.Mutant.rash(w)
	case Crash:
		s.crash()
		w.after(f.For, func() { w.revive(s) })
	case Pause:
		s.pause(f.For)
	case Disaster:
		w.disaster(f)
	case Freeze:
		n.frozenUntil = max(n.frozenUntil, w.now()+f.For)
	default:
		n.strike(f)
	}
}

// isolate cuts the node off from all servers.
func (n *simNode) isolate(f Fault) {
	n.troubled = max(n.troubled, n.w.now()+f.For+n.w.recovery(1))
	for _, server := range n.w.servers {
		n.w.cutLink(n, server, f)
	}
}

func (w *world) revive(s *server) {
	if !s.alive() {
		s.start()
	}
}

func (w *world) cutLink(n *simNode, s *server, f Fault) {
	l, until := &n.links[s.id], w.now()+f.For
	if f.Kind != CutFrom {
		l.cutTo = max(l.cutTo, until)
	}
	if f.Kind != CutTo {
		l.cutFrom = max(l.cutFrom, until)
	}
	w.at(until+time.Millisecond, func() { n.reconnect(s) })
}

// reconnect handles a broken connection: the subscription begins again.
func (n *simNode) reconnect(s *server) {
	n.w.mu.Lock()
	r := relay{}
	if s.alive() {
		r = s.relays[n.id]
	}
	n.w.mu.Unlock()
	if r.port != nil {
		r.Subscribed()
	}
}

// mayLose keeps the assumption: unless the plan has disasters, at most m-1
// nodes at once have lost their state and are not admitted again.
func (w *world) mayLose(n *simNode) bool {
	if w.plan.Disasters {
		return true
	}
	lost := 0
	for _, other := range w.nodes {
		if other != n && other.set == n.set && !other.votes() {
			lost++
		}
	}
	return lost+1 < quorum.Of(w.plan.Nodes)
}

// strike is a fault of a single node.
func (n *simNode) strike(f Fault) {
	w := n.w
	switch f.Kind {
	case Restart:
		n.model.Restart(true)
	case Lose:
		n.model.Restart(false)
	case Flush:
		n.model.Wipe()
	case Save:
		n.saved, n.hasSaved = n.model.Snapshot(), true
	case Rollback:
		n.rollback()
		n.model.Restart(true)
	case Promote:
		before := n.model.Snapshot()
		n.rollback()
		n.model.Restart(n.hasSaved)
		w.after(f.For, func() {
			if !w.calm && w.mayLose(n) {
				n.model.Restore(before)
				n.model.Restart(true)
			}
		})
	case Demote:
		n.model.SetReplica(true)
		w.after(f.For, func() { n.model.SetReplica(false) })
	case Stop:
		n.down = true
		w.after(f.For, func() { n.up() })
	case Drop:
		for _, resource := range w.names {
			n.model.DropCounter(resource)
		}
	case Expire:
		for _, resource := range w.names {
			n.model.ExpireNow(resource)
		}
	case Jump:
		if w.plan.Clocks && w.sound(n.set, w.now()) { // the others are a quorum without it, so it is expelled
			n.troubled = w.now() + w.recovery(1)
		}
		n.jump(f.For)
		w.plan.Mutant.rash(w, n)
	case Forge:
		n.forge()
	}
}

// forge sends an operation with a made-up token that no server sent for a lease of its own. The token is small
// enough that servers do not take the node for broken.
func (n *simNode) forge() {
	const far = 1 << 50
	seen, _ := n.model.Observe(context.Background())
	for _, resource := range n.w.names {
		n.model.Apply(node.Op{
			Kind: node.OpRelease, Epoch: seen.Epoch, Map: seen.Marks.Map.Name,
			Resource: resource, Owner: "forged", Token: node.FloorAt(n.clock()) + far,
		})
	}
}

func (n *simNode) rollback() {
	if n.hasSaved {
		n.model.Restore(n.saved)
	}
}

// up ends a stop.
func (n *simNode) up() {
	if n.down {
		n.down = false
		n.model.Restart(true)
	}
}

// disaster takes down a majority of the nodes, or all, at once.
func (w *world) disaster(f Fault) {
	rng := rand.New(rand.NewPCG(w.plan.Seed, uint64(f.At)))
	most, first := w.plan.Nodes, w.nodes[f.Node].set*w.plan.Nodes
	for _, i := range rng.Perm(most)[:most/2+1+rng.IntN(most/2+1)] {
		n := w.nodes[first+i]
		w.logf("disaster at %s", n.name)
		switch rng.IntN(4) {
		case 0:
			n.model.Restart(false)
		case 1:
			n.rollback()
			n.model.Restart(true)
		default:
			n.model.Restart(true)
		}
	}
}

// heal ends every fault. This includes a network whose round trip takes longer than a request waits for a
// node, because few requests succeed over it.
func (w *world) heal() {
	w.calm, w.calmAt = true, w.now()
	w.troubled = max(w.troubled, w.now()+w.recovery(1))
	w.plan.Loss, w.plan.Double, w.plan.Late = 0, 0, 0
	w.plan.Delay = min(w.plan.Delay, w.plan.NodeTimeout/4)
	w.logf("calm")
	for _, n := range w.nodes {
		n.up()
		n.model.SetReplica(false)
		n.unlock()
		n.frozenUntil = 0
		for i := range n.links {
			n.links[i] = link{}
		}
	}
	for _, s := range w.servers {
		s.pausedUntil = 0
		w.revive(s)
		for _, n := range w.nodes {
			n.reconnect(s)
		}
	}
}
