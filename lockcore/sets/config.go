package sets

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

// Config tunes a Locker. The zero value of a field takes its default.
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
	MaxWaiters    int           // bounds the requests in the queue of this server; default 10000
	// MaxInFlight bounds the acquires that query the nodes at the same time. Further acquires wait for their
	// turn. Default 128.
	MaxInFlight int
	Recovery    membership.Recovery // default RecoveryAuto
	Tool        bool                // an operator's command: it grants no lease, so no node records its MaxTTL
	Watching    bool                // a Tool that bootstraps nothing
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
	Meters func(node string) redlock.Meter
	// Violated, if not nil, is called when an invariant is broken, with the evidence in the form of slog's
	// arguments. It must not block.
	Violated func(broken lockcore.Invariant, what ...any)
	// Trace, if not nil, gets the attempts of the contexts that Traced selects.
	Trace  func(context.Context, redlock.Attempt)
	Traced func(context.Context) bool
	// Next are the sets that replace those given to New, by ApplyNext. A set that stays has the same nodes in
	// both. Default none: the sets stay.
	Next [][]node.Node
	// Progress, if not nil, gets a description of each step of ApplyNext and RevertNext before it begins. The
	// goroutine that makes the change calls it.
	Progress func(step string)
	// Unlisted means that the nodes belong to one set for good, so no operator checks which servers know
	// another map (Unaware). A server without waiters then sends no heartbeats.
	Unlisted bool
	// Random, if not nil, returns the source of lease ids, epochs and jitter of a node
	// set, by its place in New; default crypto/rand. Many goroutines read it at once.
	Random func(set int) io.Reader
}

func (c Config) withDefaults() Config {
	if c.Random == nil {
		c.Random = func(int) io.Reader { return rand.Reader }
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// limits returns the limits of requests.
func (c Config) limits() lockcore.Limits {
	return lockcore.Limits{DefaultTTL: c.DefaultTTL, MinTTL: c.MinTTL, MaxTTL: c.MaxTTL}.WithDefaults()
}

// quorum returns the configuration of each set.
func (c Config) quorum() redlock.Config {
	return redlock.Config{
		MaxTTL: c.limits().MaxTTL, MaxHold: c.MaxHold, NodeTimeout: c.NodeTimeout, NodeDownAfter: c.NodeDownAfter,
		WatchInterval: c.WatchInterval, MaxWaiters: c.MaxWaiters, MaxInFlight: c.MaxInFlight,
		Recovery: c.Recovery, Tool: c.Tool, Watching: c.Watching, New: c.New, Force: c.Force, Floor: c.Floor,
		Logger: c.Logger, Audit: c.Audit, Keys: c.Keys, Meters: c.Meters, Violated: c.Violated, Trace: c.Trace, Traced: c.Traced, Unlisted: c.Unlisted,
	}.WithDefaults()
}

func validateSets(sets [][]node.Node) (err error) {
	if len(sets) == 0 {
		return errors.New("no set of nodes")
	}
	seen := make(map[string]bool)
	for _, nodes := range sets {
		switch len(nodes) {
		case 1, 3, 5, 7:
		default:
			err = errors.Join(err, fmt.Errorf("%d nodes: only 1, 3, 5 or 7 are supported", len(nodes)))
		}
		for _, n := range nodes {
			if seen[n.Name()] {
				err = errors.Join(err, fmt.Errorf("node %s is listed twice: each node must be a separate server", n.Name()))
			}
			seen[n.Name()] = true
		}
	}
	return err
}
