package redlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// Config configures a Locker. Zero fields get defaults. Fields without a comment are those of
// sets.Config, for one set.
type Config struct {
	MaxTTL        time.Duration
	MaxHold       time.Duration
	NodeTimeout   time.Duration
	NodeDownAfter time.Duration
	WatchInterval time.Duration
	MaxWaiters    int
	MaxInFlight   int
	Recovery      membership.Recovery
	Tool          bool
	Watching      bool
	New, Force    bool
	Floor         func(context.Context) (fencing.Token, error)
	Logger, Audit *slog.Logger
	Keys          func() *keyring.Ring
	Meters        func(node string) Meter
	Violated      func(broken lockcore.Invariant, what ...any)
	Trace         func(context.Context, Attempt)
	Traced        func(context.Context) bool
	Unlisted      bool
	Random        io.Reader // the randomness of this set
	Map           Maps
}

// Maps are the functions with which a Locker handles maps of node sets (rule 30). The zero value is for a
// set that is never changed.
type Maps struct {
	Sets      string                          // all sets that this server knows, for display
	Suffix    string                          // a suffix of this server's id on the nodes, which says which maps it knows
	Knows     func(mapName string) bool       // see membership.Config
	New       func() node.Map                 // see membership.Config
	Secrets   func() (node.Secrets, bool)     // see membership.Config.NewSecrets
	Next      func(node.Map) (node.Map, bool) // see membership.Config
	OtherList func() bool                     // see membership.Config
	Taken     func(node.Map)                  // gets the map that the nodes have, whenever it changes; it must not block
	Others    func() []*keyring.Ring          // the rings of the other sets: they may have sealed a lease of a resource that moved here
}

func (m *Maps) others() []*keyring.Ring {
	if m.Others == nil {
		return nil
	}
	return m.Others()
}

// WithDefaults fills in the defaults.
func (c Config) WithDefaults() Config {
	c.MaxTTL = cmp.Or(c.MaxTTL, 60*time.Second)
	c.NodeTimeout = cmp.Or(c.NodeTimeout, min(time.Second, c.MaxTTL/10))
	c.NodeDownAfter = cmp.Or(c.NodeDownAfter, 4*c.NodeTimeout)
	c.WatchInterval = cmp.Or(c.WatchInterval, 250*time.Millisecond)
	c.MaxWaiters = cmp.Or(c.MaxWaiters, 10_000)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 128)
	c.Recovery = cmp.Or(c.Recovery, membership.RecoveryAuto)
	if c.Random == nil {
		c.Random = rand.Reader
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Audit == nil {
		c.Audit = c.Logger
	}
	if c.Violated == nil {
		c.Violated = func(lockcore.Invariant, ...any) {}
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.MaxHold > 0 && c.MaxHold < c.MaxTTL:
		return fmt.Errorf("MaxHold is %s: 0 for no bound, or at least MaxTTL (%s)", c.MaxHold, c.MaxTTL)
	case c.NodeTimeout < time.Millisecond || c.NodeTimeout > c.MaxTTL/2:
		return fmt.Errorf("NodeTimeout is %s: 1ms to half of MaxTTL (%s)", c.NodeTimeout, c.MaxTTL/2)
	case c.MaxWaiters < 0:
		return fmt.Errorf("MaxWaiters is %d: at least 1", c.MaxWaiters)
	case c.MaxInFlight < 0:
		return fmt.Errorf("MaxInFlight is %d: at least 1", c.MaxInFlight)
	case c.WatchInterval < time.Millisecond:
		return fmt.Errorf("WatchInterval is %s: at least 1ms", c.WatchInterval)
	case c.Recovery != membership.RecoveryAuto && c.Recovery != membership.RecoveryManual:
		return fmt.Errorf("Recovery is %q: %q or %q", c.Recovery, membership.RecoveryAuto, membership.RecoveryManual) //nolint:staticcheck // the error begins with the field
	}
	return nil
}

// roundLimit is how long a round waits for the given number of nodes (rule 18). With several nodes, the others
// can decide without a late one. With one node, an early end does not help.
func (c Config) roundLimit(nodes int, ttl time.Duration) time.Duration {
	if nodes == 1 {
		return min(c.NodeTimeout, ttl/2)
	}
	return min(c.NodeTimeout, ttl/10)
}

// membership returns the configuration of the Locker's Controller.
func (c Config) membership(l *Locker) membership.Config {
	return membership.Config{
		MaxTTL: c.MaxTTL, NodeDownAfter: c.NodeDownAfter, WatchInterval: c.WatchInterval,
		Recovery: c.Recovery, Tool: c.Tool, Watching: c.Watching, Sets: c.Map.Sets, New: c.New, Force: c.Force, Floor: c.Floor,
		Logger: c.Logger, Audit: c.Audit, Random: l.random,
		Meter:   func(i int) membership.Meter { return l.meters[i] },
		Secrets: l.takeSecrets, Violated: c.Violated,
		Knows: c.Map.Knows, NewMap: c.Map.New, NewSecrets: c.Map.Secrets, NextMap: c.Map.Next, OtherList: c.Map.OtherList, Mapped: c.Map.Taken,
	}
}

// Meter counts what one node does. Many goroutines call its methods, some of them while they hold locks,
// so a method must be quick and must not call back.
type Meter interface {
	Vote(o node.Outcome)    // a reply to an acquire, including late ones
	NoAnswer()              // no reply to an acquire within its limit
	Confirm(o node.Outcome) // a reply to a confirm
	membership.Meter
}

// Attempt describes one attempt at a lease, for Config.Trace. It contains nothing secret.
type Attempt struct {
	Verdict quorum.Verdict // Lost also if the caller left
	Token   fencing.Token  // 0 unless won
	Votes   []VoteTaken    // in the order of the nodes
}

// VoteTaken is a node's reply, if the attempt waited for it.
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
func (l *Locker) trace(ctx context.Context, res *attempt) {
	if res.at == nil {
		return
	}
	traced := Attempt{Verdict: res.verdict, Votes: make([]VoteTaken, len(l.nodes))}
	if res.verdict == quorum.Won {
		traced.Token = res.tally.Token()
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
