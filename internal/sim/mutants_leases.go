package sim

import (
	"math/rand/v2"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Mutants about leases that their holders lose, and locks that stay for nobody, and the scenes
// that bring in what their rules are there for.

// torn is impatient with leases of several resources, of which an operator breaks one.
func torn(p *Plan) {
	impatient(p)
	p.Several, p.Breaks, p.Slots, p.Extend, p.Stubborn, p.Cancels = 0.5, 0.05, 0, 60, false, 0
}

// reborn: all nodes lose what they know, again and again, and clients take, extend and release
// leases from the moment on in which they can.
func reborn(p *Plan) {
	p.perfect()
	p.Disasters, p.Servers, p.Clients, p.Resources, p.Forget, p.Watch = true, 3, 8, 12, 0, 250*time.Millisecond
	p.MaxTTL, p.NodeTimeout, p.Eager = time.Second, 50*time.Millisecond, true
	p.New, p.Perfect = false, false // there is no quorum to ask for service
	rng := rand.New(rand.NewPCG(p.Seed, 35))
	p.Faults = nil
	for at := 2 * time.Second; at < p.Length-3*time.Second; at += between(rng, 3*time.Second, 4*time.Second) {
		for n := range p.Nodes {
			p.fault(at+time.Duration(n)*time.Millisecond, Lose, 0, n)
		}
	}
}

// unended: nobody has asked to release or break the lease of that token, which a client has.
func (l *ledger) unended(token fencing.Token) bool {
	owner := l.tokens[token]
	return owner != "" && l.released[owner] < token && l.mayBreak < token
}

// lookedAt are the keys that a server would have which takes the newest secret that a node of
// the first set has shown it, and asks for votes whatever epoch it knows.
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

// looked notes the secrets of an admitted node.
func (s *server) looked(seen *node.Observation) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if seen.Admitted {
		s.secrets = seen.Marks.Secrets
	}
}
