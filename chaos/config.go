package chaos

import "time"

// nodes and servers are the size of a stand.
const (
	nodes   = 5
	servers = 3
)

// Config is how a stand is built and how hard its clients work. All fields
// are needed unless they say otherwise.
type Config struct {
	Clients     int           // goroutines, each a client of its own
	Resources   int           // that the clients compete for
	MaxTTL      time.Duration // FENCELOCK_MAX_TTL; a node that lost its data is quarantined for this long
	NodeTimeout time.Duration // FENCELOCK_NODE_TIMEOUT
	Think       time.Duration // a client's pause between two leases, on average
	Hold        time.Duration // how long a fault lasts
	// AtOnce is how long the service may be away while a quorum of nodes is
	// there: time for a machine that is busy with everything on this stand.
	AtOnce time.Duration
	Seed   uint64
	Dir    string // where histories of failed rounds go
	Keep   bool   // those of all rounds

	// sabotage breaks something on purpose, to see that the checks find it.
	sabotage sabotage
}

// sabotage is what a test breaks so that a check has something to find.
type sabotage struct {
	ignoreStale  bool // clients take a 412 for a success
	skipClaim    bool // clients read without a token first
	forgetCounts bool // all nodes forget their counters and marks, and stay admitted
	leaveLock    bool // a lock without an end is left on a node
	keepLease    bool // releases are answered, and end nothing
	abandon      bool // clients neither repeat nor give up what got no response, and live on
	otherKey     bool // a repeat comes with another key, so that it does not find its lease
	deadPlace    bool // the first place in every queue is of a server that lives and never asks
	loseLocks    bool // all nodes lose their locks while leases are valid
}

// recoverWithin is what is promised after a fault that took the quorum away.
func (c Config) recoverWithin() time.Duration { return c.MaxTTL + 5*time.Second }

// lost is how many of a hundred answers to clients are lost on their way.
func (s sabotage) lost() int {
	if s.abandon || s.otherKey {
		return 60 // what goes wrong then begins with one
	}
	return 4
}
