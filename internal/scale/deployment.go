package scale

import (
	"fmt"
	"time"
)

// Deployment is what to predict.
type Deployment struct {
	Servers, Sets, Nodes int // Nodes is a set's: 1, 3, 5 or 7
	// Down is how many nodes of each set do not answer: the nearest, of a minority.
	Down int
	// ServerCores is what each server has. Nodes have one core each, since a Redis runs
	// scripts on one.
	ServerCores int
	// Shared, if not 0, puts everything, clients included, on one machine of so many
	// cores; ServerCores has no meaning then.
	Shared int
	// Trips are the round trips from a server to each node of a set; a missing one is
	// the last that is there.
	Trips      []time.Duration
	ClientTrip time.Duration // from a client to its server and back
	// NodeTimeout is FENCELOCK_NODE_TIMEOUT, and TTL the TTL of the leases: a round takes
	// at most the first and a tenth of the second (rule 18).
	NodeTimeout, TTL time.Duration

	Leases   int // held at the same time, in all
	Counters int // of resources that were used within FENCELOCK_COUNTER_TTL, in all
	Waiters  int // requests that wait, in all
	Readers  int // servers with a reader of events
}

// Constants of the service that bound a deployment.
const (
	MaxInFlight  = 128     // acquires of a server that ask one set (redlock.Config.MaxInFlight)
	MaxBatch     = 256     // operations of one script call (redisnode.Options.Batch)
	MaxFollowed  = 1 << 19 // leases that a server follows (api/leases.MaxLeases)
	redisClients = 10_000  // Redis's maxclients, unless configured

	leakKeys  = 200                    // redisnode.Leaks.Page
	leakPause = 100 * time.Millisecond // redisnode.Leaks.Pause
	leakRest  = 10 * time.Minute       // redisnode.Leaks.Rest

	relayBatch  = 100 * time.Millisecond // batchPause of api/events
	relayEvents = 512                    // maxBatch of api/events
	relayBeacon = time.Second            // beaconPause of api/events
)

// Quorum is a majority of n nodes.
func Quorum(n int) int { return n/2 + 1 }

// Check returns an error for a deployment that cannot be.
func (d Deployment) Check() error {
	switch {
	case d.Servers < 1 || d.Sets < 1:
		return fmt.Errorf("%d servers and %d sets: at least one of each", d.Servers, d.Sets)
	case d.Nodes != 1 && d.Nodes != 3 && d.Nodes != 5 && d.Nodes != 7:
		return fmt.Errorf("%d nodes in a set: 1, 3, 5 or 7", d.Nodes)
	case d.Down < 0 || d.Down > d.Nodes-Quorum(d.Nodes):
		return fmt.Errorf("%d of %d nodes down: a quorum has to be left", d.Down, d.Nodes)
	case d.Shared < 1 && d.ServerCores < 1:
		return fmt.Errorf("%d cores a server: at least one", d.ServerCores)
	case len(d.Trips) == 0 || d.NodeTimeout <= 0 || d.TTL <= 0:
		return fmt.Errorf("round trips %v, node timeout %s, TTL %s: all are needed", d.Trips, d.NodeTimeout, d.TTL)
	}
	return nil
}

// trip is the round trip to node i, in seconds.
func (d Deployment) trip(i int) float64 { return d.Trips[min(i, len(d.Trips)-1)].Seconds() }

// roundLimit is how long a round waits, in seconds.
func (d Deployment) roundLimit() float64 { return min(d.NodeTimeout, d.TTL/10).Seconds() }

// watch is the share of a node's core that servers take without any load: observations,
// heartbeats, and each server's search for locks without an expiry.
func (d Deployment) watch(c Costs) float64 {
	return float64(d.Servers) * (c.NodeWatch + d.leakSearch(c))
}

// leakSearch is one server's share: pages with pauses, and a rest after the last.
func (d Deployment) leakSearch(c Costs) float64 {
	keys := (2*float64(d.Leases) + float64(d.Counters)) / float64(d.Sets)
	pages := keys/leakKeys + 1
	search := pages * (leakPause.Seconds() + c.LeakPage.Seconds())
	return pages * c.LeakPage.Seconds() / (search + leakRest.Seconds())
}
