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
	epoch       node.Epoch    // the largest of the admitted nodes
	largest     node.Epoch    // the largest seen on any node
	wait        time.Duration // how long a quarantine lasts (rule 13)
	admitted    []int
	oldEpoch    []int // admitted, in an older epoch than others
	lowMaxTTL   []int // admitted, with a record below this server's longest TTL
	lackSecrets []int // admitted, without some of the secrets
	secrets     node.Secrets
	rejoin      []int    // have waited, and there are enough nodes to read from (rule 7)
	bootstrap   []int    // the cluster is to be bootstrapped on these (rule 12)
	fresh       bool     // by a first start: the operator said that the cluster is new
	pins        []pin    // by node: the state that was seen, in which alone it may be changed
	reasons     []string // by node: why it may not vote, "" if it may
	why         string   // why no quorum may vote
}

// pin is the state in which a node waits, and which a plan is about. The plan must be
// carried out on this state and no later one: a later state has not waited.
type pin struct {
	incarnation string
	note        string // of its quarantine, or that it missed a bootstrap
}

func pinOf(o node.Observation) pin {
	if o.Admitted {
		return pin{o.Incarnation, node.MissedNote(o.Epoch)}
	}
	return pin{o.Incarnation, o.Note}
}

// planFor decides from the observations, the configuration and the time alone: the
// same arguments give the same plan.
func planFor(seen *observations, cfg Config, now time.Time) plan {
	p := &planner{observations: seen, cfg: cfg, now: now}
	p.wait = withDrift(max(cfg.MaxTTL, seen.longest))
	kept, _ := seen.keptSecrets()
	p.secrets = node.MergeSecrets(kept...)
	p.reasons = make([]string, len(seen.nodes))
	p.sortNodes()
	p.planAdmitted()
	p.planQuarantined()
	return p.plan
}

// planner is a plan in the making.
type planner struct {
	plan
	*observations
	cfg                 Config
	now                 time.Time
	quarantined, waited []int
	unreachable         int
}

// sortNodes sorts the nodes by what is known of them.
func (p *planner) sortNodes() {
	p.refuseSameServer()
	for i := range p.nodes {
		s := &p.nodes[i]
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
			p.quarantined = append(p.quarantined, i)
			if s.waitLeft(p.wait, p.now) == 0 {
				p.waited = append(p.waited, i)
			}
		case s.err != nil && !s.unwritable():
			p.unreachable++
		}
	}
}

// refuseSameServer gives its reason to every node that is one server under two
// addresses: two masters never share an incarnation.
func (p *planner) refuseSameServer() {
	for i := range p.nodes {
		for j := range i {
			a, b := &p.nodes[i], &p.nodes[j]
			if a.seen.Incarnation == b.seen.Incarnation && a.fit() && b.fit() {
				const why = "it is the same server as %s: every node must be a separate server"
				p.reasons[i] = fmt.Sprintf(why, p.names[j])
				p.reasons[j] = fmt.Sprintf(why, p.names[i])
			}
		}
	}
}

func (p *planner) planAdmitted() {
	for _, i := range p.admitted {
		seen := &p.nodes[i].seen
		if seen.Epoch < p.epoch {
			p.oldEpoch = append(p.oldEpoch, i)
			p.reasons[i] = "it is moving to the cluster's epoch"
		}
		if seen.Marks.MaxTTL < p.cfg.MaxTTL {
			p.lowMaxTTL = append(p.lowMaxTTL, i)
			p.reasons[i] = "it does not know this server's longest TTL yet, and refuses leases that long"
		}
		if seen.Marks.Secrets != p.secrets { // which are merged of these and all others
			p.lackSecrets = append(p.lackSecrets, i)
		}
	}
}

// planQuarantined plans a rejoin while there are enough nodes to read from, else a
// bootstrap.
func (p *planner) planQuarantined() {
	n := len(p.nodes)
	if len(p.admitted) < quorum.Readers(n) {
		p.planBootstrap()
		p.explainQuarantined(p.why)
		return
	}
	p.rejoin = p.waited
	p.explainQuarantined("it restarted, lost its data, missed a bootstrap or its clock jumped; it votes again once the longest TTL has passed")
	voting := 0
	for _, i := range p.admitted {
		if p.reasons[i] == "" {
			voting++
		}
	}
	if voting < quorum.Of(n) {
		p.why = fmt.Sprintf("%s able to vote, and %d are needed", share(voting, n), quorum.Of(n))
	}
}

