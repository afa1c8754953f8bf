package redlock

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

// Config tunes a Locker. The zero value of a field takes its default.
type Config struct {
	MaxTTL time.Duration // the longest TTL of a request; default 60s
	// MaxHold bounds how long extensions may keep one lease (rule 19): at least MaxTTL,
	// or 0 or less for no bound.
	MaxHold time.Duration
	// NodeTimeout is how long a round waits for a node, at most a tenth of the TTL, or
	// half of it where one node decides (rule 18); default 1s, at most a tenth of MaxTTL.
	NodeTimeout time.Duration
	// NodeDownAfter is how long a call of a node may take before the node counts as
	// unreachable; default 4 times NodeTimeout.
	NodeDownAfter time.Duration
	WatchInterval time.Duration // between two observations of a node; default 250ms
	MaxWaiters    int           // bounds the requests in the queue of this server; default 10000
	// MaxInFlight bounds the acquires that ask the nodes at the same time. More
	// wait before they ask. Default 128.
	MaxInFlight int
	Recovery    membership.Recovery // default RecoveryAuto
	Watching    bool                // this is no server, and bootstraps nothing
	// New: the operator says that the cluster is new, so that the first bootstrap
	// need not wait. It has an effect only while every node is reachable and empty.
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
	// Trace, if not nil, gets the attempts of the contexts that Traced selects.
	Trace  func(context.Context, Attempt)
	Traced func(context.Context) bool
	// Unlisted: the nodes are those of one set for good, so nobody asks which servers know
	// another map. A server that nobody waits at then sends no heartbeats.
	Unlisted bool
	// Random is the source of lease ids, epochs and jitter; default crypto/rand. Many
	// goroutines read it at once.
	Random io.Reader
	Map    Maps
}

// Maps are the maps of node sets as a Locker needs to know them (rule 30). The zero value is
// of a set that is alone for good.
type Maps struct {
	Sets   string                    // all sets that this server knows, for people
	Suffix string                    // says, in the id of this server on the nodes, which maps it knows
	Knows  func(mapName string) bool // see membership.Config
	New    func() node.Map           // see membership.Config
	Taken  func(node.Map)            // gets the map that the nodes have, whenever it changes; it must not block
	Others func() []*keyring.Ring    // of the other sets: they may have sealed a lease of a resource that moved here
}

func (m *Maps) others() []*keyring.Ring {
	if m.Others == nil {
		return nil
	}
	return m.Others()
}

// WithDefaults fills in the defaults.
func (c Config) WithDefaults() Config {
	defaultTo(&c.MaxTTL, 60*time.Second)
	defaultTo(&c.NodeTimeout, min(time.Second, c.MaxTTL/10))
	defaultTo(&c.NodeDownAfter, 4*c.NodeTimeout)
	defaultTo(&c.WatchInterval, 250*time.Millisecond)
	defaultTo(&c.MaxWaiters, 10_000)
	defaultTo(&c.MaxInFlight, 128)
	defaultTo(&c.Recovery, membership.RecoveryAuto)
	if c.Random == nil {
		c.Random = rand.Reader
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Audit == nil {
		c.Audit = c.Logger
	}
	return c
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
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

// roundLimit is how long a round waits for so many nodes (rule 18). Of several a late one
// has others to decide without it; where there is one, an early end does not help.
func (c Config) roundLimit(nodes int, ttl time.Duration) time.Duration {
	if nodes == 1 {
		return min(c.NodeTimeout, ttl/2)
	}
	return min(c.NodeTimeout, ttl/10)
}

// membership is the configuration of the Locker's Controller.
func (c Config) membership(l *Locker) membership.Config {
	return membership.Config{
		MaxTTL: c.MaxTTL, NodeDownAfter: c.NodeDownAfter, WatchInterval: c.WatchInterval,
		Recovery: c.Recovery, Watching: c.Watching, Sets: c.Map.Sets, New: c.New, Force: c.Force, Floor: c.Floor,
		Logger: c.Logger, Audit: c.Audit, Random: l.random,
		Meter:   func(i int) membership.Meter { return l.meters[i] },
		Secrets: l.takeSecrets,
		Knows:   c.Map.Knows, NewMap: c.Map.New, Mapped: c.Map.Taken,
	}
}
