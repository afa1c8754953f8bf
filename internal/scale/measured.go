package scale

import "time"

// Measured are the costs that 'make capacity-check' measured on two cores of an AMD EPYC
// with Redis 7.0 and Go 1.26, over loopback: the fastest of three rounds of each load.
// Waiter alone is from docs/how-to/operate.md.
func Measured() Costs {
	const us = time.Microsecond
	return Costs{
		ClientPair: Work{Fixed: 22 * us, Op: 24 * us},
		ServerPair: 85 * us, ServerBatch: 47 * us,
		NodeBatch:   Work{Fixed: 48 * us, Op: 4300 * time.Nanosecond},
		ServerWatch: 0.00134, NodeWatch: 0.00121,
		LeakPage: 263 * us, Publish: 35 * us, Deliver: 6400 * time.Nanosecond, Decode: 1700 * time.Nanosecond,
		LocalTrip: 123 * us,
		NodeLease: 312, NodeCounter: 137, NodeServer: 88_000, NodeConns: 5,
		ServerBase: 31.5e6, ServerNode: 680_000, ServerLease: 837, Waiter: 45_000,
	}
}
