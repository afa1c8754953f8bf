package redlock

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// Meter counts what one node does. Many goroutines call its methods, some of them
// with locks held: a method must be quick and must not call back.
type Meter interface {
	Vote(o node.Outcome)    // a reply to an acquire, late ones included
	NoAnswer()              // no reply to an acquire within its limit
	Confirm(o node.Outcome) // a reply to a confirm
	membership.Meter
}

// Attempt is one attempt at a lease, for Config.Trace. None of it is secret.
type Attempt struct {
	Verdict quorum.Verdict // Lost also when the caller went away
	Token   fencing.Token  // 0 unless won
	Votes   []VoteTaken    // in the order of the nodes
}

// VoteTaken is a node's reply, as far as the attempt waited for it.
type VoteTaken struct {
	Node   string
	Reason string // "granted", "held by another lease", "no response in time", …
	At     time.Time
	Grant  fencing.Token // of a granted vote
}

// unmetered is the Meter of a Config without one.
type unmetered struct{}

func (unmetered) Vote(node.Outcome)    {}
func (unmetered) NoAnswer()            {}
func (unmetered) Confirm(node.Outcome) {}
func (unmetered) Clock(time.Duration)  {}
func (unmetered) Jump(time.Duration)   {}

func (c Config) metersOf(nodes []node.Node) []Meter {
	meters := make([]Meter, len(nodes))
	for i, n := range nodes {
		meters[i] = unmetered{}
		if c.Meters != nil {
			meters[i] = c.Meters(n.Name())
		}
	}
	return meters
}

// trace describes a finished attempt to Config.Trace.
func (l *Locker) trace(ctx context.Context, res *acquired) {
	if res.at == nil {
		return
	}
	traced := Attempt{Verdict: res.verdict, Votes: make([]VoteTaken, len(l.nodes))}
	if res.verdict == quorum.Won {
		traced.Token = res.token
	}
	status := l.members.Status()
	for i, n := range l.nodes {
		vote := VoteTaken{Node: n.Name(), Reason: res.reasonOf(i, status.Nodes[i]), At: res.at[i]}
		if reply := &res.replies[i]; reply.Outcome == node.Granted {
			vote.Grant = reply.Grant
		}
		traced.Votes[i] = vote
	}
	l.cfg.Trace(ctx, traced)
}
