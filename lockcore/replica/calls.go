package replica

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// result runs f in a transaction and gives its result; the zero one with an error.
func result[T any](ctx context.Context, n *Node, writes bool, f func(*Txn) (T, error)) (T, error) {
	answer := new(T) // f may still write to it after ctx has ended
	err := n.do(ctx, &call{writes: writes, run: func(t *Txn) (err error) {
		*answer, err = f(t)
		return err
	}})
	if err != nil {
		var none T
		return none, err
	}
	return *answer, nil
}

func (n *Node) change(ctx context.Context, f func(*Txn) error) error {
	return n.do(ctx, &call{writes: true, run: f})
}

// Observe looks at the node.
func (n *Node) Observe(ctx context.Context) (node.Observation, error) {
	return result(ctx, n, false, func(t *Txn) (node.Observation, error) { return t.Observe(), nil })
}

// InstallEpoch installs an epoch and returns the marks.
func (n *Node) InstallEpoch(ctx context.Context, epoch node.Epoch) (node.Marks, error) {
	return result(ctx, n, true, func(t *Txn) (node.Marks, error) { return t.InstallEpoch(epoch) })
}

// Survey lists a page of locks.
func (n *Node) Survey(ctx context.Context, epoch node.Epoch, cursor string) ([]node.CarriedLock, string, error) {
	type page struct {
		locks []node.CarriedLock
		next  string
	}
	p, err := result(ctx, n, false, func(t *Txn) (p page, err error) {
		p.locks, p.next, err = t.Survey(epoch, cursor)
		return p, err
	})
	return p.locks, p.next, err
}

// Scan lists a page of locked resources.
func (n *Node) Scan(ctx context.Context, prefix, cursor string, limit int) ([]string, string, error) {
	type page struct {
		resources []string
		next      string
	}
	p, err := result(ctx, n, false, func(t *Txn) (p page, err error) {
		p.resources, p.next, err = t.Scan(prefix, cursor, limit)
		return p, err
	})
	return p.resources, p.next, err
}

// Counters reads effective counters.
func (n *Node) Counters(ctx context.Context, epoch node.Epoch, resources []string) ([]fencing.Token, error) {
	return result(ctx, n, false, func(t *Txn) ([]fencing.Token, error) { return t.Counters(epoch, resources) })
}

// Quarantine notes that the node's quarantine has begun.
func (n *Node) Quarantine(ctx context.Context, note string) error {
	return n.change(ctx, func(t *Txn) error { return t.Quarantine(note) })
}

// Stage purges the node for an admission.
func (n *Node) Stage(ctx context.Context, a node.Admission) error {
	return n.change(ctx, func(t *Txn) error { return t.Stage(a) })
}

// Load writes carried counters and locks.
func (n *Node) Load(ctx context.Context, a node.Admission, locks []node.CarriedLock) error {
	return n.change(ctx, func(t *Txn) error { return t.Load(a, locks) })
}

// Admit opens the gate.
func (n *Node) Admit(ctx context.Context, a node.Admission) error {
	return n.change(ctx, func(t *Txn) error { return t.Admit(a) })
}

// ReplaceSecrets replaces the cluster's secrets.
func (n *Node) ReplaceSecrets(ctx context.Context, was, with node.Secrets) error {
	return n.change(ctx, func(t *Txn) error { return t.ReplaceSecrets(was, with) })
}

// RaiseMaxTTL records a longer TTL.
func (n *Node) RaiseMaxTTL(ctx context.Context, ttl time.Duration) error {
	return n.change(ctx, func(t *Txn) error { return t.RaiseMaxTTL(ttl) })
}
