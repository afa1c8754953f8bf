package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// Shared is a store that several servers use, and the faults that it can have.
type Shared struct {
	Servers []replica.Store // one per server
	Now     func() time.Time
	Pass    func(time.Duration) // lets time pass
	Disturb func(*rand.Rand)    // makes the next transaction meet a fault
	Save    func()              // saves the state to which Lose returns
	Lose    func()              // removes everything that was committed since
}

// historyTTL is the TTL of all leases of a history.
const historyTTL = 10 * time.Second

// History makes servers grant, inspect and release leases of a few resources, while transactions meet faults
// and commits are lost. It returns the number of granted leases, and the first wrong reply.
func History(random *rand.Rand, shared *Shared, steps int) (leases int, err error) {
	h := &history{
		Shared: shared, random: random, machine: replica.NewMachine(replica.Rules{}), leases: make(map[string]granted),
	}
	if err := h.bootstrap(); err != nil {
		return 0, err
	}
	h.Save()
	for range steps {
		if err := h.step(); err != nil {
			return h.grants, err
		}
	}
	return h.grants, nil
}

type history struct {
	*Shared

	random  *rand.Rand
	machine *replica.Machine
	epoch   node.Epoch
	leases  map[string]granted // by resource: the last lease whose grant was reported
	owners  int
	grants  int
}

type granted struct {
	owner string
	token fencing.Token
	until time.Time
	over  bool // its release was requested
	gone  bool // and confirmed
}

func (h *history) step() error {
	resource := fmt.Sprintf("r%d", h.random.IntN(3))
	switch n := h.random.IntN(100); {
	case n < 45:
		if h.random.IntN(4) == 0 {
			h.Disturb(h.random)
		}
		return h.acquire(resource)
	case n < 65:
		h.release(resource)
	case n < 72:
		return h.look(resource)
	case n < 85:
		h.Pass(time.Duration(h.random.IntN(8000)) * time.Millisecond)
	case n < 97:
		h.Save()
	default:
		h.Lose()
		return h.bootstrap()
	}
	return nil
}

func (h *history) in(s replica.Store, do func(*replica.Txn) error) error {
	return s.Update(context.Background(), func(tx replica.Tx) error { return h.machine.In(tx, do) })
}

// bootstrap admits the node after its quarantine, as a server does. All servers inspect the node first,
// because possibly only one of them had seen the lost data and notices the loss.
func (h *history) bootstrap() error {
	var seen node.Observation
	observe := func(t *replica.Txn) error { seen = t.Observe(); return nil }
	for _, s := range h.Servers {
		if err := h.in(s, observe); err != nil {
			return err
		}
	}
	h.Pass(historyTTL)
	s := h.Servers[0]
	if err := h.in(s, observe); err != nil {
		return err
	}
	if seen.Admitted {
		return nil // it lost nothing
	}
	h.epoch = node.Epoch(h.Now().UnixMilli()) << 10
	a := node.Admission{
		Incarnation: seen.Incarnation, Note: seen.Note, Epoch: h.epoch, Bootstrapped: h.epoch,
		Floor: node.FloorAt(h.Now()), MaxTTL: historyTTL,
	}
	return errors.Join(
		h.in(s, func(t *replica.Txn) error { return t.Stage(a) }),
		h.in(s, func(t *replica.Txn) error { return t.Admit(a) }),
	)
}

func (h *history) vote(op node.Op) (reply node.Reply, err error) {
	op.Epoch = h.epoch
	err = h.in(h.Servers[h.random.IntN(len(h.Servers))], func(t *replica.Txn) error {
		reply = t.Vote(&op)
		return nil
	})
	return reply, err
}

func (h *history) acquire(resource string) error {
	h.owners++
	owner := fmt.Sprintf("owner%d", h.owners)
	sent := h.Now()
	reply, err := h.vote(node.Op{Kind: node.OpAcquire, Resource: resource, Owner: owner, TTL: historyTTL})
	if err != nil || reply.Outcome != node.Granted {
		return nil //nolint:nilerr // no client believes that it has a lease
	}
	h.grants++
	last := h.leases[resource]
	switch {
	case reply.Grant <= last.token:
		return fmt.Errorf("%s: token %d after %d", resource, reply.Grant, last.token)
	case last.owner != "" && !last.over && h.Now().Before(last.until):
		return fmt.Errorf("%s: two leases, %s and %s", resource, last.owner, owner)
	}
	h.leases[resource] = granted{owner: owner, token: reply.Grant, until: sent.Add(historyTTL)}
	return nil
}

func (h *history) release(resource string) {
	lease := h.leases[resource]
	if lease.owner == "" || lease.over {
		return
	}
	_, err := h.vote(node.Op{Kind: node.OpRelease, Resource: resource, Owner: lease.owner, Token: lease.token})
	lease.over, lease.gone = true, err == nil
	h.leases[resource] = lease
}

// look reports a lease that is still shown although it had ended before the look.
func (h *history) look(resource string) error {
	last := h.leases[resource]
	reply, err := h.vote(node.Op{Kind: node.OpRead, Resource: resource})
	switch {
	case err != nil || reply.Outcome != node.Granted:
		return nil //nolint:nilerr // it shows nothing
	case reply.Grant < last.token:
		return fmt.Errorf("%s: a look shows token %d after %d", resource, reply.Grant, last.token)
	case last.gone && reply.Owner == last.owner:
		return fmt.Errorf("%s: a look shows %s, which was released", resource, last.owner)
	}
	return nil
}
