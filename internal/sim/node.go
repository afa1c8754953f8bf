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

// node is one simulated node: the model, a clock that runs at its own rate,
// and its links to the servers.
type simNode struct {
	w           *world
	id          int
	set         int // of the plan's node sets
	name        string
	model       *nodetest.Model
	rules       rules
	links       []link            // by server
	down        bool              // requests that arrive are lost
	frozenUntil time.Duration     // requests that arrive wait
	saved       memstore.Snapshot // what a rollback brings back
	hasSaved    bool
	clock       func() time.Time
	troubled    time.Duration // until when it may be unable to vote, because of what has happened to it
	stale       bool          // what is on it may last for longer than it was meant to: no server saw its clock jump back
	expulsions  int           // after the last fault
	// bound has the owners, of idempotency keys, of whose attempts the node does not know
	// all: it keeps their locks until they are released, or expire.
	bound map[string]bool
	blind []window // in which its clock had jumped, and no server can have seen it
}

// window is a time from which on something is so, until it is not.
type window struct{ from, until time.Duration }

// jump sets the clock. No server can see it yet: rule 22 promises only that it is seen
// soon, and whatever the node had promised before ends within the longest TTL.
func (n *simNode) jump(by time.Duration) {
	const sure = 2 * 100 * time.Millisecond // what is less may be taken for a clock's ordinary way
	p, now := &n.w.plan, n.w.now()
	seen := p.MaxTTL
	if p.Seen > 0 && by.Abs() > sure {
		seen = p.Seen
	}
	n.blind = append(n.blind, window{now, now + seen})
	n.stale = n.stale || by < -p.MaxTTL
	n.model.JumpClock(by)
}

// unlock is what an operator does in the end on a node that is stale: it ends every lock.
func (n *simNode) unlock() {
	if !n.stale {
		return
	}
	n.blind = append(n.blind, window{n.w.now(), n.w.now() + n.w.plan.MaxTTL})
	for _, resource := range n.w.names {
		n.model.ExpireNow(resource)
	}
}

// expelled: it is quarantined because its clock had jumped.
func (n *simNode) expelled() {
	n.stale = false
	if w := n.w; w.calm {
		w.expelledAt = w.now()
		if n.expulsions++; n.expulsions > len(w.servers) { // each may notice a jump late, once
			w.check.violatef("recovery", "%s was expelled %d times after the last fault", n.name, n.expulsions)
		}
	}
	for i := range n.blind {
		n.blind[i].until = min(n.blind[i].until, n.w.now())
	}
}

// blindDuring reports whether a node of the set voted, in that time, by a clock that
// had jumped.
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

// sound reports whether a quorum of the set is in no trouble, and was in none then.
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
type link struct{ cutTo, cutFrom time.Duration } // cut until

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

// rules is what a node does with a message: the model, or a mutant before it.
type rules interface {
	node.Node
	Apply(op node.Op) node.Reply
}

// votes reports whether the node may vote now, whatever a mutant makes it say.
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

// locked lists what is locked on the node, in an admitted one; without the locks that
// no attempt may retract, if they are not asked for.
func (n *simNode) locked(bound bool) []string {
	resources, _, err := n.model.Scan(context.Background(), "", "", 1000)
	if err != nil {
		return []string{"(" + err.Error() + ")"}
	}
	return slices.DeleteFunc(resources, func(resource string) bool {
		return !bound && n.bound[n.model.Read(resource).Owner]
	})
}

// waiting is how many tickets stand in the queue for the resource.
func (n *simNode) waiting(resource string) int {
	return n.model.Read(resource).Waiting
}
