// Package settings is how a lock service over nodes is configured: one Config, of which each layer (sets, redlock,
// membership) reads what it needs.
package settings

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
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// Recovery decides who bootstraps a cluster again after the loss of a majority (rule 12).
type Recovery string

// The ways of recovery.
const (
	RecoveryAuto   Recovery = "auto"   // every server, after the wait
	RecoveryManual Recovery = "manual" // an operator, with RecoveryAuto ('fencelock bootstrap')
)

// Config configures a service and each of its node sets. The zero value of a field takes its default.
type Config struct {
	DefaultTTL time.Duration // of a request without a TTL; default 30s
	MaxTTL     time.Duration // the longest TTL of a request; default 60s
	// MaxHold bounds how long extensions may keep one lease (rule 19): at least MaxTTL, or 0 or less for no
	// bound.
	MaxHold time.Duration
	// MinTTL is the shortest TTL of a request, at least lockcore.MinTTL. Raise it for a store with slow
	// commits; default lockcore.MinTTL.
	MinTTL time.Duration
	// NodeTimeout is how long a round waits for a node, at most a tenth of the TTL, or
	// half of it where one node decides (rule 18); default 1s, at most a tenth of MaxTTL.
	NodeTimeout time.Duration
	// NodeDownAfter is how long a call of a node may take before the node counts as
	// unreachable; default 4 times NodeTimeout.
	NodeDownAfter time.Duration
	WatchInterval time.Duration // between two observations of a node; default 250ms
	// MaxInFlight bounds the acquires that query the nodes at the same time. Further acquires wait for their
	// turn. Default 128.
	MaxInFlight int
	Recovery    Recovery // default RecoveryAuto
	Tool        bool     // an operator's command: it grants no lease, so no node records its MaxTTL
	Watching    bool     // a Tool that bootstraps nothing
	// New means that the operator declares the cluster new, so that the first bootstrap need not wait. It has
	// an effect only while every node is reachable and empty.
	New bool
	// Force: the operator says that the unreachable nodes will never come back, so
	// that a bootstrap need not wait for them (rule 12). A node that does come back
	// may repeat tokens.
	Force bool
	// Floor, if not nil, returns the guard's largest mark, so that a re-bootstrapped
	// cluster starts above it. An error means that it cannot be read now.
	Floor  func(context.Context) (fencing.Token, error)
	Logger *slog.Logger // default discards
	// Audit gets a record for everything that is done to nodes: a quarantine, an
	// admission, a bootstrap. Default Logger.
	Audit *slog.Logger
	// Keys, if not nil, returns the keys of lease ids and cursors, instead of those
	// of the cluster's own secret. Every server needs the same.
	Keys func() *keyring.Ring
	// Meters, if not nil, returns the Meter of the node of that name.
	Meters func(node string) Meter
	// Violated, if not nil, is called when an invariant is broken, with the evidence in the form of slog's
	// arguments. It must not block.
	Violated func(broken lockcore.Invariant, what ...any)
	// Trace, if not nil, gets the attempts of the contexts that Traced selects.
	Trace  func(context.Context, Attempt)
	Traced func(context.Context) bool
	// Next are the sets that replace those given to sets.New, by ApplyNext. A set that stays has the same nodes in
	// both. Default none: the sets stay.
	Next [][]node.Node
	// Progress, if not nil, gets a description of each step of ApplyNext and RevertNext before it begins. The
	// goroutine that makes the change calls it.
	Progress func(step string)
	// Unlisted means that the nodes belong to one set for good, so no operator checks which servers know
	// another map (Unaware). A server without waiters then sends no heartbeats.
	Unlisted bool
	// Entropy, if not nil, returns the source of lease ids, epochs and jitter of a node set, by its place in
	// sets.New; default crypto/rand. Many goroutines read it at once.
	Entropy func(set int) io.Reader
}

// Limits returns the limits of requests.
func (c Config) Limits() lockcore.Limits {
	return lockcore.Limits{DefaultTTL: c.DefaultTTL, MinTTL: c.MinTTL, MaxTTL: c.MaxTTL}.WithDefaults()
}

// WithDefaults fills in the defaults.
func (c Config) WithDefaults() Config {
	limits := c.Limits()
	c.DefaultTTL, c.MinTTL, c.MaxTTL = limits.DefaultTTL, limits.MinTTL, limits.MaxTTL
	c.NodeTimeout = cmp.Or(c.NodeTimeout, min(time.Second, c.MaxTTL/10))
	c.NodeDownAfter = cmp.Or(c.NodeDownAfter, 4*c.NodeTimeout)
	c.WatchInterval = cmp.Or(c.WatchInterval, 250*time.Millisecond)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 128)
	c.Recovery = cmp.Or(c.Recovery, RecoveryAuto)
	if c.Entropy == nil {
		c.Entropy = func(int) io.Reader { return rand.Reader }
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
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

// Validate refuses fields that contradict each other, after WithDefaults. The error begins with the name of the
// field. Limits are validated on their own.
func (c Config) Validate() error {
	switch {
	case c.MaxHold > 0 && c.MaxHold < c.MaxTTL:
		return fmt.Errorf("MaxHold is %s: 0 for no bound, or at least MaxTTL (%s)", c.MaxHold, c.MaxTTL)
	case c.NodeTimeout < time.Millisecond || c.NodeTimeout > c.MaxTTL/2:
		return fmt.Errorf("NodeTimeout is %s: 1ms to half of MaxTTL (%s)", c.NodeTimeout, c.MaxTTL/2)
	case c.MaxInFlight < 0:
		return fmt.Errorf("MaxInFlight is %d: at least 1", c.MaxInFlight)
	case c.WatchInterval < time.Millisecond:
		return fmt.Errorf("WatchInterval is %s: at least 1ms", c.WatchInterval)
	case c.Recovery != RecoveryAuto && c.Recovery != RecoveryManual:
		return fmt.Errorf("Recovery is %q: %q or %q", c.Recovery, RecoveryAuto, RecoveryManual)
	}
	return nil
}

// Meter counts what one node does. Many goroutines call its methods, some of them while they hold locks,
// so a method must be quick and must not call back.
type Meter interface {
	Vote(o node.Outcome)    // a reply to an acquire, including late ones
	NoAnswer()              // no reply to an acquire within its limit
	Confirm(o node.Outcome) // a reply to a confirm
	// Clock gets how far the node's clock is ahead of this server's: the median of the last readings. It is
	// not called for nodes that are not Clocked.
	Clock(ahead time.Duration)
	// Jump gets how far the node's clock jumped, compared with this server's.
	Jump(by time.Duration)
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
