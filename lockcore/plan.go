package lockcore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// plan is what should be done about the nodes as they were last seen. Making
// it does no I/O.
type plan struct {
	view     View          // the largest of the admitted nodes
	largest  View          // the largest seen anywhere
	wait     time.Duration // how long a node stays silent (rule 13)
	admitted []int
	raise    []int // admitted, in an older view
	raiseTTL []int // admitted, not told of this server's longest TTL
	rejoin   []int // have waited, and enough nodes are there to read from (rule 7)
	found    []int // a majority lost its state: found anew on these (rule 12)
	fresh    bool  // found: the operator said that the cluster is new
	pins     []pin // by node: what was seen, and must still be so when it is touched
	reasons  []string
	founded  View   // the last founding's
	why      string // why no quorum may vote
}

// pin is the state in which a node serves its wait, and which a plan is about.
// Whoever carries the plan out must not look again instead: what has come
// since did not serve the wait.
type pin struct {
	incarnation string
	note        string // of its quarantine, or that it is away
}

func (o Observation) pin() pin {
	if o.Admitted {
		return pin{o.Incarnation, AwayNote(o.View)}
	}
	return pin{o.Incarnation, o.Note}
}

func (m *membership) plan(now time.Time) plan {
	p := plan{wait: m.restartWait(), founded: m.founded(), reasons: make([]string, len(m.nodes)), pins: make([]pin, 0, len(m.nodes))}
	m.sameServer(p.reasons)
	var out, waited []int
	silent := 0
	for i := range m.sights {
		s := &m.sights[i]
		p.pins = append(p.pins, s.seen.pin())
		if s.fit() {
			p.largest = max(p.largest, s.seen.View, s.seen.Staged)
		}
		switch {
		case p.reasons[i] != "":
		case s.admitted():
			p.admitted = append(p.admitted, i)
			p.view = max(p.view, s.seen.View)
		case s.out():
			out = append(out, i)
			if s.waitLeft(p.wait, now) == 0 {
				waited = append(waited, i)
			}
		case s.err != nil:
			silent++
		}
	}
	if !m.cfg.Force {
		silent = 0
	}
	m.planAdmitted(&p)
	m.planOut(&p, out, waited, silent, now)
	return p
}

func (m *membership) planAdmitted(p *plan) {
	for _, i := range p.admitted {
		if m.sights[i].seen.View < p.view {
			p.raise = append(p.raise, i)
			p.reasons[i] = "catching up with the cluster's view"
		}
		if m.sights[i].seen.Marks.MaxTTL < m.cfg.MaxTTL {
			p.raiseTTL = append(p.raiseTTL, i)
		}
	}
}

// planOut decides about the nodes that are not admitted. The forsaken are the
// silent ones that an operator gave up.
func (m *membership) planOut(p *plan, out, waited []int, forsaken int, now time.Time) {
	n := len(m.nodes)
	if len(p.admitted) >= ReadersOf(n) {
		p.rejoin = waited
		m.explainOut(p, out, now, "it restarted, lost its data, was away during a founding or its clock jumped; it votes again once the longest TTL has passed")
		if voting := len(p.admitted) - len(p.raise); voting < QuorumOf(n) {
			p.why = fmt.Sprintf("only %d of %d nodes may vote, %d needed", voting, n, QuorumOf(n))
		}
		return
	}
	m.planFounding(p, out, waited, forsaken, now)
}

// planFounding is rule 12: only when a majority is seen to be not admitted,
// each for the whole wait.
func (m *membership) planFounding(p *plan, out, waited []int, forsaken int, now time.Time) {
	n, quorum := len(m.nodes), QuorumOf(len(m.nodes))
	switch {
	case m.allNew(out):
		p.found, p.fresh = out, true
		p.why = "the new cluster is being founded"
	case len(out) == 0 || len(out)+forsaken < quorum:
		p.why = fmt.Sprintf("%d of %d nodes are admitted and %d have lost their admission: waiting for the nodes that are unreachable or refused, which may still know the last tokens", len(p.admitted), n, len(out))
	case m.cfg.Recovery == RecoveryManual:
		p.why = fmt.Sprintf("%d of %d nodes have lost their admission and recovery is manual: run 'fencelock bootstrap'", len(out), n)
	case len(waited)+forsaken < quorum || forsaken > 0 && len(waited) < len(out) || m.almostWaited(out, p.wait, now):
		p.why = fmt.Sprintf("%d of %d nodes have lost their admission: the cluster is founded anew once the longest TTL (%s) has passed", len(out), n, p.wait.Round(time.Millisecond))
	default:
		p.found = waited
		if forsaken > 0 {
			p.found = append(p.found, p.admitted...) // too few to be read from
			slices.Sort(p.found)
		}
		p.why = "the cluster is being founded anew"
	}
	m.explainOut(p, out, now, p.why)
}

// almostWaited: a node's wait ends in a moment. Nodes that fell together are seen
// one look after the other, by every server in another order. Founded together
// they are the same nodes for all servers, which then begin with the same one.
func (m *membership) almostWaited(out []int, wait time.Duration, now time.Time) bool {
	moment := min(m.cfg.WatchInterval+m.cfg.observeTimeout(), wait/4)
	return slices.ContainsFunc(out, func(i int) bool {
		left := m.sights[i].waitLeft(wait, now)
		return left > 0 && left <= moment
	})
}

func (m *membership) explainOut(p *plan, out []int, now time.Time, why string) {
	for _, i := range out {
		p.reasons[i] = why
		if m.sights[i].waitLeft(p.wait, now) == 0 && p.found == nil && len(p.rejoin) > 0 {
			p.reasons[i] = "it has waited and is being admitted"
		}
	}
}

// allNew: the operator said so, every node is there, and none holds anything.
func (m *membership) allNew(out []int) bool {
	if !m.cfg.New || len(out) < len(m.nodes) {
		return false
	}
	for _, i := range out {
		if !m.sights[i].seen.Empty {
			return false
		}
	}
	return true
}

// restartWait is the longest TTL in use that anybody recorded as far as this server
// has ever seen, with the drift allowance: the records go with the nodes.
func (m *membership) restartWait() time.Duration {
	longest := max(m.cfg.MaxTTL, m.longest)
	return longest + drift(longest)
}

// mostRecordedTTL bounds what a broken record may ask for.
const mostRecordedTTL = 24 * time.Hour

// sameServer gives its reason to every node that turns out to be one server
// under two addresses: two masters never share an incarnation.
func (m *membership) sameServer(reasons []string) {
	for i := range m.sights {
		for j := range i {
			a, b := &m.sights[i], &m.sights[j]
			if a.seen.Incarnation == b.seen.Incarnation && a.fit() && b.fit() {
				const why = "it is the same server as %s: every node must be one of its own"
				reasons[i] = fmt.Sprintf(why, m.nodes[j].Name())
				reasons[j] = fmt.Sprintf(why, m.nodes[i].Name())
			}
		}
	}
}

// clusterOf names a node set, whatever the order it is listed in.
func clusterOf(nodes []Node) Cluster {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name()
	}
	slices.Sort(names)
	sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
	return Cluster{Nodes: len(nodes), Hash: hex.EncodeToString(sum[:8])}
}