// planBootstrap is rule 12: a bootstrap takes a majority that is seen without
// admission, each node for the whole wait. Nodes that an operator has given up
// (Force) count as if they had waited.
func (p *planner) planBootstrap() {
	n, quorum := len(p.nodes), quorum.Of(len(p.nodes))
	givenUp := 0
	if p.cfg.Force {
		givenUp = p.unreachable
	}
	quarantined, waited := len(p.quarantined), len(p.waited)
	switch {
	case p.outdated():
		p.why = "its node sets were changed, and this server has different ones: configure it with the same node sets"
	case p.allNew():
		p.bootstrap, p.fresh = p.quarantined, true
		p.why = "the new cluster is being bootstrapped"
	case quarantined == 0 || quarantined+givenUp < quorum:
		p.why = fmt.Sprintf("%s unreachable or refused, and may still know the last tokens: start those that are down, and do what the reasons of the others say", share(n-len(p.admitted)-quarantined, n))
	case p.cfg.Recovery == RecoveryManual:
		p.why = fmt.Sprintf("%s quarantined: run 'fencelock bootstrap', which FENCELOCK_RECOVERY=manual leaves to you", share(quarantined, n))
	case p.cfg.Watching:
		p.why = fmt.Sprintf("%s quarantined: a running server bootstraps the cluster once the longest TTL has passed", share(quarantined, n))
	case waited+givenUp < quorum || givenUp > 0 && waited < quarantined || p.almostWaited() || p.opening():
		p.why = fmt.Sprintf("%s quarantined: the cluster is bootstrapped again once the longest TTL (%s) has passed", share(quarantined, n), p.wait.Round(time.Millisecond))
	default:
		p.bootstrap = p.waited
		if givenUp > 0 {
			p.bootstrap = append(p.bootstrap, p.admitted...) // too few to read from
			slices.Sort(p.bootstrap)
		}
		p.why = "the cluster is being bootstrapped again"
	}
}

// share is "1 of 3 nodes is" or "2 of 3 nodes are".
func share(k, n int) string {
	verb := "are"
	if k == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of %d nodes %s", k, n, verb)
}

// almostWaited reports whether a node's wait ends in a moment. Nodes that fail
// together are seen one after the other, by every server in another order. When they
// are bootstrapped together, all servers begin with the same node.
func (p *planner) almostWaited() bool {
	moment := p.moment()
	return slices.ContainsFunc(p.quarantined, func(i int) bool {
		left := p.nodes[i].waitLeft(p.wait, p.now)
		return left > 0 && left <= moment
	})
}

// opening reports whether a node was bootstrapped a moment ago: its server is opening the
// others, and whoever closed them again would have the first one wait again.
func (p *planner) opening() bool {
	return p.opened > 0 && p.now.Sub(p.openedAt) < p.moment()
}

func (p *planner) moment() time.Duration {
	return min(p.cfg.WatchInterval+p.cfg.observeTimeout(), p.wait/4)
}

func (p *planner) explainQuarantined(why string) {
	for _, i := range p.quarantined {
		p.reasons[i] = why
		if slices.Contains(p.rejoin, i) {
			p.reasons[i] = "its wait is over, and it is being admitted"
		}
	}
}

// allNew: the operator said so, the quarantine of every node has begun, and none holds anything else.
func (p *planner) allNew() bool {
	return p.cfg.New && len(p.quarantined) == len(p.nodes) &&
		!slices.ContainsFunc(p.nodes, func(s observed) bool { return !s.seen.Empty || s.seen.Note == "" })
}

// withDrift is how long a node waits after leases of that TTL (rule 13).
func withDrift(longest time.Duration) time.Duration { return longest + quorum.Drift(longest) }

// maxRecordedTTL bounds the longest TTL of a record, which may be broken.
const maxRecordedTTL = 24 * time.Hour

// format names what nodes keep and how. A version of the program that changes it
// in a way that the one before would misread changes this, too: the gate then
// refuses the other version's nodes (rule 14).
const format = "fencelock 1\n"

// ClusterOf names a node set, whatever the order of the nodes.
func ClusterOf(nodes []node.Node) node.Cluster {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name()
	}
	return ClusterNamed(names...)
}

// ClusterNamed is ClusterOf for nodes of these names.
func ClusterNamed(names ...string) node.Cluster {
	names = slices.Sorted(slices.Values(names))
	sum := sha256.Sum256([]byte(format + strings.Join(names, "\n")))
	return node.Cluster{Nodes: len(names), Hash: hex.EncodeToString(sum[:8])}
}
