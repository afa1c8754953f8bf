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
	Resources   int           // the number of resources for which the clients compete
	MaxTTL      time.Duration // FENCELOCK_MAX_TTL; a node that lost its data is quarantined for this long
	NodeTimeout time.Duration // FENCELOCK_NODE_TIMEOUT
	Think       time.Duration // a client's pause between two leases, on average
	Hold        time.Duration // how long a fault lasts
	// AtOnce is how long the service may be unavailable while a quorum of nodes is up, to allow for a machine
	// that is busy with everything on this stand.
	AtOnce time.Duration
	Seed   uint64
	Dir    string // folder for the histories of failed rounds
	Keep   bool   // also keep the histories of successful rounds

	// sabotage breaks something on purpose, to test that the checks find it.
	sabotage sabotage
}

// sabotage lists what a test can break so that a check has something to find.
type sabotage struct {
	ignoreStale  bool // clients treat a 412 as success
	skipClaim    bool // clients read without a token first
	forgetCounts bool // all nodes lose their counters and marks, but stay admitted
	leaveLock    bool // a lock without an end is left on a node
	keepLease    bool // releases get a success response, and release nothing
	abandon      bool // clients neither repeat nor give up requests without a response
	otherKey     bool // repetitions use another key, so that they do not find their lease
	deadPlace    bool // the first place in every queue belongs to a live server that never acquires
	loseLocks    bool // all nodes lose their locks while leases are valid
}

// recoverWithin is the promised time to recover from a fault that took the quorum away.
func (c Config) recoverWithin() time.Duration { return c.MaxTTL + 5*time.Second }

// lost is the percentage of responses that are lost on the way.
func (s sabotage) lost() int {
	if s.abandon || s.otherKey {
		return 60 // the failure to find begins with a lost response
	}
	return 4
}
