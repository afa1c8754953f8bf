package nodetest

import (
	"cmp"
	"context"
	"time"

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
	Weak       replica.Weakness // rules that it breaks; default none
}

// Model is a replica in memory that replies at once. The methods of its store cause faults. Every method may
// be called from any goroutine; only Subscribe blocks.
type Model struct {
	*memstore.Store
	replica.Calls
	name    string
	machine *replica.Machine
}

var _ node.Node = (*Model)(nil)

// NewModel makes a node that holds nothing and is not admitted.
func NewModel(opts ModelOptions) *Model {
	name := cmp.Or(opts.Name, "model")
	m := &Model{
		Store: memstore.New(memstore.Options{Name: name, Now: opts.Now}),
		name:  name,
		machine: replica.NewMachine(replica.Rules{
			CounterTTL: opts.CounterTTL, Page: cmp.Or(opts.Page, 100), Weak: opts.Weak,
		}),
	}
	m.Calls = replica.Calls{Transact: func(ctx context.Context, _ bool, f func(*replica.Txn) error) error {
		return m.Update(ctx, func(tx replica.Tx) error { return m.machine.In(tx, f) })
	}}
	return m
}

// Name is the name that it was given.
func (m *Model) Name() string { return m.name }

// Join sets the cluster of the caller.
func (m *Model) Join(c node.Cluster) { m.machine.Join(c) }

// Submit does the operation at once.
func (m *Model) Submit(op *node.Op, index int, sink node.Sink) {
	sink.Deliver(index, m.Apply(*op))
}

// Apply does one operation. It ignores the Deadline.
func (m *Model) Apply(op node.Op) node.Reply { return m.ApplyAll(op)[0] }

// ApplyAll does operations in one transaction. It ignores their Deadlines.
func (m *Model) ApplyAll(ops ...node.Op) []node.Reply {
	replies := make([]node.Reply, len(ops))
	err := m.Transact(context.Background(), true, func(t *replica.Txn) error {
		for i := range ops {
			replies[i] = t.Vote(&ops[i])
		}
		return nil
	})
	if err != nil {
		for i := range replies {
			replies[i] = node.Reply{Err: err, Sent: true}
		}
	}
	return replies
}

// Subscribe notifies w until ctx ends.
func (m *Model) Subscribe(ctx context.Context, server string, w node.Listener) {
	m.Listen(ctx, server, w)
}

// Expel revokes the admission. A Model is not a node.Clocked, so a simulation does not have to use this
// method.
func (m *Model) Expel(ctx context.Context, incarnation string, epoch node.Epoch, note string) error {
	return m.Transact(ctx, true, func(t *replica.Txn) error { return t.Expel(incarnation, epoch, note) })
}

// ExpireNow expires a resource's lock early.
func (m *Model) ExpireNow(resource string) {
	if owner := m.Read(resource).Owner; owner != "" {
		m.Lose(replica.ScopeKey(owner))
	}
	m.Lose(replica.LockKey(resource))
}

// DropCounter deletes a resource's counter, as any node may do at any time.
func (m *Model) DropCounter(resource string) { m.Lose(replica.CounterKey(resource)) }

// Read reads a resource under the map that the node has.
func (m *Model) Read(resource string) node.Reply {
	seen, _ := m.Observe(context.Background())
	op := read(resource)
	op.Map = seen.Marks.Map.Name
	return m.Apply(op)
}
