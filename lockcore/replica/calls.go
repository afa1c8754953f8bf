package replica

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Calls implements the methods of a node.Node that are one transaction each. Transact runs f in a transaction,
// which may write if writes is true. If ctx ends first, f may still run later.
type Calls struct {
	Transact func(ctx context.Context, writes bool, f func(*Txn) error) error
}

// result runs f in a transaction and returns its result; after an error, the zero value.
func result[T any](ctx context.Context, c Calls, writes bool, f func(*Txn) (T, error)) (T, error) {
	answer := new(T) // f may still write to it after ctx has ended
	err := c.Transact(ctx, writes, func(t *Txn) (err error) {
		*answer, err = f(t)
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return *answer, nil
}

func (c Calls) change(ctx context.Context, f func(*Txn) error) error {
	return c.Transact(ctx, true, f)
}

// Observe reports the node's state.
func (c Calls) Observe(ctx context.Context) (node.Observation, error) {
	return result(ctx, c, false, func(t *Txn) (node.Observation, error) { return t.Observe(), nil })
}

// InstallEpoch installs an epoch and returns the marks.
func (c Calls) InstallEpoch(ctx context.Context, epoch node.Epoch) (node.Marks, error) {
	return result(ctx, c, true, func(t *Txn) (node.Marks, error) { return t.InstallEpoch(epoch) })
}

// Survey lists a page of locks.
func (c Calls) Survey(ctx context.Context, epoch node.Epoch, cursor string) ([]node.CarriedLock, string, error) {
	type page struct {
		locks []node.CarriedLock
		next  string
	}
	p, err := result(ctx, c, false, func(t *Txn) (p page, err error) {
		p.locks, p.next, err = t.Survey(epoch, cursor)
		return p, err
	})
	return p.locks, p.next, err
}

// Scan lists a page of locked resources.
func (c Calls) Scan(ctx context.Context, prefix, cursor string, limit int) ([]string, string, error) {
	type page struct {
		resources []string
		next      string
	}
	p, err := result(ctx, c, false, func(t *Txn) (p page, err error) {
		p.resources, p.next, err = t.Scan(prefix, cursor, limit)
		return p, err
	})
	return p.resources, p.next, err
}

// Servers lists the servers whose heartbeats have not expired.
func (c Calls) Servers(ctx context.Context) ([]string, error) {
	return result(ctx, c, false, func(t *Txn) ([]string, error) { return t.Servers(), nil })
}

// Counters reads effective counters.
func (c Calls) Counters(ctx context.Context, epoch node.Epoch, resources []string) ([]fencing.Token, error) {
	return result(ctx, c, false, func(t *Txn) ([]fencing.Token, error) { return t.Counters(epoch, resources) })
}

// Quarantine records the note by which this quarantine is known.
func (c Calls) Quarantine(ctx context.Context, note string) error {
	return c.change(ctx, func(t *Txn) error { return t.Quarantine(note) })
}

// Stage purges the node for an admission.
func (c Calls) Stage(ctx context.Context, a node.Admission) error {
	return c.change(ctx, func(t *Txn) error { return t.Stage(a) })
}

// Load writes carried counters and locks.
func (c Calls) Load(ctx context.Context, a node.Admission, locks []node.CarriedLock) error {
	return c.change(ctx, func(t *Txn) error { return t.Load(a, locks) })
}

// Admit opens the gate.
func (c Calls) Admit(ctx context.Context, a node.Admission) error {
	return c.change(ctx, func(t *Txn) error { return t.Admit(a) })
}

// InstallMap installs a map of the node sets.
func (c Calls) InstallMap(ctx context.Context, m node.Map) error {
	return c.change(ctx, func(t *Txn) error { return t.InstallMap(m) })
}

// Receive writes the locks that move to this set.
func (c Calls) Receive(ctx context.Context, epoch node.Epoch, name string, locks []node.CarriedLock) error {
	return c.change(ctx, func(t *Txn) error { return t.Receive(epoch, name, locks) })
}

// ReplaceSecrets replaces the cluster's secrets.
func (c Calls) ReplaceSecrets(ctx context.Context, was, with node.Secrets) error {
	return c.change(ctx, func(t *Txn) error { return t.ReplaceSecrets(was, with) })
}

// RaiseMaxTTL records a longer TTL.
func (c Calls) RaiseMaxTTL(ctx context.Context, ttl time.Duration) error {
	return c.change(ctx, func(t *Txn) error { return t.RaiseMaxTTL(ttl) })
}
