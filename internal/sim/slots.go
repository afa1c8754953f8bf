package sim

import (
	"context"
	"slices"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
)

// A slot is a resource of its own. The checks of every resource therefore ensure that no two clients hold the
// same slot, and that its tokens rise. The following checks concern all slots of a resource together, and the
// queues.

// believeSlot checks that a resource has at most as many holders as it has slots, and that a key has only one
// slot.
func (c *checker) believeSlot(name string, s span) {
	resource, slot := lockcore.SlotOf(name)
	if slot == 0 {
		return
	}
	owners := []string{s.owner}
	for _, other := range lockcore.SlotNames(resource, c.w.plan.Slots) {
		l := c.ledger(other)
		for _, o := range l.spans {
			switch {
			case l.excused(o) || l.excused(s) || !o.meets(s):
			case o.owner == s.owner && other != name && o.value == s.value: // under another secret a key has another value
				c.violatef("slot of a key", "%s is held with token %d from %s until %s, and %s, under the same key, with token %d from %s until %s",
					other, o.token, o.from, o.until, name, s.token, s.from, s.until)
			case o.from <= s.from && s.from < o.until && !slices.Contains(owners, o.owner):
				owners = append(owners, o.owner)
			}
		}
	}
	if len(owners) > c.w.plan.Slots {
		c.violatef("slots", "%s has %d slots, and %d clients hold one: %q", resource, c.w.plan.Slots, len(owners), owners)
	}
}

// overtakes checks that a lease did not go to a later request than one that waits for the same resource (first
// come, first served). It applies to a run without any faults, after the cluster is up. The nodes need a
// moment to know a ticket. Requests under a key are left out, because nodes remember their arrivals.
func (c *checker) overtakes(d *completion, name string) {
	if p := &c.w.plan; !p.Perfect || len(p.Faults) > 0 || d.key != "" || d.what.several() {
		return
	}
	const moment = 50 * time.Millisecond
	for _, a := range c.underWay {
		waits := a.waits && a.key == "" && a.until > d.at && (a.patience == 0 || a.began+a.patience > d.at) && !a.what.several()
		if waits && a.began > c.w.recovery(1) && a.began+moment < d.began && slices.Contains(a.what.names(), name) {
			c.violatef("order", "%s went to a request of %s, and one of %s waits for it", name, d.began, a.began)
		}
	}
}

// counting is a mutant node that grants any n leases of a resource with n slots. It replies with the slot that
// the owner has, or else with a free one.
type counting struct {
	*nodetest.Model

	n *simNode
}

func (c counting) Apply(op node.Op) node.Reply {
	resource, slot := lockcore.SlotOf(op.Resource)
	if slot == 0 {
		return c.Model.Apply(op)
	}
	free := ""
	for _, name := range lockcore.SlotNames(resource, c.n.w.plan.Slots) {
		switch r := c.Model.Apply(node.Op{Kind: node.OpRead, Resource: name}); {
		case r.Outcome == node.Granted && r.Owner == op.Owner:
			op.Resource = name
			return c.Model.Apply(op)
		case r.Outcome == node.NotHeld && free == "":
			free = name
		}
	}
	if free != "" {
		op.Resource = free
	}
	return c.Model.Apply(op)
}

// firstSlot requests only the first slot.
type firstSlot struct{ service }

func (f firstSlot) Acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	req.Slots = min(req.Slots, 1)
	return f.service.Acquire(ctx, req)
}
