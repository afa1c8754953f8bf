package membership

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// observations are one server's observations of its nodes.
type observations struct {
	names   []string
	cluster node.Cluster
	nodes   []observed
	longest time.Duration             // the longest TTL that any node has ever recorded
	knows   func(mapName string) bool // whether this server knows the map; nil if it knows every map
	last    node.Map                  // the latest map of an admitted node
	shown   bool                      // an admitted node has shown a map
	sets    string                    // the node sets of this server, for display
	// otherList means that another set of this server has a map with a different list of node sets.
	otherList bool
	used      bool // a node contained data, or was admitted

	opened   node.Epoch // the epoch of the last bootstrap that an admitted node knows
	openedAt time.Time  // when that epoch was first seen
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

// add records an observation of node i, or the error of a failed one.
func (o *observations) add(i int, seen node.Observation, err error, now time.Time) {
	s := &o.nodes[i]
	if s.err = err; err == nil {
		o.used = o.used || seen.Admitted || !seen.Empty
		if o.ours(seen) && seen.Admitted && (!o.shown || seen.Marks.Map.Epoch > o.last.Epoch) {
			o.last, o.shown = seen.Marks.Map, true
		}
		s.seen, s.at, s.ours = seen, now, o.ours(seen) && o.knowsMap(seen)
	} else {
		s.failure, s.failedAt = err.Error(), now
	}
	o.markQuarantined(now)
}

// ours reports whether the node's record, if it has one, is this cluster's.
func (o *observations) ours(seen node.Observation) bool {
	return seen.Cluster == node.Cluster{} || seen.Cluster == o.cluster
}

// knowsMap reports whether this server knows the node's map, or a later one that the node missed and will
// get (rule 30).
func (o *observations) knowsMap(seen node.Observation) bool {
	m := seen.Marks.Map
	return o.knows == nil || !seen.Admitted || o.knows(m.Name) || m.Epoch < o.last.Epoch && !o.outdated()
}

// outdated reports whether this server does not know the latest map.
func (o *observations) outdated() bool { return o.shown && o.knows != nil && !o.knows(o.last.Name) }

// observed is what a server knows about one node.
type observed struct {
	seen node.Observation
	at   time.Time // when seen was observed; zero if never
	look int64     // the number of the last observation (see Controller.looks)
	err  error     // of the last observation; if it is set, seen is older
	ours bool      // the node's record, if it has one, is this cluster's

	failure  string    // of the last failed observation; "" if none failed
	failedAt time.Time // when that observation failed

	missed bool // admitted, but in an epoch before the last bootstrap

	// quarantinedSince is when the node was first seen in its present state without admission, on this
	// server's monotonic clock (rule 13); zero while it is admitted.
	quarantinedSince time.Time
	quarantinedAs    pin

	state  lockcore.NodeState
	reason string
	since  time.Time
	logged loggedState
}

// loggedState is the state of a node in the last log line about it.
type loggedState struct {
	state  lockcore.NodeState
	reason string
	at     time.Time
	warned bool // a warning said that it does not vote
}

// markQuarantined records since when each node has had no valid admission. An admission in an epoch
// before the last bootstrap is not valid: the node missed that bootstrap, and rejoins like a node that
// restarted (rule 12).
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
		case s.quarantinedAs != pinOf(s.seen), !s.missed && s.seen.Note == "": // a wait begins only with the note
			s.quarantinedSince, s.quarantinedAs = now, pinOf(s.seen)
		}
	}
}

// bootstrapped returns the epoch of the last bootstrap that any node knows of, by each node's last
// observation. So if that node briefly fails to respond, another node that missed the bootstrap does not
// become a voting node again.
func (o *observations) bootstrapped() (epoch node.Epoch) {
	for i := range o.nodes {
		if s := &o.nodes[i]; s.usable() && s.seen.Admitted {
			epoch = max(epoch, s.seen.Marks.Bootstrapped)
		}
	}
	return epoch
}

// keptSecrets returns the secrets of the admitted nodes, by each node's last observation, and the largest
// epoch in which one of them was. It ignores secrets from before the last bootstrap, including those of a node
// that does not respond now (rule 24).
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

// complete reports whether every node was observed at least once, even without success.
func (o *observations) complete() bool {
	return !slices.ContainsFunc(o.nodes, func(s observed) bool { return s.look == 0 })
}

// observedSince reports whether every node, and whether a quorum of admitted nodes, was observed by an
// observation with a larger number.
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

// usable reports that the last observation showed a correct configuration, and this cluster's data or none.
func (s *observed) usable() bool { return !s.at.IsZero() && s.seen.Unfit == "" && s.ours }

// unwritable reports that the node responds, but fails every write.
func (s *observed) unwritable() bool { return errors.Is(s.err, node.ErrUnwritable) }

// fit reports that the node is usable, and responded to the last observation.
func (s *observed) fit() bool { return s.err == nil && s.usable() }

func (s *observed) admitted() bool { return s.fit() && s.seen.Admitted && !s.missed }

func (s *observed) quarantined() bool { return s.fit() && (!s.seen.Admitted || s.missed) }

// waitLeft returns the rest of a node's wait (rule 13).
func (s *observed) waitLeft(wait time.Duration, now time.Time) time.Duration {
	return max(0, wait-now.Sub(s.quarantinedSince))
}

// stateNow returns the node's state. If it may not vote, planned is the plan's reason.
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
	case !s.ours && o.ours(s.seen):
		return lockcore.NodeRefused, fmt.Sprintf("it belongs to a cluster with other node sets than this server's (%s), or they are being changed (generation %d): give every server the same FENCELOCK_REDIS_ADDRS; 'fencelock sets' adds and removes sets", o.sets, s.seen.Marks.Map.Generation)
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
