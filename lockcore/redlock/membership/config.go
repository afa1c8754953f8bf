package membership

import (
	"context"
	"log/slog"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
)

// Recovery says who bootstraps a cluster again after a lost majority (rule 12).
type Recovery string

// The ways of recovery.
const (
	RecoveryAuto   Recovery = "auto"   // every Controller, after the wait
	RecoveryManual Recovery = "manual" // an operator, with a Controller that has RecoveryAuto ('fencelock bootstrap')
)

// Config tunes a Controller. Every field is needed, except for Floor.
type Config struct {
	MaxTTL        time.Duration // the longest TTL that this server grants
	NodeDownAfter time.Duration // how long a call of a node may take, see sets.Config
	WatchInterval time.Duration // how often each node is observed
	Recovery      Recovery
	New, Force    bool // see sets.Config
	// Floor, if not nil, reads the guard's largest mark.
	Floor  func(context.Context) (fencing.Token, error)
	Logger *slog.Logger
	Audit  *slog.Logger // gets a record for everything that is done to nodes
	Random random.Source
	Meter  func(node int) Meter
	// Knows, if not nil, reports whether the server has the map of that name (rule 30). A
	// node with another one is refused.
	Knows func(mapName string) bool
	// Watching: this is no server, and bootstraps nothing.
	Watching bool
	// Violated, if not nil, is called where an invariant is broken, see sets.Config.
	Violated func(broken lockcore.Invariant, what ...any)
	// Sets are the node sets of this server, for people.
	Sets string
	// NewMap, if not nil, is the map with which the set is bootstrapped, without its epoch.
	NewMap func() node.Map
	// Mapped, if not nil, gets the map by which the nodes vote, whenever it changes. It
	// must not block.
	Mapped func(node.Map)
	// Secrets gets the cluster's secrets whenever they change, the one that seals
	// first. It must not block.
	Secrets func(secrets [][]byte)
}

// Meter takes the readings of one node's clock. Its methods must be quick.
type Meter interface {
	// Clock takes by how much the node's clock is ahead of this server's: the median
	// of the last readings. It is not called for nodes that are not Clocked.
	Clock(ahead time.Duration)
	// Jump takes by how much the node's clock jumped against this server's.
	Jump(by time.Duration)
}
