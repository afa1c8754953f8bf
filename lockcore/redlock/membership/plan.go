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
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
)

// plan lists the actions that the last observations of the nodes demand.
type plan struct {
	epoch       node.Epoch    // the largest epoch of the admitted nodes
	largest     node.Epoch    // the largest epoch seen on any node
	wait        time.Duration // how long a quarantine lasts (rule 13)
	admitted    []int
	oldEpoch    []int // admitted, in a smaller epoch than others
	lowMaxTTL   []int // admitted, with a record below this server's longest TTL
	lackSecrets []int // admitted, without some of the secrets
	secrets     node.Secrets
	rejoin      []int    // have waited, and enough nodes can be read (rule 7)
	bootstrap   []int    // the nodes on which to bootstrap the cluster (rule 12)
	fresh       bool     // the bootstrap is a first start: the operator declared the cluster new
	pins        []pin    // by node: the observed state; the plan may change no other state
	reasons     []string // by node: why it may not vote; "" if it may
	why         string   // why a quorum may not vote
}

// pin identifies the state in which a node was observed to wait. A plan may be carried out only while the
// node is in this state, because the wait counts only for this state.
type pin struct {
	incarnation string
	note        string // the note of its quarantine, or a note that it missed a bootstrap
}

func pinOf(o node.Observation) pin {
	if o.Admitted {
		return pin{o.Incarnation, node.MissedNote(o.Epoch)}
	}
	return pin{o.Incarnation, o.Note}
}

// planFor decides from only the observations, the configuration and the time, so the same arguments give the
// same plan.
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

// planner builds a plan.
type planner struct {
	plan
	*observations
	cfg                 Config
	now                 time.Time
	quarantined, waited []int
	unreachable         int
}

// sortNodes sorts the nodes into the plan's lists.
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

// refuseSameServer sets the reason of nodes that are the same server under two addresses. It recognizes
// them by their incarnation, which two masters never share.
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
		if seen.Marks.MaxTTL < p.cfg.granted() {
			p.lowMaxTTL = append(p.lowMaxTTL, i)
			p.reasons[i] = "it does not know this server's longest TTL yet, and refuses leases that long"
		}
		if seen.Marks.Secrets != p.secrets { // the merged secrets of this and all other nodes
			p.lackSecrets = append(p.lackSecrets, i)
		}
	}
}

// planQuarantined plans a rejoin if enough nodes can be read, otherwise a bootstrap.
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

// planBootstrap implements rule 12: a bootstrap takes a majority of nodes that are seen without admission,
// each for the whole wait. Nodes that an operator has given up (Force) count as if they had waited.
func (p *planner) planBootstrap() {
	n, quorum := len(p.nodes), quorum.Of(len(p.nodes))
	givenUp := 0
	if p.cfg.Force {
		givenUp = p.unreachable
	}
	quarantined, waited := len(p.quarantined), len(p.waited)
	switch {
	case p.outdated(), p.otherList:
		p.why = "the other servers have other node sets: give every server the same FENCELOCK_REDIS_ADDRS"
	case p.allNew():
		p.bootstrap, p.fresh = p.quarantined, true
		p.why = "the new cluster is being bootstrapped"
	case quarantined == 0 || quarantined+givenUp < quorum:
		p.why = fmt.Sprintf("%s unreachable or refused, and may still know the last tokens: start those that are down, and do what the reasons of the others say", share(n-len(p.admitted)-quarantined, n))
	case p.cfg.Recovery == settings.RecoveryManual:
		p.why = fmt.Sprintf("%s quarantined: run 'fencelock bootstrap', which FENCELOCK_RECOVERY=manual leaves to you", share(quarantined, n))
	case p.cfg.Watching:
		p.why = fmt.Sprintf("%s quarantined: a running server bootstraps the cluster once the longest TTL has passed", share(quarantined, n))
	case waited+givenUp < quorum || givenUp > 0 && waited < quarantined || p.almostWaited() || p.opening():
		p.why = fmt.Sprintf("%s quarantined: the cluster is bootstrapped again once the longest TTL (%s) has passed", share(quarantined, n), p.wait.Round(time.Millisecond))
	default:
		p.bootstrap = p.waited
		if givenUp > 0 {
			p.bootstrap = append(p.bootstrap, p.admitted...) // too few admitted nodes to read from
			slices.Sort(p.bootstrap)
		}
		p.why = "the cluster is being bootstrapped again"
	}
}

// share returns "1 of 3 nodes is" or "2 of 3 nodes are".
func share(k, n int) string {
	verb := "are"
	if k == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of %d nodes %s", k, n, verb)
}

// almostWaited reports whether a node's wait ends within a moment. If several nodes fail together, each
// server notices them in another order. If they are bootstrapped together, all servers begin with the
// same node.
func (p *planner) almostWaited() bool {
	moment := p.moment()
	return slices.ContainsFunc(p.quarantined, func(i int) bool {
		left := p.nodes[i].waitLeft(p.wait, p.now)
		return left > 0 && left <= moment
	})
}

// opening reports whether a node was bootstrapped a moment ago. Its server is opening the others; if another
// server closed them again, the first one would have to wait again.
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

// allNew reports that the operator declared the cluster new, the quarantine of every node has begun, and no
// node holds anything else.
func (p *planner) allNew() bool {
	return p.cfg.New && len(p.quarantined) == len(p.nodes) &&
		!slices.ContainsFunc(p.nodes, func(s observed) bool { return !s.seen.Empty || s.seen.Note == "" })
}

// withDrift returns how long a node must wait for leases with that TTL to end (rule 13).
func withDrift(longest time.Duration) time.Duration { return longest + quorum.Drift(longest) }

// maxRecordedTTL bounds the longest TTL in a record, because a record may be corrupt.
const maxRecordedTTL = 24 * time.Hour

// format names the format of the nodes' data. A version of the program that changes the format so that the
// previous version would misread it also changes this name: the gate then refuses the other version's nodes
// (rule 14).
const format = "fencelock 1\n"

// ClusterOf returns the name of a node set, which does not depend on the order of the nodes.
func ClusterOf(nodes []node.Node) node.Cluster {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name()
	}
	return ClusterNamed(names...)
}

// ClusterNamed is ClusterOf for nodes with these names.
func ClusterNamed(names ...string) node.Cluster {
	names = slices.Sorted(slices.Values(names))
	sum := sha256.Sum256([]byte(format + strings.Join(names, "\n")))
	return node.Cluster{Nodes: len(names), Hash: hex.EncodeToString(sum[:8])}
}
