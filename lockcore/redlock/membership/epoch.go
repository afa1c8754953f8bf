package membership

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// Epoch returns the epoch in which the server requests votes. A wrong epoch is safe, because a node in
// another epoch refuses (rule 8).
func (c *Controller) Epoch() node.Epoch { return node.Epoch(c.epoch.Load()) }

// VotingEpoch returns the epoch in which to request votes for a lease. The lease's id is sealed, so the
// server waits until it knows the secrets of that epoch: secrets from before a bootstrap open nothing
// after it (rule 24). It returns false if the nodes do not show the secrets now.
func (c *Controller) VotingEpoch(ctx context.Context) (node.Epoch, bool) {
	epoch := c.Epoch()
	keyed := func() bool {
		known := node.Epoch(c.keyed.Load())
		return known > 0 && known >= epoch
	}
	return epoch, keyed() || c.await(ctx, func(bool) bool { return keyed() })
}

// Learn adopts an epoch that a node returned, if it is larger than the known one.
func (c *Controller) Learn(e node.Epoch) {
	for {
		known := c.epoch.Load()
		if int64(e) <= known || e > node.MaxEpoch || c.epoch.CompareAndSwap(known, int64(e)) {
			return
		}
	}
}

// unconfirmedEpoch is an epoch that the server knows although every node of a quorum is in a smaller one.
// It may come from a broken node, from a node that has left since, or from before all nodes lost their
// state.
type unconfirmedEpoch struct {
	epoch node.Epoch
	since time.Time
}

// settleEpoch returns to the nodes' own epoch if the server's epoch was larger during several
// observations, because otherwise no vote would be granted any more. The caller holds c.mu.
func (c *Controller) settleEpoch(p plan, now time.Time) {
	known := c.Epoch()
	switch {
	case len(p.admitted) < quorum.Of(len(c.nodes)) || known <= p.epoch:
		c.unconfirmed = unconfirmedEpoch{}
	case c.unconfirmed.epoch != known:
		c.unconfirmed = unconfirmedEpoch{epoch: known, since: now}
	case now.Sub(c.unconfirmed.since) > 3*c.cfg.observeTimeout():
		if c.epoch.CompareAndSwap(int64(known), int64(p.epoch)) {
			c.cfg.Logger.Warn("no node is in the epoch that this server knew: it adopts the epoch of the nodes", "known", int64(known), "theirs", int64(p.epoch))
		}
		c.unconfirmed = unconfirmedEpoch{}
	}
}

// epochBits is the number of random low bits in a bootstrap's epoch.
const epochBits = 10

// bootstrapEpoch makes the epoch of a bootstrap. It is made from the wall clock, so that it is larger
// than every epoch that a lost majority knew. Its low bits are random, so that no other server makes the
// same one (rule 12). It is also larger than every epoch that this server knows, in case the clock was
// set back.
func (c *Controller) bootstrapEpoch(largest node.Epoch) node.Epoch {
	clock := node.Epoch(time.Now().UnixMilli())<<epochBits | node.Epoch(c.cfg.Random.Below(1<<epochBits))
	return max(clock, c.rejoinEpoch(max(largest, c.Epoch())))
}

// rejoinEpoch makes the epoch of a rejoin: just above the largest epoch seen (rule 9). It does not use
// the clock, so that a rejoin among nodes that missed a bootstrap stays below the bootstrap's epoch.
func (c *Controller) rejoinEpoch(largest node.Epoch) node.Epoch {
	const steps = 16
	return largest + 1 + node.Epoch(c.cfg.Random.Below(steps))
}
