package redlock

import (
	"context"
	"crypto/rand"
	"io"
	"time"

	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
)

// Config configures a Locker.
type Config = settings.Config

// Set is what a Locker needs to know of its place among the node sets of its service. The zero value is for a
// set that is alone and never changed.
type Set struct {
	Random io.Reader // the randomness of this set; default crypto/rand
	Maps   membership.Maps
	Suffix string                 // a suffix of this server's id on the nodes, which says which maps it knows
	Others func() []*keyring.Ring // the rings of the other sets: they may have sealed a lease of a resource that moved here
}

func (s *Set) withDefaults() {
	if s.Random == nil {
		s.Random = rand.Reader
	}
	if s.Others == nil {
		s.Others = func() []*keyring.Ring { return nil }
	}
}

// roundLimit is how long a round waits for the given number of nodes (rule 18). With several nodes, the others
// can decide without a late one. With one node, an early end does not help.
func roundLimit(c *Config, nodes int, ttl time.Duration) time.Duration {
	if nodes == 1 {
		return min(c.NodeTimeout, ttl/2)
	}
	return min(c.NodeTimeout, ttl/10)
}

// unmetered is the settings.Meter of a Config without one.
type unmetered struct{}

func (unmetered) Vote(node.Outcome)    {}
func (unmetered) NoAnswer()            {}
func (unmetered) Confirm(node.Outcome) {}
func (unmetered) Clock(time.Duration)  {}
func (unmetered) Jump(time.Duration)   {}

func metersOf(c *Config, nodes []node.Node) []settings.Meter {
	meters := make([]settings.Meter, len(nodes))
	for i, n := range nodes {
		meters[i] = unmetered{}
		if c.Meters != nil {
			meters[i] = c.Meters(n.Name())
		}
	}
	return meters
}

// trace describes a finished attempt to Config.Trace.
func (l *Locker) trace(ctx context.Context, res *attempt) {
	if res.at == nil {
		return
	}
	traced := settings.Attempt{Verdict: res.verdict, Votes: make([]settings.VoteTaken, len(l.nodes))}
	if res.verdict == quorum.Won {
		traced.Token = res.tally.Token()
	}
	status := l.members.Status()
	for i, n := range l.nodes {
		vote := settings.VoteTaken{Node: n.Name(), Reason: res.reasonOf(i, status.Nodes[i]), At: res.at[i]}
		if reply := &res.replies[i]; reply.Outcome == node.Granted {
			vote.Grant = reply.Grant
		}
		traced.Votes[i] = vote
	}
	l.cfg.Trace(ctx, traced)
}
