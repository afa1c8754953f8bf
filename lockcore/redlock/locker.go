package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/cleanup"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/redlock/order"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

// Locker grants leases of one resource each, over one quorum of nodes. It is safe for concurrent use. Any
// number of Lockers may use the same nodes, and they share nothing else.
type Locker struct {
	cfg      Config
	set      Set
	random   random.Source
	nodes    []node.Node
	meters   []settings.Meter
	quorum   int
	cleaner  *cleanup.Cleaner
	queue    *waitqueue.Queue
	inFlight inFlight
	grants   *order.Grants
	members  *membership.Controller
	ring     atomic.Pointer[keyring.Ring] // the keys from the cluster's secrets; nil until a quorum has shown the secrets
	mapped   atomic.Pointer[Mapped]
}

// Mapped is a Locker under one map of the node sets. It grants, extends and ends leases while its nodes have
// that map. When they have another map, they refuse its votes (rule 30).
type Mapped struct {
	*Locker
	name string // the map's name
}

// New makes a Locker over 1, 3, 5 or 7 nodes. It grants nothing until Run has seen a quorum of admitted
// nodes.
func New(cfg Config, nodes []node.Node, set Set) (*Locker, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	set.withDefaults()
	l := &Locker{
		cfg: cfg, set: set, random: random.Source{Reader: set.Random}, nodes: nodes, quorum: quorum.Of(len(nodes)), meters: metersOf(&cfg, nodes),
		cleaner: cleanup.New(nodes), inFlight: make(inFlight, cfg.MaxInFlight), grants: order.NewGrants(cfg.Violated),
	}
	l.mapped.Store(&Mapped{Locker: l})
	l.members = membership.New(membership.Config{Config: cfg, Maps: set.Maps, Random: l.random, Meters: l.meters, Secrets: l.takeSecrets}, nodes)
	l.queue = waitqueue.New(waitqueue.Config{
		Nodes: nodes, NodeTimeout: cfg.NodeTimeout, Random: l.random, Epoch: l.members.Epoch,
		Map:    func() string { return l.Now().name },
		Suffix: set.Suffix, Unlisted: cfg.Unlisted,
		Cleanup: func(i int, op node.Op, until time.Time, submit cleanup.Submit) {
			l.cleaner.SendThrough(submit, i, op, until, cleanup.Never)
		},
	})
	return l, nil
}

// Now returns the Locker under the map that its nodes have.
func (l *Locker) Now() *Mapped { return l.mapped.Load() }

// MapName returns the name of the map by which these calls vote.
func (m *Mapped) MapName() string { return m.name }

// TakeMap records the map that the nodes have now.
func (l *Locker) TakeMap(m node.Map) {
	if l.mapped.Swap(&Mapped{Locker: l, name: m.Name}).name != m.Name {
		l.queue.Interrupt()
	}
}

// Members returns the Controller, which knows the nodes that vote.
func (l *Locker) Members() *membership.Controller { return l.members }

// Nodes returns the nodes that New got.
func (l *Locker) Nodes() []node.Node { return l.nodes }

// Failed adds the Locker's name to an error.
func (l *Locker) Failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the node set of %s: %w", l.nodes[0].Name(), err)
}

// Run observes the nodes, quarantines and admits them, and serves the queue, until ctx ends. It then ends
// every wait, and gives releases that are under way two seconds.
func (l *Locker) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { l.members.Run(ctx) })
	wg.Go(func() { l.queue.Run(ctx) })
	wg.Go(func() { l.interruptWithoutQuorum(ctx) })
	wg.Wait()
	l.queue.Stop()
	const closeLimit = 2 * time.Second
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	l.cleaner.Close(closing)
}

// StopWaiting ends every waiting Acquire with ErrStopping, and later ones as soon as they would wait.
func (l *Locker) StopWaiting() { l.queue.Stop() }

// Waiting counts the requests of one server in the queues of one quorum.
type Waiting struct {
	Requests int
	NoQuorum int // the number of those that cannot be granted now: too few nodes vote, or too few replied to the last attempt
}

// Waiting counts the requests that wait in the queue at this server. While the nodes' status
// shows no quorum, it counts all of them as NoQuorum, because a waiter may not try again for 15 s.
func (l *Locker) Waiting() Waiting {
	w := Waiting{Requests: l.queue.Len(), NoQuorum: l.queue.NoQuorum()}
	if !l.members.Status().Ready {
		w.NoQuorum = w.Requests
	}
	return w
}

// Readers returns the first R nodes that may vote. Each lock that a quorum holds is on at least one of
// them. The error is a *QuorumError.
func (l *Locker) Readers(ctx context.Context) (readers []int, err error) {
	want := quorum.Readers(len(l.nodes))
	for i, n := range l.members.Status().Nodes {
		if n.State == lockcore.NodeVoting && len(readers) < want {
			readers = append(readers, i)
		}
	}
	if len(readers) < want {
		return nil, l.Unready(ctx, "ready")
	}
	return readers, nil
}

// CurrentRing returns the configured keys, or else the keys from the cluster's secrets, for which a
// server that has just started may have to wait. The error is a *QuorumError.
func (l *Locker) CurrentRing(ctx context.Context) (*keyring.Ring, error) {
	_, keys, err := l.voting(ctx)
	return keys, err
}

// voting returns the epoch for the next votes, and keys that are at least as new (rule 24). The error is a
// *QuorumError.
func (l *Locker) voting(ctx context.Context) (node.Epoch, *keyring.Ring, error) {
	epoch, known := l.members.Epoch(), true
	if l.cfg.Keys == nil {
		epoch, known = l.members.VotingEpoch(ctx)
	}
	if keys := l.Ring(); known && keys != nil {
		return epoch, keys, nil
	}
	return 0, nil, l.Unready(ctx, noSecret)
}

// Ring returns the keys that are known now; nil before a quorum has shown the cluster's secret.
func (l *Locker) Ring() *keyring.Ring {
	if l.cfg.Keys != nil {
		return l.cfg.Keys()
	}
	return l.ring.Load()
}

// ReadRing reads the keys from a quorum, as they are now. Configured keys are always known.
func (l *Locker) ReadRing(ctx context.Context) error {
	if l.cfg.Keys == nil && !l.members.ReadSecrets(ctx) || l.Ring() == nil {
		return l.Unready(ctx, noSecret)
	}
	return nil
}

// noSecret is the reason, in errors, for a node that votes while no quorum has shown the cluster's secret.
const noSecret = "its secret is not known to a quorum yet"

// RotateSecret gives the nodes a new secret. Servers begin to seal with it within seconds, and still open ids
// sealed with the present one. The previous secret is deleted. If leases sealed with it may be alive (the
// present one is younger than Config.MaxHold), force must be true, and their holders get ErrNotHeld from then
// on. Errors: ErrSecretInUse, *QuorumError (some nodes may have the secret, and the servers copy it to the
// others; safe to repeat), ctx.Err().
func (l *Locker) RotateSecret(ctx context.Context, force bool) error {
	took, err := l.members.RotateSecret(ctx, l.cfg.MaxHold, force)
	switch {
	case errors.Is(err, membership.ErrNoSecret):
		return l.Unready(ctx, noSecret)
	case err == nil && took < l.quorum:
		e := l.Unready(ctx, "it may not have taken the new secret in time")
		e.Granted = took
		return e
	}
	return err
}

// takeSecrets makes the keys from the cluster's secrets.
func (l *Locker) takeSecrets(secrets [][]byte) {
	keys, err := keyring.New(secrets...)
	if err != nil {
		return // the same secret in two epochs: a correct node never has that
	}
	l.ring.Store(keys)
}
