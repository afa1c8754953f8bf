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

// Recovery decides who bootstraps a cluster again after the loss of a majority (rule 12).
type Recovery string

// The ways of recovery.
const (
	RecoveryAuto   Recovery = "auto"   // every Controller, after the wait
	RecoveryManual Recovery = "manual" // an operator, with a Controller that has RecoveryAuto ('fencelock bootstrap')
)

// Config configures a Controller. The caller must set every field whose comment does not permit nil or
// "".
type Config struct {
	MaxTTL        time.Duration // the longest TTL that this server grants
	NodeDownAfter time.Duration // the time limit of a call to a node, see sets.Config
	WatchInterval time.Duration // how often each node is observed
	Recovery      Recovery
	New, Force    bool // see sets.Config
	// Floor, if not nil, reads the guard's largest mark.
	Floor  func(context.Context) (fencing.Token, error)
	Logger *slog.Logger
	Audit  *slog.Logger // gets a record of every act on a node
	Random random.Source
	Meter  func(node int) Meter
	// Knows, if not nil, reports whether the server knows the map with this name (rule 30). A node with
	// an unknown map is refused.
	Knows func(mapName string) bool
	// Tool: this process is an operator's command. It grants no lease, so it does not record its MaxTTL
	// on nodes.
	Tool bool
	// Watching: this process is a Tool that bootstraps nothing.
	Watching bool
	// Violated, if not nil, is called when an invariant is violated, see sets.Config.
	Violated func(broken lockcore.Invariant, what ...any)
	// Sets are the node sets of this server, for display.
	Sets string
	// NewMap, if not nil, returns the map with which the set is bootstrapped, without its epoch.
	NewMap func() node.Map
	// NewSecrets, if not nil, returns the secrets with which the set is bootstrapped; zero means that a
	// new secret is made. known is false while the secrets are not known yet. It is called without
	// holding a lock.
	NewSecrets func() (secrets node.Secrets, known bool)
	// NextMap, if not nil, returns the map that the nodes must get next without an operator's command,
	// and whether there is one. It is called without holding a lock.
	NextMap func(now node.Map) (node.Map, bool)
	// OtherList, if not nil, reports whether another set of this server has, or may have, a map with a
	// different list of node sets. While it is true, this server bootstraps nothing. It must not block.
	OtherList func() bool
	// Mapped, if not nil, gets the map by which the nodes vote, whenever that changes. It must not block.
	Mapped func(node.Map)
	// Secrets gets the cluster's secrets whenever they change; the first one is the secret that seals. It
	// must not block.
	Secrets func(secrets [][]byte)
}

// granted returns the longest TTL of a lease that this process grants: 0 for a Tool.
func (c Config) granted() time.Duration {
	if c.Tool {
		return 0
	}
	return c.MaxTTL
}

// Meter gets measurements of one node's clock. Its methods must be quick.
type Meter interface {
	// Clock gets how far the node's clock is ahead of this server's: the median of the last readings. It
	// is not called for nodes that are not Clocked.
	Clock(ahead time.Duration)
	// Jump gets how far the node's clock jumped, compared with this server's.
	Jump(by time.Duration)
}
