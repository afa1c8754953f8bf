package redlock

import (
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// knownView is the view that a server asks for votes in. Any is sound, since a
// node in another one refuses (rule 8); only in the nodes' own do they count.
type knownView struct{ atomic.Int64 }

func (k *knownView) view() node.View { return node.View(k.Load()) }

// learn adopts a larger view than the one known.
func (k *knownView) learn(v node.View) {
	for {
		known := k.Load()
		if int64(v) <= known || v > node.MaxView || k.CompareAndSwap(known, int64(v)) {
			return
		}
	}
}

// A doubt is about a view that is larger than every node's of a quorum: one that
// a broken node made up, that a node bears which has gone since, or from before
// every node lost what it knew.
type doubt struct {
	of    node.View
	since time.Time
}

// settleView goes back to the nodes' own view where the known one has been above
// it for several looks: votes would be asked for in vain for ever.
func (m *membership) settleView(p plan, now time.Time) {
	known := m.view.view()
	switch {
	case len(p.admitted) < QuorumOf(len(m.nodes)) || known <= p.view:
		m.doubt = doubt{}
	case m.doubt.of != known:
		m.doubt = doubt{of: known, since: now}
	case now.Sub(m.doubt.since) > 3*m.cfg.observeTimeout():
		if m.view.CompareAndSwap(int64(known), int64(p.view)) {
			m.cfg.Logger.Warn("no node is in the view that was known: back to theirs", "known", int64(known), "theirs", int64(p.view))
		}
		m.doubt = doubt{}
	}
}
