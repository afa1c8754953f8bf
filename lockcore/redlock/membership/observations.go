package membership

import (
	"errors"
	"fmt"
	"strings"
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
	longest time.Duration             // the longest TTL that any node ever recorded
	knows   func(mapName string) bool // nil: every one
	last    node.Map                  // the last map that an admitted node had
	sets    string                    // the node sets of this server, for people
	used    bool                      // a node held something, or was admitted

	opened   node.Epoch // of the last bootstrap that an admitted node knew
	openedAt time.Time  // when that was first seen
}

const notSeenYet = "this server has not observed it yet"

func newObservations(nodes []node.Node, now time.Time) observations {
	o := observations{cluster: ClusterOf(nodes), nodes: make([]observed, len(nodes))}
	for i, n := range nodes {
		o.names = append(o.names, n.Name())
		o.nodes[i] = observed{state: lockcore.NodeUnreachable, reason: notSeenYet, since: now, logged: loggedState{state: lockcore.NodeUnreachable}}
	}
	return o
}

// add takes an observation of node i, or the error of one that failed.
func (o *observations) add(i int, seen node.Observation, err error, now time.Time) {
	s := &o.nodes[i]
	if s.err = err; err == nil {
		o.used = o.used || seen.Admitted || !seen.Empty
		if o.ours(seen) && seen.Admitted && seen.Marks.Map.Epoch > o.last.Epoch {
			o.last = seen.Marks.Map
		}
		s.seen, s.at, s.ours = seen, now, o.ours(seen) && o.knowsMap(seen)
	} else {
		s.failure, s.failedAt = err.Error(), now
	}
	o.markQuarantined(now)
}

// ours reports whether the node's record is this cluster's, or there is none.
func (o *observations) ours(seen node.Observation) bool {
	return seen.Cluster == node.Cluster{} || seen.Cluster == o.cluster
}

// knowsMap reports whether this server has the node's map, or a later one that the node
// missed and gets (rule 30).
func (o *observations) knowsMap(seen node.Observation) bool {
	m := seen.Marks.Map
	return o.knows == nil || !seen.Admitted || o.knows(m.Name) || m.Epoch < o.last.Epoch && !o.outdated()
}

// outdated reports whether the last map is one that this server does not have.
func (o *observations) outdated() bool { return o.knows != nil && !o.knows(o.last.Name) }

// observed is what one server knows of one node.
type observed struct {
	seen node.Observation
	at   time.Time // of seen; zero if there is none
	look int64     // the number of the last observation (see Controller.looks)
	err  error     // of the last observation; seen is then older
	ours bool      // its record, if any, is this cluster's

	failure  string    // of the last observation that failed; "" if none did
	failedAt time.Time // when that was

	missed bool // admitted, but in an epoch from before the last bootstrap

	// quarantinedSince is when the node was first seen without admission in this
	// state, on this server's monotonic clock (rule 13); zero while it is admitted.
	quarantinedSince time.Time
	quarantinedAs    pin

	state  lockcore.NodeState
	reason string
	since  time.Time
	logged loggedState
}

// loggedState is what the log last said of a node.
type loggedState struct {
	state  lockcore.NodeState
	reason string
	at     time.Time
	warned bool // that it does not vote
}

