package redlock

import (
	"hash/maphash"
	"slices"
	"sync"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// granted is the largest token of a resource that this server knows to be granted; zero for
// one that it does not remember.
type granted struct {
	resource, owner string
	token           fencing.Token
}

// grants remember the last grant of as many resources as there is room for. They trust no
// clock: that a grant was complete before a request began is what happened in this process.
type grants struct {
	violated func(lockcore.Invariant, ...any)
	seed     maphash.Seed

	mu   sync.Mutex
	last [rememberedGrants]granted // by the hash of the resource; a later resource takes the place
}

const rememberedGrants = 2048

func newGrants(violated func(lockcore.Invariant, ...any)) *grants {
	return &grants{violated: violated, seed: maphash.MakeSeed()}
}

func (g *grants) place(resource string) *granted {
	return &g.last[maphash.String(g.seed, resource)%rememberedGrants]
}

// before is what was granted when a request for the resource begins.
func (g *grants) before(resource string) granted {
	g.mu.Lock()
	defer g.mu.Unlock()
	if last := g.place(resource); last.resource == resource {
		return *last
	}
	return granted{}
}

// add takes the grant of an acquire that began after the earlier one.
func (g *grants) add(earlier, now granted) {
	if now.token < earlier.token || now.token == earlier.token && now.owner != earlier.owner {
		g.violated(lockcore.TokenOrder, "resource", now.resource, "token", now.token, "granted_before", earlier.token)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if last := g.place(now.resource); last.resource != now.resource || last.token < now.token {
		*last = now
	}
}

// extended takes an extend that succeeded and began after the earlier grant.
func (g *grants) extended(earlier granted, resource string, token fencing.Token) {
	if token < earlier.token {
		g.violated(lockcore.ExtendOrder, "resource", resource, "token", token, "granted_before", earlier.token)
	}
}

// checkQueues checks the queues of a resource, as nodes list them.
func (l *Locker) checkQueues(resource string, b *ballot) {
	for i := range b.replies[:b.n] {
		listed := b.replies[i].Queue
		if !slices.IsSortedFunc(listed, func(a, b node.Ticket) int { return int(a.Arrival - b.Arrival) }) {
			l.cfg.Violated(lockcore.QueueOrder, "resource", resource, "node", l.nodes[i].Name())
		}
	}
}
