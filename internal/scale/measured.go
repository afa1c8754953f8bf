package scale

import "time"

// Measured are the costs that bench/capacity measured last.
func Measured() Costs {
	const us = time.Microsecond
	return Costs{
		ClientPair:  Work{Fixed: 20 * us, Op: 30 * us},
		ServerPair:  80 * us,
		ServerBatch: 43 * us,
		NodeBatch:   Work{Fixed: 30 * us, Op: 5 * us},
		ServerWatch: 0.001, NodeWatch: 0.0006,
		LeakPage: 250 * us, Publish: 20 * us, Deliver: 5 * us, Decode: 5 * us, LocalTrip: 50 * us,
		NodeLease: 300, NodeCounter: 72, NodeServer: 40_000, NodeConns: 4,
		ServerBase: 30e6, ServerNode: 100_000, ServerLease: 300, Waiter: 45_000,
	}
}
