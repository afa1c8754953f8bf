// Package order checks the order of tokens that one server grants and extends.
package order

import (
	"hash/maphash"
	"sync"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Grant is the largest token of a resource that this server knows to be granted; zero if it does not remember
// one.
type Grant struct {
	Resource, Owner string
	Token           fencing.Token
}

// Grants remember the last grants, as many as there is room for. They need no clock: only this process decides
// whether a grant was complete before a request began. They are safe for concurrent use.
type Grants struct {
	violated func(lockcore.Invariant, ...any)
	seed     maphash.Seed

	mu   sync.Mutex
	last [remembered]Grant // by the hash of the resource; a later resource replaces an earlier one
}

const remembered = 2048

// NewGrants makes Grants that report to violated.
func NewGrants(violated func(lockcore.Invariant, ...any)) *Grants {
	return &Grants{violated: violated, seed: maphash.MakeSeed()}
}

func (g *Grants) place(resource string) *Grant {
	return &g.last[maphash.String(g.seed, resource)%remembered]
}

// Before returns the last grant at the time when a request for the resource begins.
func (g *Grants) Before(resource string) Grant {
	g.mu.Lock()
	defer g.mu.Unlock()
	if last := g.place(resource); last.Resource == resource {
		return *last
	}
	return Grant{}
}

// Add records the grant of an acquire that began after the earlier one.
func (g *Grants) Add(earlier, now Grant) {
	if now.Token < earlier.Token || now.Token == earlier.Token && now.Owner != earlier.Owner {
		g.violated(lockcore.TokenOrder, "resource", now.Resource, "token", now.Token, "granted_before", earlier.Token)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if last := g.place(now.Resource); last.Resource != now.Resource || last.Token < now.Token {
		*last = now
	}
}

// Extended checks a successful extend that began after the earlier grant.
func (g *Grants) Extended(earlier Grant, resource string, token fencing.Token) {
	if token < earlier.Token {
		g.violated(lockcore.ExtendOrder, "resource", resource, "token", token, "granted_before", earlier.Token)
	}
}
