package scale

import "time"

// Memory is in bytes.
type Memory struct {
	Node   float64 // each node; maxmemory should be twice that
	Server float64 // each server
}

// MemoryOf predicts memory. Leases and waiters are spread evenly.
func MemoryOf(d Deployment, c Costs) Memory {
	sets, servers := float64(d.Sets), float64(d.Servers)
	followed := min(float64(d.Leases)/servers, MaxFollowed)
	return Memory{
		Node: float64(d.Leases)/sets*c.NodeLease + float64(d.Counters)/sets*c.NodeCounter + servers*c.NodeServer,
		Server: c.ServerBase + sets*float64(d.Nodes)*c.ServerNode + followed*c.ServerLease +
			float64(d.Waiters)/servers*c.Waiter,
	}
}

// Idle is what a deployment costs that nobody uses.
type Idle struct {
	Node        float64 // share of each node's core
	LeakSearch  float64 // of that, the searches for locks without an expiry
	Server      float64 // cores of each server
	Connections float64 // of all servers to one node
	// MaxServers is how many servers a node has connections for, unless configured.
	MaxServers int
}

// IdleOf predicts it.
func IdleOf(d Deployment, c Costs) Idle {
	return Idle{
		Node: d.watch(c), LeakSearch: float64(d.Servers) * d.leakSearch(c),
		Server:      float64(d.Sets*d.Nodes) * c.ServerWatch,
		Connections: float64(d.Servers) * c.NodeConns,
		MaxServers:  int(redisClients / max(c.NodeConns, 1)),
	}
}

// Events is what readers of /events cost. Servers meet on a few nodes of the first set
// only, whatever the number of sets.
type Events struct {
	Node   float64 // share of the core of each of these nodes, beside its locks
	Server float64 // cores of each server that has a reader
	// Passed is how many events a second servers pass on, and Lost how many they leave
	// out, for which readers get a gap.
	Passed, Lost float64
}

// EventsOf predicts it for so many events a second; a pair is two.
func EventsOf(d Deployment, c Costs, events float64) Events {
	servers, readers := float64(d.Servers), float64(d.Readers)
	if readers == 0 || servers == 1 {
		return Events{}
	}
	perSecond := 1 / relayBatch.Seconds()
	passed := min(events, servers*relayEvents*perSecond)
	batches := min(events, servers*perSecond)
	publish, deliver := c.Publish.Seconds(), c.Deliver.Seconds()
	beacons := readers / relayBeacon.Seconds()
	// A server reads an event on each channel before it knows that it has it.
	channels := float64(d.Nodes - Quorum(d.Nodes) + 1)
	return Events{
		Node:   batches*(publish+readers*deliver) + beacons*(publish+servers*deliver),
		Server: channels * passed * c.Decode.Seconds(),
		Passed: passed, Lost: events - passed,
	}
}

// longestTTL with the allowance for clocks (rule 17).
func withDrift(ttl time.Duration) time.Duration { return ttl + ttl/100 + 2*time.Millisecond }
