package membership

import (
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
)

// Config configures a Controller: the service's Config with its defaults, and what belongs to this node set.
type Config struct {
	settings.Config
	Maps

	Random random.Source
	Meters []settings.Meter // by node
	// Secrets gets the cluster's secrets whenever they change; the first one is the secret that seals. It
	// must not block.
	Secrets func(secrets [][]byte)
}

// Maps are the functions with which a Controller handles maps of node sets (rule 30). The zero value is for a set
// that is never changed.
type Maps struct {
	Sets string // the node sets of this server, for display
	// Knows, if not nil, reports whether the server knows the map with this name (rule 30). A node with
	// an unknown map is refused.
	Knows func(mapName string) bool
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
}

// granted returns the longest TTL of a lease that this process grants: 0 for a Tool.
func (c Config) granted() time.Duration {
	if c.Tool {
		return 0
	}
	return c.MaxTTL
}
