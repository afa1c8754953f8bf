package sim

import (
	"math/rand/v2"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Mutants of rules about leases that their holders lose, and about locks that stay without a holder, with the
// scenes that need these rules.

// torn has leases of several resources, impatient clients, and an operator who breaks one part.
func torn(p *Plan) {
	impatient(p)
	p.Several, p.Breaks, p.Slots, p.Extend, p.Stubborn, p.Cancels = 0.5, 0.05, 0, 60, false, 0
}

// reborn makes all nodes lose their data again and again, while clients take, extend and release leases as
// soon as they can.
func reborn(p *Plan) {
	p.perfect()
	p.Disasters, p.Servers, p.Clients, p.Resources, p.Forget, p.Watch = true, 3, 8, 12, 0, 250*time.Millisecond
	p.MaxTTL, p.NodeTimeout, p.Eager = time.Second, 50*time.Millisecond, true
	p.New, p.Perfect = false, false // there is no quorum that could serve
	rng := rand.New(rand.NewPCG(p.Seed, 35))
	p.Faults = nil
	for at := 2 * time.Second; at < p.Length-3*time.Second; at += between(rng, 3*time.Second, 4*time.Second) {
		for n := range p.Nodes {
			p.fault(at+time.Duration(n)*time.Millisecond, Lose, 0, n)
		}
	}
}

// unended reports that a client has the lease with that token, and that no client has tried to release or
// break it.
func (l *ledger) unended(token fencing.Token) bool {
	owner := l.tokens[token]
	return owner != "" && l.released[owner] < token && l.mayBreak < token
}

// lookedAt returns the keys of a mutant server. It takes the newest secret that a node of the first set has
// shown, and requests votes in any epoch.
func (s *server) lookedAt() *keyring.Ring {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	list := s.secrets.List()
	if len(list) == 0 {
		return nil
	}
	keys, err := keyring.New(list[0].Raw[:])
	if err != nil {
		panic("sim: " + err.Error())
	}
	return keys
}

// looked records the secrets of an admitted node.
func (s *server) looked(seen *node.Observation) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if seen.Admitted {
		s.secrets = seen.Marks.Secrets
	}
}
