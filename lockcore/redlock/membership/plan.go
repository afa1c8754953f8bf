package membership

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// plan is what should be done about the nodes as they were last seen.
type plan struct {
	epoch    node.Epoch    // the largest of the admitted nodes
	largest  node.Epoch    // the largest seen anywhere
	wait     time.Duration // how long a node stays silent (rule 13)
	admitted []int
	raise    []int // admitted, in an older epoch
	raiseTTL []int // admitted, not told of this server's longest TTL
	// raiseSecrets are admitted and lack some of the secrets.
	raiseSecrets []int
	secrets      node.Secrets
	rejoin       []int // have waited, and enough nodes are there to read from (rule 7)
	bootstrap    []int // a majority lost its state: bootstrap again on these (rule 12)
	fresh        bool  // found: the operator said that the cluster is new
	pins         []pin // by node: what was seen, and must still be so when it is touched
	reasons      []string
	bootstrapped node.Epoch // the last bootstrap's
	why          string     // why no quorum may vote
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
		return pin{o.Incarnation, node.MissedNote(o.Epoch)}
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
		wait: in.restartWait(), bootstrapped: in.bootstrapped(), secrets: node.MergeSecrets(in.secrets()...),
		reasons: make([]string, len(in.nodes)), pins: make([]pin, 0, len(in.nodes)),
	}
	in.sameServer(p.reasons)
	var quarantined, waited []int
	unreachable := 0
	for i := range in.nodes {
		s := &in.nodes[i]
		p.pins = append(p.pins, pinOf(s.seen))
		if s.fit() {
			p.largest = max(p.largest, s.seen.Epoch, s.seen.Staged)
		}
		switch {
		case p.reasons[i] != "":
		case s.admitted():
			p.admitted = append(p.admitted, i)
			p.epoch = max(p.epoch, s.seen.Epoch)
		case s.quarantined():
			quarantined = append(quarantined, i)
			if s.waitLeft(p.wait, in.now) == 0 {
				waited = append(waited, i)
			}
		case s.err != nil:
			unreachable++
		}
	}
	if !in.cfg.Force {
		unreachable = 0
	}
	in.planAdmitted(&p)
	in.planQuarantined(&p, quarantined, waited, unreachable)
	return p
}

func (in *planner) planAdmitted(p *plan) {
	for _, i := range p.admitted {
		if in.nodes[i].seen.Epoch < p.epoch {
			p.raise = append(p.raise, i)
			p.reasons[i] = "catching up with the cluster's epoch"
		}
		if in.nodes[i].seen.Marks.MaxTTL < in.cfg.MaxTTL {
			p.raiseTTL = append(p.raiseTTL, i)
		}
		if in.nodes[i].seen.Marks.Secrets != p.secrets { // which are merged of these and all others
			p.raiseSecrets = append(p.raiseSecrets, i)
		}
	}
}

// planQuarantined decides about the nodes that are not admitted. The forsaken are the
// silent ones that an operator gave up.
func (in *planner) planQuarantined(p *plan, quarantined, waited []int, givenUp int) {
	n := len(in.nodes)
	if len(p.admitted) >= quorum.Readers(n) {
		p.rejoin = waited
		in.explainQuarantined(p, quarantined, "it restarted, lost its data, missed a bootstrap or its clock jumped; it votes again once the longest TTL has passed")
		if voting := len(p.admitted) - len(p.raise); voting < quorum.Of(n) {
			p.why = fmt.Sprintf("only %d of %d nodes may vote, %d needed", voting, n, quorum.Of(n))
		}
		return
	}
	in.planBootstrap(p, quarantined, waited, givenUp)
}

// planBootstrap is rule 12: only when a majority is seen to be not admitted,
// each for the whole wait.
func (in *planner) planBootstrap(p *plan, quarantined, waited []int, givenUp int) {
	n, quorum := len(in.nodes), quorum.Of(len(in.nodes))
	switch {
	case in.allNew(quarantined):
		p.bootstrap, p.fresh = quarantined, true
		p.why = "the new cluster is being bootstrapped"
	case len(quarantined) == 0 || len(quarantined)+givenUp < quorum:
		p.why = fmt.Sprintf("%d of %d nodes are admitted and %d have lost their admission: waiting for the nodes that are unreachable or refused, which may still know the last tokens", len(p.admitted), n, len(quarantined))
	case in.cfg.Recovery == RecoveryManual:
		p.why = fmt.Sprintf("%d of %d nodes have lost their admission and recovery is manual: run 'fencelock bootstrap'", len(quarantined), n)
	case len(waited)+givenUp < quorum || givenUp > 0 && len(waited) < len(quarantined) || in.almostWaited(quarantined, p.wait):
		p.why = fmt.Sprintf("%d of %d nodes have lost their admission: the cluster is bootstrapped again once the longest TTL (%s) has passed", len(quarantined), n, p.wait.Round(time.Millisecond))
	default:
		p.bootstrap = waited
		if givenUp > 0 {
			p.bootstrap = append(p.bootstrap, p.admitted...) // too few to be read from
			slices.Sort(p.bootstrap)
		}
		p.why = "the cluster is being bootstrapped again"
	}
	in.explainQuarantined(p, quarantined, p.why)
}

// almostWaited: a node's wait ends in a moment. Nodes that fell together are seen
// one look after the other, by every server in another order. Bootstrapped together
// they are the same nodes for all servers, which then begin with the same one.
func (in *planner) almostWaited(quarantined []int, wait time.Duration) bool {
	moment := min(in.cfg.WatchInterval+in.cfg.observeTimeout(), wait/4)
	return slices.ContainsFunc(quarantined, func(i int) bool {
		left := in.nodes[i].waitLeft(wait, in.now)
		return left > 0 && left <= moment
	})
}

func (in *planner) explainQuarantined(p *plan, quarantined []int, why string) {
	for _, i := range quarantined {
		p.reasons[i] = why
		if in.nodes[i].waitLeft(p.wait, in.now) == 0 && p.bootstrap == nil && len(p.rejoin) > 0 {
			p.reasons[i] = "it has waited and is being admitted"
		}
	}
}

// allNew: the operator said so, every node is there, and none holds anything.
func (in *planner) allNew(quarantined []int) bool {
	if !in.cfg.New || len(quarantined) < len(in.nodes) {
		return false
	}
	for _, i := range quarantined {
		if !in.nodes[i].seen.Empty {
			return false
		}
	}
	return true
}

// restartWait is the longest TTL in use that anybody recorded as far as this server
// has ever seen, with the drift allowance: the records go with the nodes.
func (in *planner) restartWait() time.Duration {
	longest := max(in.cfg.MaxTTL, in.longest)
	return longest + quorum.Drift(longest)
}

// maxRecordedTTL bounds what a broken record may ask for.
const maxRecordedTTL = 24 * time.Hour

// sameServer gives its reason to every node that turns out to be one server
// under two addresses: two masters never share an incarnation.
func (in *planner) sameServer(reasons []string) {
	for i := range in.nodes {
		for j := range i {
			a, b := &in.nodes[i], &in.nodes[j]
			if a.seen.Incarnation == b.seen.Incarnation && a.fit() && b.fit() {
				const why = "it is the same server as %s: every node must be one of its own"
				reasons[i] = fmt.Sprintf(why, in.names[j])
				reasons[j] = fmt.Sprintf(why, in.names[i])
			}
		}
	}
}

// ClusterOf names a node set, whatever the order it is listed in.
func ClusterOf(nodes []node.Node) node.Cluster {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name()
	}
	slices.Sort(names)
	sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
	return node.Cluster{Nodes: len(nodes), Hash: hex.EncodeToString(sum[:8])}
}
