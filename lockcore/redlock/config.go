package redlock

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
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

// Config tunes a Locker. The zero value of a field takes its default.
type Config struct {
	DefaultTTL time.Duration // of a request without a TTL; default 30s
	MaxTTL     time.Duration // the longest TTL of a request; default 60s
	// MaxHold bounds how long extensions may keep one lease (rule 19): at least MaxTTL,
	// or 0 or less for no bound.
	MaxHold time.Duration
	// MinTTL is the shortest TTL of a request, at least lockcore.MinTTL: what a store
	// whose commits take long can keep; default lockcore.MinTTL.
	MinTTL time.Duration
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
	Floor func(context.Context) (fencing.Token, error)
	// Released, if not nil, is called for every resource of a lease that a Release
	// of this Locker has ended. It must not block.
	Released func(resource string, token fencing.Token)
	Logger   *slog.Logger // default discards
	// Audit gets a record for everything that is done to nodes: a quarantine, an
	// admission, a bootstrap. Default Logger.
	Audit *slog.Logger
	// Keys, if not nil, returns the keys of lease ids and cursors, instead of those
	// of the cluster's own secret. Every server needs the same.
	Keys func() *Keys
	// Meters, if not nil, returns the Meter of the node of that name.
	Meters func(node string) Meter
	// Trace, if not nil, gets the attempts of the contexts that Traced selects.
	Trace  func(context.Context, Attempt)
	Traced func(context.Context) bool
	// Next are the sets that take the place of those given to New, by ApplyNext. A set that
	// stays has the same nodes in both. Default none: the sets stay.
	Next [][]node.Node
	// Unlisted: the nodes are those of one set for good, so nobody asks which servers know
	// another map (Running). A server that nobody waits at then sends no heartbeats.
	Unlisted bool
	// Random, if not nil, returns the source of lease ids, epochs and jitter of a node
	// set, by its place in New; default crypto/rand. Many goroutines read it at once.
	Random func(set int) io.Reader
}

func (c Config) withDefaults() Config {
	defaultTo(&c.MinTTL, lockcore.MinTTL)
	defaultTo(&c.MaxTTL, 60*time.Second)
	defaultTo(&c.DefaultTTL, min(30*time.Second, c.MaxTTL))
	defaultTo(&c.NodeTimeout, min(time.Second, c.MaxTTL/10))
	defaultTo(&c.NodeDownAfter, 4*c.NodeTimeout)
	defaultTo(&c.WatchInterval, 250*time.Millisecond)
	defaultTo(&c.MaxWaiters, 10_000)
	defaultTo(&c.MaxInFlight, 128)
	defaultTo(&c.Recovery, membership.RecoveryAuto)
	if c.Random == nil {
		c.Random = func(int) io.Reader { return rand.Reader }
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
	case c.MinTTL < lockcore.MinTTL:
		return fmt.Errorf("MinTTL is %s: at least %s", c.MinTTL, lockcore.MinTTL)
	case c.MaxTTL < c.MinTTL:
		return fmt.Errorf("MaxTTL is %s: at least %s", c.MaxTTL, c.MinTTL)
	case c.DefaultTTL < c.MinTTL || c.DefaultTTL > c.MaxTTL:
		return fmt.Errorf("DefaultTTL is %s: %s to MaxTTL (%s)", c.DefaultTTL, c.MinTTL, c.MaxTTL)
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

func validateSets(sets [][]node.Node) (err error) {
	if len(sets) == 0 {
		return errors.New("no set of nodes")
	}
	seen := make(map[string]bool)
	for _, nodes := range sets {
		switch len(nodes) {
		case 1, 3, 5, 7:
		default:
			err = errors.Join(err, fmt.Errorf("%d nodes: 1, 3, 5 or 7 are supported", len(nodes)))
		}
		for _, n := range nodes {
			if seen[n.Name()] {
				err = errors.Join(err, fmt.Errorf("node %s is listed twice: each node must be a server of its own", n.Name()))
			}
			seen[n.Name()] = true
		}
	}
	return err
}

// checkTTL replaces 0 by the default and refuses a TTL out of bounds.
func (c Config) checkTTL(ttl time.Duration) (time.Duration, error) {
	if ttl == 0 {
		return c.DefaultTTL, nil
	}
	if ttl < c.MinTTL || ttl > c.MaxTTL {
		reason := fmt.Sprintf("must be %d to %d", c.MinTTL.Milliseconds(), c.MaxTTL.Milliseconds())
		if c.MinTTL > lockcore.MinTTL && ttl < c.MinTTL {
			reason += ": the store that keeps the locks may take longer than a shorter lease lasts"
		}
		return 0, &lockcore.FieldError{Field: "ttl_ms", Reason: reason}
	}
	return ttl.Truncate(time.Millisecond), nil
}

func (c Config) checkAcquire(req *lockcore.AcquireRequest) (err error) {
	if req.TTL, err = c.checkTTL(req.TTL); err != nil {
		return err
	}
	if req.MinHold < 0 || req.MinHold > req.TTL {
		return &lockcore.FieldError{Field: "min_hold_ms", Reason: fmt.Sprintf("must be 0 to the TTL (%d)", req.TTL.Milliseconds())}
	}
	if req.MaxHold < 0 || req.MaxHold > 0 && req.MaxHold < req.TTL {
		return &lockcore.FieldError{Field: "max_hold_ms", Reason: fmt.Sprintf("must be 0 for no bound, or at least the TTL (%d)", req.TTL.Milliseconds())}
	}
	if req.Wait < 0 || req.Wait > lockcore.MaxWait {
		err = &lockcore.FieldError{Field: "wait_ms", Reason: fmt.Sprintf("must be 0 to %d", lockcore.MaxWait.Milliseconds())}
	}
	if len(req.Metadata) > lockcore.MaxMetadataBytes {
		err = &lockcore.FieldError{Field: "metadata", Reason: fmt.Sprintf("must be at most %d bytes long", lockcore.MaxMetadataBytes)}
	}
	if len(req.IdempotencyKey) > lockcore.MaxIdempotencyKey {
		err = &lockcore.FieldError{Field: "Idempotency-Key", Reason: "is too long"}
	}
	named := errors.Join(lockcore.ValidateResource(req.Resource), lockcore.ValidateSlots(req.Resource, req.Slots))
	if req.Resources != nil {
		named = checkBundle(req)
	}
	return errors.Join(named, lockcore.ValidateText("holder", req.Holder, 0), err)
}

// roundLimit is how long a round waits for so many nodes (rule 18). Of several a late one
// has others to decide without it; where there is one, an early end helps nobody.
func (c Config) roundLimit(nodes int, ttl time.Duration) time.Duration {
	if nodes == 1 {
		return min(c.NodeTimeout, ttl/2)
	}
	return min(c.NodeTimeout, ttl/10)
}

// membership is the configuration of the set's Controller.
func (c Config) membership(s *set, a *atlas) membership.Config {
	return membership.Config{
		MaxTTL: c.MaxTTL, NodeDownAfter: c.NodeDownAfter, WatchInterval: c.WatchInterval,
		Recovery: c.Recovery, Watching: c.Watching, Sets: a.sets, New: c.New, Force: c.Force, Floor: c.Floor,
		Logger: c.Logger, Audit: c.Audit, Random: s.random,
		Meter:   func(i int) membership.Meter { return s.meters[i] },
		Secrets: s.takeSecrets,
		Knows:   a.knows, NewMap: func() node.Map { return a.newMap(s) }, Mapped: func(m node.Map) { a.mapped(s, m) },
	}
}
