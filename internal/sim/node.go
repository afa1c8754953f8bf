package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/replica/memstore"
)

// simNode is a simulated node: the model, a clock that runs at its own rate, and its links to the servers.
type simNode struct {
	w           *world
	id          int
	set         int // number of its set in the plan
	name        string
	model       *nodetest.Model
	rules       rules
	links       []link            // by server
	down        bool              // requests that arrive are lost
	frozenUntil time.Duration     // requests that arrive wait
	saved       memstore.Snapshot // the state that a rollback restores
	hasSaved    bool
	clock       func() time.Time
	troubled    time.Duration // until when a fault may keep it from voting
	stale       bool          // its data may last longer than intended: its clock jumped back and no server saw it
	expulsions  int           // number of expulsions after the last fault
	// bound lists the owners, of idempotency keys, whose attempts the node does not know completely. It keeps
	// their locks until they are released, or expire.
	bound map[string]bool
	blind []window // times in which its clock had jumped, and no server can have seen it
}

// window is a period.
type window struct{ from, until time.Duration }

// jump sets the clock. No server can see it at once: rule 22 promises only that servers see it soon. Whatever
// the node had promised before ends within the longest TTL.
func (n *simNode) jump(by time.Duration) {
	const sure = 2 * 100 * time.Millisecond // a smaller jump may pass for normal drift
	p, now := &n.w.plan, n.w.now()
	seen := p.MaxTTL
	if p.Seen > 0 && by.Abs() > sure {
		seen = p.Seen
	}
	n.blind = append(n.blind, window{now, now + seen})
	n.stale = n.stale || by < -p.MaxTTL
	n.model.JumpClock(by)
}

// unlock ends every lock on a stale node, as an operator does in the end.
func (n *simNode) unlock() {
	if !n.stale {
		return
	}
	n.blind = append(n.blind, window{n.w.now(), n.w.now() + n.w.plan.MaxTTL})
	for _, resource := range n.w.names {
		n.model.ExpireNow(resource)
	}
}

// expelled records that the node is quarantined because its clock had jumped.
func (n *simNode) expelled() {
	n.stale = false
	if w := n.w; w.calm {
		w.expelledAt = w.now()
		if n.expulsions++; n.expulsions > len(w.servers) { // each server may notice one jump late
			w.check.violatef("recovery", "%s was expelled %d times after the last fault", n.name, n.expulsions)
		}
	}
	for i := range n.blind {
		n.blind[i].until = min(n.blind[i].until, n.w.now())
	}
}

// blindDuring reports whether a node of the set voted in that period by a clock that had jumped.
func (w *world) blindDuring(set int, from, until time.Duration) bool {
	for _, n := range w.nodes {
		for _, b := range n.blind {
			if n.set == set && b.from <= until && from <= b.until {
				return true
			}
		}
	}
	return false
}

// sound reports whether a quorum of the set has no trouble now, and had none at `then`.
func (w *world) sound(set int, then time.Duration) bool {
	sound := 0
	for _, n := range w.nodes {
		if n.set == set && n.troubled < then {
			sound++
		}
	}
	return sound >= quorum.Of(w.plan.Nodes)
}

// link is the way between a server and a node.
type link struct{ cutTo, cutFrom time.Duration } // until when each direction is cut

func newNode(w *world, id int) *simNode {
	n := &simNode{
		w: w, id: id, set: id / w.plan.Nodes, name: fmt.Sprintf("node%d", id+1),
		links: make([]link, w.plan.Servers), bound: make(map[string]bool), troubled: w.recovery(1),
	}
	rate := w.plan.Rates[id]
	n.clock = func() time.Time {
		passed := w.now()
		return w.began.Add(passed + time.Duration(float64(passed)*rate))
	}
	n.model = nodetest.NewModel(nodetest.ModelOptions{
		Name: n.name, CounterTTL: w.plan.CounterTTL, Page: w.plan.Options.page(), Weak: w.plan.Mutant.weak, Now: n.clock,
	})
	if n.rules = n.model; w.plan.Mutant.wrap != nil {
		n.rules = w.plan.Mutant.wrap(n)
	}
	return n
}

// rules executes a message on a node: the model, or a mutant in front of it.
type rules interface {
	node.Node
	Apply(op node.Op) node.Reply
}

// votes reports whether the node may vote now, independent of what a mutant makes it say.
func (n *simNode) votes() bool {
	seen, err := n.model.Observe(context.Background())
	return err == nil && !n.down && seen.Admitted && seen.Unfit == ""
}

// agreed reports whether all nodes of each set vote in one epoch.
func (w *world) agreed() bool {
	epochs := make(map[int]node.Epoch)
	for _, n := range w.nodes {
		seen, err := n.model.Observe(context.Background())
		if epoch, known := epochs[n.set]; err != nil || n.down || !seen.Admitted || known && epoch != seen.Epoch {
			return false
		}
		epochs[n.set] = seen.Epoch
	}
	return true
}

// locked lists the locks of an admitted node. It omits locks that no attempt may retract, unless bound is
// true.
func (n *simNode) locked(bound bool) []string {
	resources, _, err := n.model.Scan(context.Background(), "", "", 1000)
	if err != nil {
		return []string{"(" + err.Error() + ")"}
	}
	return slices.DeleteFunc(resources, func(resource string) bool {
		return !bound && n.bound[n.model.Read(resource).Owner]
	})
}

// waiting returns how many tickets are in the queue for the resource.
func (n *simNode) waiting(resource string) int {
	return n.model.Read(resource).Waiting
}
