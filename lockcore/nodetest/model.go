package nodetest

import (
	"cmp"
	"context"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/memstore"
)

// ModelOptions tune a Model. The zero value of a field takes its default.
type ModelOptions struct {
	Name       string           // default "model"
	Now        func() time.Time // default time.Now, so that it works in testing/synctest
	CounterTTL time.Duration    // default 24h
	Page       int              // locks of a page of Survey and Scan; default 100
	Weak       replica.Weakness // rules that it does not keep; default none
}

// Model is a replica in memory that answers at once, with the faults of its store
// to be had on request. All methods may be called from any goroutine; none of them
// waits, but for Wakes.
type Model struct {
	*memstore.Store
	name    string
	machine *replica.Machine
}

var _ node.Node = (*Model)(nil)

// NewModel makes a node that holds nothing and is not admitted.
func NewModel(opts ModelOptions) *Model {
	name := cmp.Or(opts.Name, "model")
	return &Model{
		Store: memstore.New(memstore.Options{Name: name, Now: opts.Now}),
		name:  name,
		machine: replica.NewMachine(replica.Rules{
			CounterTTL: opts.CounterTTL, Page: cmp.Or(opts.Page, 100), Weak: opts.Weak,
		}),
	}
}

// in runs do in a transaction.
func (m *Model) in(do func(*replica.Txn) error) error {
	return m.Update(context.Background(), func(tx replica.Tx) error { return m.machine.In(tx, do) })
}

// Name is the name it was given.
func (m *Model) Name() string { return m.name }

// Join names the cluster that asks.
func (m *Model) Join(c node.Cluster) { m.machine.Join(c) }

// Submit does the operation at once.
func (m *Model) Submit(op *node.Op, index int, sink node.Sink) {
	sink.Deliver(index, m.Apply(*op))
}

// Apply does one operation. Its Deadline is the transport's affair.
func (m *Model) Apply(op node.Op) (reply node.Reply) {
	err := m.in(func(t *replica.Txn) error {
		reply = t.Vote(&op)
		return nil
	})
	if err != nil {
		return node.Reply{Err: err, Sent: true}
	}
	return reply
}

// Subscribe notifies w until ctx ends.
func (m *Model) Subscribe(ctx context.Context, server string, w node.Listener) {
	m.Listen(ctx, server, w)
}

// ExpireNow ends a resource's lock early.
func (m *Model) ExpireNow(resource string) {
	if owner := m.Apply(read(resource)).Owner; owner != "" {
		m.Lose(replica.ScopeKey(owner))
	}
	m.Lose(replica.LockKey(resource))
}

// DropCounter drops a resource's counter, which any node may do at any time.
func (m *Model) DropCounter(resource string) { m.Lose(replica.CounterKey(resource)) }

// Observe looks at the node.
func (m *Model) Observe(context.Context) (seen node.Observation, err error) {
	err = m.in(func(t *replica.Txn) error {
		seen = t.Observe()
		return nil
	})
	return seen, err
}

// Fence installs an epoch and returns the marks.
func (m *Model) InstallEpoch(_ context.Context, epoch node.Epoch) (marks node.Marks, err error) {
	err = m.in(func(t *replica.Txn) error {
		marks, err = t.InstallEpoch(epoch)
		return err
	})
	return marks, err
}

// Survey lists a page of locks.
func (m *Model) Survey(_ context.Context, epoch node.Epoch, cursor string) (locks []node.CarriedLock, next string, err error) {
	err = m.in(func(t *replica.Txn) error {
		locks, next, err = t.Survey(epoch, cursor)
		return err
	})
	return locks, next, err
}

// Scan lists a page of locked resources.
func (m *Model) Scan(_ context.Context, prefix, cursor string, limit int) (resources []string, next string, err error) {
	err = m.in(func(t *replica.Txn) error {
		resources, next, err = t.Scan(prefix, cursor, limit)
		return err
	})
	return resources, next, err
}

// Counters reads effective counters.
func (m *Model) Counters(_ context.Context, epoch node.Epoch, resources []string) (counters []fencing.Token, err error) {
	err = m.in(func(t *replica.Txn) error {
		counters, err = t.Counters(epoch, resources)
		return err
	})
	return counters, err
}

// Quarantine notes that the node's quarantine has begun.
func (m *Model) Quarantine(_ context.Context, note string) error {
	return m.in(func(t *replica.Txn) error { return t.Quarantine(note) })
}

// Expel takes the admission back. A Model is no node.Clocked by itself, so
// that a simulation need not hear of it.
func (m *Model) Expel(_ context.Context, incarnation string, epoch node.Epoch, note string) error {
	return m.in(func(t *replica.Txn) error { return t.Expel(incarnation, epoch, note) })
}

// Stage purges the node for an admission.
func (m *Model) Stage(_ context.Context, a node.Admission) error {
	return m.in(func(t *replica.Txn) error { return t.Stage(a) })
}

// Load writes carried counters and locks.
func (m *Model) Load(_ context.Context, a node.Admission, locks []node.CarriedLock) error {
	return m.in(func(t *replica.Txn) error { return t.Load(a, locks) })
}

// Admit opens the gate.
func (m *Model) Admit(_ context.Context, a node.Admission) error {
	return m.in(func(t *replica.Txn) error { return t.Admit(a) })
}

// ReplaceSecrets replaces the cluster's secrets.
func (m *Model) ReplaceSecrets(_ context.Context, was, with node.Secrets) error {
	return m.in(func(t *replica.Txn) error { return t.ReplaceSecrets(was, with) })
}

// RaiseMaxTTL records a longer TTL.
func (m *Model) RaiseMaxTTL(_ context.Context, ttl time.Duration) error {
	return m.in(func(t *replica.Txn) error { return t.RaiseMaxTTL(ttl) })
}
