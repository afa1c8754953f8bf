package membership

import (
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// Epoch is the epoch in which the server asks for votes. Any is safe: a node in
// another epoch refuses (rule 8). Votes count only in the nodes' own.
func (c *Controller) Epoch() node.Epoch { return node.Epoch(c.epoch.Load()) }

// Learn adopts an epoch that a node returned, if it is larger than the known one.
func (c *Controller) Learn(e node.Epoch) {
	for {
		known := c.epoch.Load()
		if int64(e) <= known || e > node.MaxEpoch || c.epoch.CompareAndSwap(known, int64(e)) {
			return
		}
	}
}

// unconfirmedEpoch is a known epoch that is larger than that of every node of a
// quorum. A broken node returned it, or a node that has left since, or it is from
// before all nodes lost their state.
type unconfirmedEpoch struct {
	epoch node.Epoch
	since time.Time
}

// settleEpoch returns to the nodes' own epoch when the known one was above it for
// several observations: else no vote would ever be granted. c.mu is held.
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

// epochBits is how many low bits of a bootstrap's epoch are random.
const epochBits = 10

// bootstrapEpoch makes the epoch of a bootstrap. It follows the wall clock, so that
// it is larger than any that a lost majority knew. Its low bits are random, so that
// no other server makes the same (rule 12). It is above every epoch that this server
// knows, in case that the clock was set back.
func (c *Controller) bootstrapEpoch(largest node.Epoch) node.Epoch {
	clock := node.Epoch(time.Now().UnixMilli())<<epochBits | node.Epoch(c.cfg.Random.Below(1<<epochBits))
	return max(clock, c.rejoinEpoch(max(largest, c.Epoch())))
}

// rejoinEpoch makes the epoch of a rejoin: just above the largest seen (rule 9). It
// does not follow the clock, so that a rejoin among nodes that missed a bootstrap
// stays below the bootstrap's epoch.
func (c *Controller) rejoinEpoch(largest node.Epoch) node.Epoch {
	const steps = 16
	return largest + 1 + node.Epoch(c.cfg.Random.Below(steps))
}
