package redlock

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
)

// fakeNode answers votes with the test's script, and the rest as a Model does that no
// server observes. Without a script it does not answer.
type fakeNode struct {
	*nodetest.Model

	mu     sync.Mutex
	script func(op node.Op) (after time.Duration, reply node.Reply) // after < 0: no answer
	asked  []node.Op
}

func newFake(name string) *fakeNode {
	return &fakeNode{Model: nodetest.NewModel(nodetest.ModelOptions{Name: name})}
}

func fakes(n int) []node.Node {
	nodes := make([]node.Node, n)
	for i := range nodes {
		nodes[i] = newFake(fmt.Sprintf("node%d", i+1))
	}
	return nodes
}

// Submit notes the op and answers by the script, from another goroutine.
func (f *fakeNode) Submit(op *node.Op, index int, sink node.Sink) {
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

// ops returns the operations of one kind that the node got.
func (f *fakeNode) ops(kind node.OpKind) (ops []node.Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range f.asked {
		if op.Kind == kind {
			ops = append(ops, op)
		}
	}
	return ops
}

func (f *fakeNode) answer(script func(op node.Op) (time.Duration, node.Reply)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = script
}

// Observe never ends.
func (f *fakeNode) Observe(ctx context.Context) (node.Observation, error) {
	<-ctx.Done()
	return node.Observation{}, ctx.Err()
}

// admit lets the node vote in epoch 1.
func (f *fakeNode) admit(t *testing.T, c node.Cluster) {
	t.Helper()
	seen, err := f.Model.Observe(t.Context())
	a := node.Admission{Incarnation: seen.Incarnation, Epoch: 1, Bootstrapped: 1, Cluster: c, MaxTTL: time.Minute}
	if err := errors.Join(err, f.Stage(t.Context(), a), f.Admit(t.Context(), a)); err != nil {
		t.Fatal(err)
	}
}

// count takes the counter of "r" up to a token.
func (f *fakeNode) count(token fencing.Token) {
	f.Apply(node.Op{Kind: node.OpRelease, Epoch: 1, Resource: "r", Owner: "counting", Token: token - 1})
}

// take gives "r" to an owner.
func (f *fakeNode) take(owner string, ttl time.Duration) {
	f.Apply(node.Op{Kind: node.OpAcquire, Epoch: 1, Resource: "r", Owner: owner, TTL: ttl})
}

// install puts the node into an epoch.
func (f *fakeNode) install(t *testing.T, epoch node.Epoch) {
	t.Helper()
	if _, err := f.InstallEpoch(t.Context(), epoch); err != nil {
		t.Fatal(err)
	}
}

// counter is that of "r".
func (f *fakeNode) counter(t *testing.T) fencing.Token {
	t.Helper()
	counters, err := f.Counters(t.Context(), 1, []string{"r"})
	if err != nil {
		t.Fatal(err)
	}
	return counters[0]
}

// lock is what the node shows of "r".
func (f *fakeNode) lock() node.Reply { return f.Apply(node.Op{Kind: node.OpRead, Resource: "r"}) }

// testKeys are the keys of clusters without membership, and so without a secret of their own.
func testKeys(tb testing.TB, secrets ...string) *Keys {
	tb.Helper()
	var raw [][]byte
	for _, secret := range secrets {
		sum := sha256.Sum256([]byte(secret))
		raw = append(raw, sum[:])
	}
	keys, err := NewKeys(raw...)
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

// cluster is a Locker over fake nodes that vote, without membership: it starts
// in epoch 1. A test spoils single nodes through answer.
type cluster struct {
	*Locker
	set   *set
	fakes []*fakeNode
}

// roundTrip is how long a vote of a sound fake node takes.
const roundTrip = time.Millisecond

func newCluster(t *testing.T, n int, cfg Config) *cluster {
	t.Helper()
	nodes := fakes(n)
	if cfg.Keys == nil {
		keys := testKeys(t, "a secret")
		cfg.Keys = func() *Keys { return keys }
	}
	defaultTo(&cfg.NodeTimeout, 50*time.Millisecond)
	l, err := New(cfg, nodes)
	if err != nil {
		t.Fatal(err)
	}
	l.sets[0].members.Learn(1)
	c := &cluster{Locker: l, set: l.sets[0]}
	for _, n := range nodes {
		f := n.(*fakeNode)
		f.admit(t, l.sets[0].members.Cluster())
		c.fakes = append(c.fakes, f)
		f.answer(func(op node.Op) (time.Duration, node.Reply) { return roundTrip, f.Apply(op) })
	}
	return c
}

// spoil lets a test change or swallow what a voting node answers: the op takes
// effect first.
func (c *cluster) spoil(i int, change func(op node.Op, reply node.Reply) (time.Duration, node.Reply)) {
	f := c.fakes[i]
	f.answer(func(op node.Op) (time.Duration, node.Reply) { return change(op, f.Apply(op)) })
}

// heal makes a node answer as it should again.
func (c *cluster) heal(i int) {
	c.spoil(i, func(_ node.Op, r node.Reply) (time.Duration, node.Reply) { return roundTrip, r })
}

// cut makes nodes unreachable.
func (c *cluster) cut(nodes ...int) {
	for _, i := range nodes {
		c.fakes[i].answer(func(node.Op) (time.Duration, node.Reply) { return -1, node.Reply{} })
	}
}

// locked counts the nodes that have a lock.
func (c *cluster) locked() (n int) {
	for _, f := range c.fakes {
		if f.lock().Outcome == node.Granted {
			n++
		}
	}
	return n
}

// settle lets time pass and everything that follows from it happen.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
