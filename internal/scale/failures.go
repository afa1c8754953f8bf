package scale

import (
	"fmt"
	"time"
)

// Failure is what one fault does.
type Failure struct {
	What   string
	Stops  string // which share of the resources cannot be taken
	For    string // how long
	Leases string // what becomes of live leases and waits
	From   string // the rule or constant that it follows from
	Test   string // which shows it; "" if none does
}

// Constants of the protocol.
const (
	watchEvery = 250 * time.Millisecond // redlock.Config.WatchInterval, and a tenth of it
	ticketTTL  = 3 * time.Second        // waitqueue, node.EnqueuedTTL
	lostAfter  = 5 * time.Second        // redlock.lostAfter: then waits end with 503
	nextPoll   = 10 * time.Second       // GUARANTEES.md, Queue: when a lost server's waiters ask another
)

// Failures predicts what faults do. maxTTL is FENCELOCK_MAX_TTL.
func Failures(d Deployment, maxTTL time.Duration) []Failure {
	quarantine := withDrift(maxTTL) + 2*watchEvery
	limit := min(d.NodeTimeout, d.TTL/10)
	spare := d.Nodes - Quorum(d.Nodes)
	share := fmt.Sprintf("1/%d", d.Sets)
	if d.Sets == 1 {
		share = "all"
	}
	var list []Failure
	if spare > 0 {
		list = append(list, Failure{
			What: fmt.Sprintf("up to %d of %d nodes lost or frozen, in every set", spare, d.Nodes), Stops: "none", For: "no time",
			Leases: "stay; a node that restarts votes again after " + round(quarantine),
			From:   "rules 13 and 18", Test: "TestFrozenMinorityCostsNothing, TestNodeIsQuarantinedAndReadmitted",
		})
	}
	return append(list,
		Failure{
			What: fmt.Sprintf("%d nodes of one set unreachable, their state kept", spare+1), Stops: share, For: "until they are back",
			Leases: fmt.Sprintf("expire if not extended; an acquire gets 503 after %s, a wait after %s", limit, lostAfter),
			From:   "rule 12, lostAfter", Test: "TestUnreachableMajorityIsAwaited, TestSeveralSets",
		},
		Failure{
			What: fmt.Sprintf("%d nodes of one set restarted", spare+1), Stops: share, For: round(quarantine) + " after the last needed one is back",
			Leases: "expire within that time", From: "rules 12 and 13, FENCELOCK_MAX_TTL", Test: "TestLostMajorityIsBootstrappedAgain",
		},
		Failure{
			What: fmt.Sprintf("one of %d servers lost", d.Servers), Stops: lostServer(d.Servers), For: "until its clients ask another",
			Leases: fmt.Sprintf("stay; its waits lose their places after %s, unless their clients come again before (the Go client within %s)", ticketTTL, nextPoll),
			From:   "node.EnqueuedTTL; a lease id is enough for any server", Test: "TestWaiting, TestHandOff",
		},
		Failure{
			What: "a slow site with a minority of the nodes", Stops: "none", For: "no time",
			Leases: "stay: a round is the m-th answer", From: "rule 18", Test: "TestFrozenMinorityCostsNothing",
		},
		Failure{
			What: fmt.Sprintf("a site with a majority slower than %s", limit), Stops: "all", For: "while it is",
			Leases: "cannot be extended", From: "rule 18, FENCELOCK_NODE_TIMEOUT", Test: "TestCallsEndOverSilentNodes",
		},
		Failure{
			What: "a node's clock jumps", Stops: "none", For: "no time",
			Leases: "one more node is quarantined, for " + round(quarantine), From: "rule 22", Test: "TestServerWhoseClockIsSetIsQuarantined",
		},
	)
}

func lostServer(servers int) string {
	if servers == 1 {
		return "all"
	}
	return "none"
}

// round is a duration in tenths of a second.
func round(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }
