package redlock

import (
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
)

// Config tunes a Locker. The zero value of a field takes its default. Fields without a
// comment are those of sets.Config, for one set.
type Config struct {
	MaxTTL        time.Duration
	MaxHold       time.Duration
	NodeTimeout   time.Duration
	NodeDownAfter time.Duration
	WatchInterval time.Duration
	MaxWaiters    int
	MaxInFlight   int
	Recovery      membership.Recovery
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
	Random        io.Reader // of this set
	Map           Maps
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
	if c.Violated == nil {
		c.Violated = func(lockcore.Invariant, ...any) {}
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
		Secrets: l.takeSecrets, Violated: c.Violated,
		Knows: c.Map.Knows, NewMap: c.Map.New, Mapped: c.Map.Taken,
	}
}
