package redlock

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// plan is what should be done about the nodes as they were last seen.
type plan struct {
	view     node.View     // the largest of the admitted nodes
	largest  node.View     // the largest seen anywhere
	wait     time.Duration // how long a node stays silent (rule 13)
	admitted []int
	raise    []int // admitted, in an older view
	raiseTTL []int // admitted, not told of this server's longest TTL
	// raiseSecrets are admitted and lack some of the secrets.
	raiseSecrets []int
	secrets      node.Secrets
	rejoin       []int // have waited, and enough nodes are there to read from (rule 7)
	found        []int // a majority lost its state: found anew on these (rule 12)
	fresh        bool  // found: the operator said that the cluster is new
	pins         []pin // by node: what was seen, and must still be so when it is touched
	reasons      []string
	founded      node.View // the last founding's
	why          string    // why no quorum may vote
}

// pin is the state in which a node serves its wait, and which a plan is about.
// Whoever carries the plan out must not look again instead: what has come
// since did not serve the wait.
type pin struct {
	incarnation string
	note        string // of its quarantine, or that it is away
}

func pinOf(o node.Observation) pin {
	if o.Admitted {
		return pin{o.Incarnation, node.AwayNote(o.View)}
	}
	return pin{o.Incarnation, o.Note}
}

// planFor decides, from what was seen of the nodes, the configuration and the time
// alone: the same arguments give the same plan.
func planFor(seen *observations, cfg Config, now time.Time) plan {
	return (&planner{observations: seen, cfg: cfg, now: now}).plan()
}

// planner is the arguments of planFor.
type planner struct {
	*observations
	cfg Config
	now time.Time
}

func (in *planner) plan() plan {
	p := plan{
		wait: in.restartWait(), founded: in.founded(), secrets: node.MergeSecrets(in.secrets()...),
		reasons: make([]string, len(in.sights)), pins: make([]pin, 0, len(in.sights)),
	}
	in.sameServer(p.reasons)
	var out, waited []int
	silent := 0
	for i := range in.sights {
		s := &in.sights[i]
		p.pins = append(p.pins, pinOf(s.seen))
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
			if s.waitLeft(p.wait, in.now) == 0 {
				waited = append(waited, i)
			}
		case s.err != nil:
			silent++
		}
	}
	if !in.cfg.Force {
		silent = 0
	}
	in.planAdmitted(&p)
	in.planOut(&p, out, waited, silent)
	return p
}

func (in *planner) planAdmitted(p *plan) {
	for _, i := range p.admitted {
		if in.sights[i].seen.View < p.view {
			p.raise = append(p.raise, i)
			p.reasons[i] = "catching up with the cluster's view"
		}
		if in.sights[i].seen.Marks.MaxTTL < in.cfg.MaxTTL {
			p.raiseTTL = append(p.raiseTTL, i)
		}
		if had := in.sights[i].seen.Marks.Secrets; node.MergeSecrets(had, p.secrets) != had {
			p.raiseSecrets = append(p.raiseSecrets, i)
		}
	}
}

// planOut decides about the nodes that are not admitted. The forsaken are the
// silent ones that an operator gave up.
func (in *planner) planOut(p *plan, out, waited []int, forsaken int) {
	n := len(in.sights)
	if len(p.admitted) >= ReadersOf(n) {
		p.rejoin = waited
		in.explainOut(p, out, "it restarted, lost its data, was away during a founding or its clock jumped; it votes again once the longest TTL has passed")
		if voting := len(p.admitted) - len(p.raise); voting < QuorumOf(n) {
			p.why = fmt.Sprintf("only %d of %d nodes may vote, %d needed", voting, n, QuorumOf(n))
		}
		return
	}
	in.planFounding(p, out, waited, forsaken)
}

// planFounding is rule 12: only when a majority is seen to be not admitted,
// each for the whole wait.
func (in *planner) planFounding(p *plan, out, waited []int, forsaken int) {
	n, quorum := len(in.sights), QuorumOf(len(in.sights))
	switch {
	case in.allNew(out):
		p.found, p.fresh = out, true
		p.why = "the new cluster is being founded"
	case len(out) == 0 || len(out)+forsaken < quorum:
		p.why = fmt.Sprintf("%d of %d nodes are admitted and %d have lost their admission: waiting for the nodes that are unreachable or refused, which may still know the last tokens", len(p.admitted), n, len(out))
	case in.cfg.Recovery == RecoveryManual:
		p.why = fmt.Sprintf("%d of %d nodes have lost their admission and recovery is manual: run 'fencelock bootstrap'", len(out), n)
	case len(waited)+forsaken < quorum || forsaken > 0 && len(waited) < len(out) || in.almostWaited(out, p.wait):
		p.why = fmt.Sprintf("%d of %d nodes have lost their admission: the cluster is founded anew once the longest TTL (%s) has passed", len(out), n, p.wait.Round(time.Millisecond))
	default:
		p.found = waited
		if forsaken > 0 {
			p.found = append(p.found, p.admitted...) // too few to be read from
			slices.Sort(p.found)
		}
		p.why = "the cluster is being founded anew"
	}
	in.explainOut(p, out, p.why)
}

// almostWaited: a node's wait ends in a moment. Nodes that fell together are seen
// one look after the other, by every server in another order. Founded together
// they are the same nodes for all servers, which then begin with the same one.
func (in *planner) almostWaited(out []int, wait time.Duration) bool {
	moment := min(in.cfg.WatchInterval+in.cfg.observeTimeout(), wait/4)
	return slices.ContainsFunc(out, func(i int) bool {
		left := in.sights[i].waitLeft(wait, in.now)
		return left > 0 && left <= moment
	})
}

func (in *planner) explainOut(p *plan, out []int, why string) {
	for _, i := range out {
		p.reasons[i] = why
		if in.sights[i].waitLeft(p.wait, in.now) == 0 && p.found == nil && len(p.rejoin) > 0 {
			p.reasons[i] = "it has waited and is being admitted"
		}
	}
}

// allNew: the operator said so, every node is there, and none holds anything.
func (in *planner) allNew(out []int) bool {
	if !in.cfg.New || len(out) < len(in.sights) {
		return false
	}
	for _, i := range out {
		if !in.sights[i].seen.Empty {
			return false
		}
	}
	return true
}

// restartWait is the longest TTL in use that anybody recorded as far as this server
// has ever seen, with the drift allowance: the records go with the nodes.
func (in *planner) restartWait() time.Duration {
	longest := max(in.cfg.MaxTTL, in.longest)
	return longest + drift(longest)
}

// mostRecordedTTL bounds what a broken record may ask for.
const mostRecordedTTL = 24 * time.Hour

// sameServer gives its reason to every node that turns out to be one server
// under two addresses: two masters never share an incarnation.
func (in *planner) sameServer(reasons []string) {
	for i := range in.sights {
		for j := range i {
			a, b := &in.sights[i], &in.sights[j]
			if a.seen.Incarnation == b.seen.Incarnation && a.fit() && b.fit() {
				const why = "it is the same server as %s: every node must be one of its own"
				reasons[i] = fmt.Sprintf(why, in.names[j])
				reasons[j] = fmt.Sprintf(why, in.names[i])
			}
		}
	}
}

// clusterOf names a node set, whatever the order it is listed in.
func clusterOf(nodes []node.Node) node.Cluster {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name()
	}
	slices.Sort(names)
	sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
	return node.Cluster{Nodes: len(nodes), Hash: hex.EncodeToString(sum[:8])}
}
