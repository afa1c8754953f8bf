package membership

import (
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// knownEpoch is the epoch that a server asks for votes in. Any is sound, since a
// node in another one refuses (rule 8); only in the nodes' own do they count.
type knownEpoch struct{ atomic.Int64 }

func (k *knownEpoch) current() node.Epoch { return node.Epoch(k.Load()) }

// Epoch is the epoch that the server asks for votes in.
func (m *Controller) Epoch() node.Epoch { return m.epoch.current() }

// Learn adopts an epoch that a node named, if it is larger than the known one.
func (m *Controller) Learn(e node.Epoch) { m.epoch.learn(e) }

// learn adopts a larger epoch than the one known.
func (k *knownEpoch) learn(v node.Epoch) {
	for {
		known := k.Load()
		if int64(v) <= known || v > node.MaxEpoch || k.CompareAndSwap(known, int64(v)) {
			return
		}
	}
}

// A doubt is about an epoch that is larger than every node's of a quorum: one that
// a broken node made up, that a node bears which has gone since, or from before
// every node lost what it knew.
type unknownEpoch struct {
	of    node.Epoch
	since time.Time
}

// settleEpoch goes back to the nodes' own epoch where the known one has been above
// it for several looks: votes would be asked for in vain for ever.
func (m *Controller) settleEpoch(p plan, now time.Time) {
	known := m.epoch.current()
	switch {
	case len(p.admitted) < quorum.Of(len(m.nodes)) || known <= p.epoch:
		m.unconfirmed = unknownEpoch{}
	case m.unconfirmed.of != known:
		m.unconfirmed = unknownEpoch{of: known, since: now}
	case now.Sub(m.unconfirmed.since) > 3*m.cfg.observeTimeout():
		if m.epoch.CompareAndSwap(int64(known), int64(p.epoch)) {
			m.cfg.Logger.Warn("no node is in the epoch that was known: back to theirs", "known", int64(known), "theirs", int64(p.epoch))
		}
		m.unconfirmed = unknownEpoch{}
	}
}