// markQuarantined notes since when each node has had no valid admission. A node
// admitted in an epoch from before the last bootstrap has none: it missed that
// bootstrap and rejoins like a node that restarted (rule 12).
func (o *observations) markQuarantined(now time.Time) {
	bootstrapped := o.bootstrapped()
	if bootstrapped > o.opened {
		o.opened, o.openedAt = bootstrapped, now
	}
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

// bootstrapped is the epoch of the last bootstrap that any node knows of, as each
// was last seen. A node that fails to answer for a moment does not make another one,
// which missed the bootstrap, a voting node again.
func (o *observations) bootstrapped() (epoch node.Epoch) {
	for i := range o.nodes {
		if s := &o.nodes[i]; s.usable() && s.seen.Admitted {
			epoch = max(epoch, s.seen.Marks.Bootstrapped)
		}
	}
	return epoch
}

// keptSecrets are what the admitted nodes keep, as each was last seen, and the largest
// epoch in which one of them was. What was known before the last bootstrap does not count,
// also of a node that does not answer now (rule 24).
func (o *observations) keptSecrets() (kept []node.Secrets, epoch node.Epoch) {
	bootstrapped := o.bootstrapped()
	for i := range o.nodes {
		if s := &o.nodes[i]; s.usable() && s.seen.Admitted && s.seen.Epoch >= bootstrapped {
			kept = append(kept, s.seen.Marks.Secrets)
			epoch = max(epoch, s.seen.Epoch)
		}
	}
	return kept, epoch
}

// observedSince reports whether every node, and whether a quorum of admitted ones, was
// observed by an observation after the one of that number.
func (o *observations) observedSince(look int64) (all, quorate bool) {
	answered, admitted := 0, 0
	for i := range o.nodes {
		if s := &o.nodes[i]; s.look > look {
			answered++
			if s.admitted() {
				admitted++
			}
		}
	}
	return answered == len(o.nodes), admitted >= quorum.Of(len(o.nodes))
}

// usable: when last seen it was configured as it must be, and of this cluster or none.
func (s *observed) usable() bool { return !s.at.IsZero() && s.seen.Unfit == "" && s.ours }

// unwritable: it answers, and fails every write.
func (s *observed) unwritable() bool { return errors.Is(s.err, node.ErrUnwritable) }

// fit: usable, and it answered the last observation.
func (s *observed) fit() bool { return s.err == nil && s.usable() }

func (s *observed) admitted() bool { return s.fit() && s.seen.Admitted && !s.missed }

func (s *observed) quarantined() bool { return s.fit() && (!s.seen.Admitted || s.missed) }

// waitLeft is what is left of a node's wait (rule 13).
func (s *observed) waitLeft(wait time.Duration, now time.Time) time.Duration {
	return max(0, wait-now.Sub(s.quarantinedSince))
}

// stateNow is the node's state, with the reason of the plan why it may not vote.
func (o *observations) stateNow(s *observed, planned string) (lockcore.NodeState, string) {
	switch {
	case s.unwritable():
		return lockcore.NodeRefused, s.err.Error()
	case s.err != nil:
		return lockcore.NodeUnreachable, s.err.Error()
	case s.at.IsZero():
		return lockcore.NodeUnreachable, notSeenYet
	case s.seen.Unfit != "":
		return lockcore.NodeRefused, s.seen.Unfit
	case !s.ours && s.seen.Marks.Map.Name != "":
		return lockcore.NodeRefused, fmt.Sprintf("its node sets are being changed, or were (generation %d of their map), and this server has different ones (%s): configure it with the same node sets", s.seen.Marks.Map.Generation, o.sets)
	case !s.ours:
		return lockcore.NodeRefused, fmt.Sprintf("it belongs to a cluster with another list of %d nodes than this server's (%s): configure every server with the same node list, or use an empty database", s.seen.Cluster.Nodes, strings.Join(o.names, ","))
	case planned != "":
		return lockcore.NodeQuarantined, planned
	}
	return lockcore.NodeVoting, ""
}

// judge sets every node's state.
func (o *observations) judge(p plan, now time.Time) {
	for i := range o.nodes {
		s := &o.nodes[i]
		was := s.state
		if s.state, s.reason = o.stateNow(s, p.reasons[i]); s.state != was {
			s.since = now
		}
	}
}

// status describes the cluster.
func (o *observations) status(p plan, now time.Time) lockcore.ClusterStatus {
	status := lockcore.ClusterStatus{Quorum: quorum.Of(len(o.nodes)), Nodes: make([]lockcore.NodeStatus, len(o.nodes))}
	for i := range o.nodes {
		s := &o.nodes[i]
		n := lockcore.NodeStatus{Name: o.names[i], State: s.state, Reason: s.reason, Since: now.Sub(s.since), Epoch: int64(s.seen.Epoch), Version: s.seen.Version, Role: s.seen.Role}
		if s.failure != "" {
			n.LastError, n.LastErrorAgo = s.failure, now.Sub(s.failedAt)
		}
		switch s.state {
		case lockcore.NodeVoting:
			status.Voting++
		case lockcore.NodeQuarantined:
			n.Wait = s.waitLeft(p.wait, now)
		}
		status.Nodes[i] = n
	}
	status.Ready = status.Voting >= status.Quorum
	if !status.Ready {
		status.Reason = p.why
	}
	return status
}
