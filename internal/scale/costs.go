package scale

import "time"

// Work is the processor time of an activity: so much each time, and so much for every
// operation in it.
type Work struct{ Fixed, Op time.Duration }

// Of returns the processor time of one with b operations, in seconds.
func (w Work) Of(b float64) float64 { return w.Fixed.Seconds() + b*w.Op.Seconds() }

// Costs are what bench/capacity measures. All times are processor time.
type Costs struct {
	// ClientPair is the load's, or an application's, and counts only where clients share
	// the servers' processors: Fixed for each wake, Op for each pair.
	ClientPair Work
	// ServerPair is HTTP and the algorithm, for a pair, without what depends on nodes.
	ServerPair time.Duration
	// ServerBatch is a server's for one batch to one node.
	ServerBatch time.Duration
	// NodeBatch is a node's for one batch, and for each operation in it.
	NodeBatch Work
	// ServerWatch and NodeWatch are the share of a core that one server's observations,
	// heartbeats and idle subscriptions of one node take: at the server, and at the node.
	ServerWatch, NodeWatch float64
	// LeakPage is a node's time for one page of a server's search for locks without an
	// expiry (redisnode.Leaks).
	LeakPage time.Duration
	// Publish is a node's time for one message to no subscriber, Deliver for each subscriber.
	Publish, Deliver time.Duration
	// Decode is a server's time to read one event of another server.
	Decode time.Duration
	// LocalTrip is the round trip between processes of one machine, without waits.
	LocalTrip time.Duration

	NodeLease   float64 // bytes of a lease on a node, its counter included
	NodeCounter float64 // bytes of a counter that outlives its lease
	NodeServer  float64 // bytes of a server's connections on a node
	NodeConns   float64 // connections of a server to a node
	ServerBase  float64 // bytes of a server without leases
	ServerNode  float64 // bytes of a server for each node
	ServerLease float64 // bytes of a server for each lease that it follows
	Waiter      float64 // bytes of a server for each request that waits
}
