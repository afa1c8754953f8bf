package membership

import (
	"fmt"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// observations are what one server knows of its nodes.
type observations struct {
	names   []string
	cluster node.Cluster
	nodes   []observed
	longest time.Duration // the longest TTL that any node ever recorded
}

const notSeenYet = "not seen yet"

func newObservations(nodes []node.Node, now time.Time) observations {
	o := observations{cluster: ClusterOf(nodes), nodes: make([]observed, len(nodes))}
	for i, n := range nodes {
		o.names = append(o.names, n.Name())
		o.nodes[i] = observed{state: lockcore.NodeUnreachable, reason: notSeenYet, since: now}
	}
	return o
}

// see takes a look at node i.
func (o *observations) see(i int, seen node.Observation, err error, now time.Time) {
	o.nodes[i].update(seen, err, o.ours(seen))
	if err == nil {
		o.nodes[i].at = now
	}
	o.markQuarantined(now)
}

// ours: the node bears this cluster's mark, or none.
func (o *observations) ours(seen node.Observation) bool {
	return seen.Cluster == node.Cluster{} || seen.Cluster == o.cluster
}

// sight is what one server knows of one node.
type observed struct {
	seen    node.Observation
	err     error     // of the last look; seen is then older
	looked  bool      // was seen at least once
	at      time.Time // when it was seen so
	cluster bool      // its record, if any, is this cluster's

	missed bool // admitted, but in an epoch from before the last bootstrap

	// quarantinedSince is when the node was first seen in this state without admission,
	// on this server's monotonic clock (rule 13); zero while it is admitted.
	quarantinedSince time.Time
	quarantinedAs    pin

	state    lockcore.NodeState
	reason   string
	since    time.Time
	reported time.Time // when the state or the reason was last logged
}

func (s *observed) update(seen node.Observation, err error, ours bool) {
	s.err = err
	if err != nil {
		return
	}
	s.seen, s.looked, s.cluster = seen, true, ours
}

// markQuarantined notes since when each node is without a valid admission. A node
// admitted in an epoch from before the last bootstrap has none: it was away
// during it and rejoins like one that restarted (rule 12).
func (o *observations) markQuarantined(now time.Time) {
	bootstrapped := o.bootstrapped()
	for i := range o.nodes {
		s := &o.nodes[i]
		if s.err != nil {
			continue
		}
		if s.fit() {
			o.longest = max(o.longest, min(s.seen.Marks.MaxTTL, maxRecordedTTL))
		}
		s.missed = s.seen.Admitted && s.seen.Epoch < bootstrapped
		switch {
		case s.seen.Admitted && !s.missed:
			s.quarantinedSince, s.quarantinedAs = time.Time{}, pin{}
		case s.quarantinedAs != pinOf(s.seen), !s.missed && s.seen.Note == "": // without the note no wait begins
			s.quarantinedSince, s.quarantinedAs = now, pinOf(s.seen)
		}
	}
}

// bootstrapped is the epoch of the last bootstrap that anybody knows of, as each node
// was last seen: one that does not answer for a moment is no reason to take
// another one, which missed the bootstrap, for a voting node again.
func (o *observations) bootstrapped() (epoch node.Epoch) {
	for i := range o.nodes {
		if s := &o.nodes[i]; s.looked && s.seen.Unfit == "" && s.cluster && s.seen.Admitted {
			epoch = max(epoch, s.seen.Marks.Bootstrapped)
		}
	}
	return epoch
}

// secrets are what the admitted nodes keep, as each was last seen, like bootstrapped.
func (o *observations) secrets() (kept []node.Secrets) {
	for i := range o.nodes {
		if s := &o.nodes[i]; s.looked && s.seen.Unfit == "" && s.cluster && s.seen.Admitted && !s.missed {
			kept = append(kept, s.seen.Marks.Secrets)
		}
	}
	return kept
}

// fit: answers, is configured as it must be, and is this cluster's or nobody's.
func (s *observed) fit() bool { return s.err == nil && s.looked && s.seen.Unfit == "" && s.cluster }

func (s *observed) admitted() bool { return s.fit() && s.seen.Admitted && !s.missed }

func (s *observed) quarantined() bool { return s.fit() && (!s.seen.Admitted || s.missed) }

// waitLeft is what is left of a node's delayed restart (rule 13).
func (s *observed) waitLeft(wait time.Duration, now time.Time) time.Duration {
	return max(0, wait-now.Sub(s.quarantinedSince))
}

func (s *observed) judge(outReason string) (lockcore.NodeState, string) {
	switch {
	case s.err != nil:
		return lockcore.NodeUnreachable, s.err.Error()
	case !s.looked:
		return lockcore.NodeUnreachable, notSeenYet
	case s.seen.Unfit != "":
		return lockcore.NodeRefused, s.seen.Unfit
	case !s.cluster:
		return lockcore.NodeRefused, fmt.Sprintf("it belongs to a cluster of %d other nodes (mark %s): configure every server with the same node list, or use an empty database", s.seen.Cluster.Nodes, s.seen.Cluster.Hash)
	case outReason != "":
		return lockcore.NodeQuarantined, outReason
	}
	return lockcore.NodeVoting, ""
}

// judge gives every node its state.
func (o *observations) judge(p plan, now time.Time) {
	for i := range o.nodes {
		s := &o.nodes[i]
		state, reason := s.judge(p.reasons[i])
		if state != s.state {
			s.since = now
		}
		s.state, s.reason = state, reason
	}
}

// status describes the cluster.
func (o *observations) status(p plan, now time.Time) lockcore.ClusterStatus {
	s := lockcore.ClusterStatus{Quorum: quorum.Of(len(o.nodes)), Nodes: make([]lockcore.NodeStatus, len(o.nodes))}
	for i := range o.nodes {
		at := &o.nodes[i]
		n := lockcore.NodeStatus{Name: o.names[i], State: at.state, Reason: at.reason, Since: now.Sub(at.since), Epoch: int64(at.seen.Epoch)}
		switch at.state {
		case lockcore.NodeVoting:
			s.Voting++
		case lockcore.NodeQuarantined:
			n.Wait = at.waitLeft(p.wait, now)
		}
		s.Nodes[i] = n
	}
	s.Ready = s.Voting >= s.Quorum
	if !s.Ready {
		s.Reason = p.why
	}
	return s
}
