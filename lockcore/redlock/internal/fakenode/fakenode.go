// Package fakenode is a node with replies scripted by a test.
package fakenode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
)

// Node replies to votes with the test's script, and behaves otherwise like a Model that no server observes.
// Without a script it does not reply.
type Node struct {
	*nodetest.Model

	mu     sync.Mutex
	script func(op node.Op) (after time.Duration, reply node.Reply) // after < 0: no reply
	asked  []node.Op
}

// New makes a Node that does not reply yet.
func New(name string) *Node {
	return &Node{Model: nodetest.NewModel(nodetest.ModelOptions{Name: name})}
}

// Several makes n nodes.
func Several(n int) []node.Node {
	nodes := make([]node.Node, n)
	for i := range nodes {
		nodes[i] = New(fmt.Sprintf("node%d", i+1))
	}
	return nodes
}

// Submit records the op and replies by the script, from another goroutine.
func (f *Node) Submit(op *node.Op, index int, sink node.Sink) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, *op)
	if f.script == nil {
		return
	}
	after, reply := f.script(*op)
	if after < 0 {
		return
	}
	time.AfterFunc(after, func() { sink.Deliver(index, reply) })
}

// Ops returns the operations of one kind that the node got.
func (f *Node) Ops(kind node.OpKind) (ops []node.Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range f.asked {
		if op.Kind == kind {
			ops = append(ops, op)
		}
	}
	return ops
}

// Answer sets the script: it returns the reply to an op, and the delay before it; a negative delay means no
// reply.
func (f *Node) Answer(script func(op node.Op) (time.Duration, node.Reply)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = script
}

// Observe never ends.
func (f *Node) Observe(ctx context.Context) (node.Observation, error) {
	<-ctx.Done()
	return node.Observation{}, ctx.Err()
}

// Admits lets the node vote in epoch 1.
func (f *Node) Admits(tb testing.TB, c node.Cluster) {
	tb.Helper()
	seen, err := f.Model.Observe(tb.Context())
	a := node.Admission{Incarnation: seen.Incarnation, Epoch: 1, Bootstrapped: 1, Cluster: c, MaxTTL: time.Minute}
	if err := errors.Join(err, f.Stage(tb.Context(), a), f.Admit(tb.Context(), a)); err != nil {
		tb.Fatal(err)
	}
}

// Count raises the counter of "r" to a token.
func (f *Node) Count(token fencing.Token) {
	f.Apply(node.Op{Kind: node.OpRelease, Epoch: 1, Resource: "r", Owner: "counting", Token: token - 1})
}

// Take gives "r" to an owner.
func (f *Node) Take(owner string, ttl time.Duration) {
	f.Apply(node.Op{Kind: node.OpAcquire, Epoch: 1, Resource: "r", Owner: owner, TTL: ttl})
}

// Install puts the node into an epoch.
func (f *Node) Install(tb testing.TB, epoch node.Epoch) {
	tb.Helper()
	if _, err := f.InstallEpoch(tb.Context(), epoch); err != nil {
		tb.Fatal(err)
	}
}

// Counter returns the counter of "r".
func (f *Node) Counter(tb testing.TB) fencing.Token {
	tb.Helper()
	counters, err := f.Counters(tb.Context(), 1, []string{"r"})
	if err != nil {
		tb.Fatal(err)
	}
	return counters[0]
}

// Lock returns the lock of "r".
func (f *Node) Lock() node.Reply { return f.Apply(node.Op{Kind: node.OpRead, Resource: "r"}) }

// Always is a script with the same reply to every op, after a millisecond.
func Always(reply node.Reply) func(node.Op) (time.Duration, node.Reply) {
	return func(node.Op) (time.Duration, node.Reply) { return time.Millisecond, reply }
}
