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
)

// fakeNode answers with the test's script. Without a script it does not answer.
type fakeNode struct {
	name string

	mu     sync.Mutex
	script func(op node.Op) (after time.Duration, reply node.Reply) // after < 0: no answer
	asked  []node.Op
	vote   *vote1 // that the script answers by, if any
}

func fakes(n int) []node.Node {
	nodes := make([]node.Node, n)
	for i := range nodes {
		nodes[i] = &fakeNode{name: fmt.Sprintf("node%d", i+1)}
	}
	return nodes
}

func (f *fakeNode) Name() string { return f.name }

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

var errFake = errors.New("fake nodes are not members")

func (f *fakeNode) Join(node.Cluster) {}

func (f *fakeNode) Subscribe(ctx context.Context, _ string, _ node.Listener) { <-ctx.Done() }

func (f *fakeNode) Observe(ctx context.Context) (node.Observation, error) {
	<-ctx.Done()
	return node.Observation{}, ctx.Err()
}

func (f *fakeNode) InstallEpoch(context.Context, node.Epoch) (node.Marks, error) {
	return node.Marks{}, errFake
}

func (f *fakeNode) Survey(context.Context, node.Epoch, string) ([]node.CarriedLock, string, error) {
	return nil, "", errFake
}

func (f *fakeNode) Counters(context.Context, node.Epoch, []string) ([]fencing.Token, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.vote == nil {
		return nil, errFake
	}
	return []fencing.Token{f.vote.counter}, nil
}

func (f *fakeNode) Scan(context.Context, string, string, int) ([]string, string, error) {
	return nil, "", errFake
}
func (f *fakeNode) Quarantine(context.Context, string) error                         { return errFake }
func (f *fakeNode) Stage(context.Context, node.Admission) error                      { return errFake }
func (f *fakeNode) Load(context.Context, node.Admission, []node.CarriedLock) error   { return errFake }
func (f *fakeNode) Admit(context.Context, node.Admission) error                      { return errFake }
func (f *fakeNode) RaiseMaxTTL(context.Context, time.Duration) error                 { return errFake }
func (f *fakeNode) ReplaceSecrets(context.Context, node.Secrets, node.Secrets) error { return errFake }

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

// vote is a small node: one lock and one counter a resource, in epoch 1, which
// answers at once. It is what the scripts of most tests build upon.
type vote1 struct {
	counter fencing.Token
	lease   string
	grant   fencing.Token
	attempt string
	until   time.Time
	ttl     time.Duration
	meta    string
	epoch   node.Epoch
}

func (v *vote1) do(op node.Op) node.Reply {
	held := v.lease != "" && time.Now().Before(v.until)
	own := held && v.lease == op.Owner
	left := time.Until(v.until)
	if op.Epoch < v.epoch && (op.Kind == node.OpAcquire || op.Kind == node.OpConfirm || op.Kind == node.OpExtend) {
		return node.Reply{Outcome: node.StaleEpoch, Epoch: v.epoch}
	}
	switch {
	case op.Kind == node.OpAcquire && own:
		v.attempt = "="
		return node.Reply{Outcome: node.Granted, Existing: true, Grant: v.grant, Remaining: left, TTL: v.ttl, Meta: v.meta}
	case op.Kind == node.OpAcquire && held:
		return node.Reply{Outcome: node.Held, Grant: v.grant, Remaining: left, TTL: v.ttl, Meta: v.meta, Owner: v.lease}
	case op.Kind == node.OpAcquire:
		v.counter++
		v.lease, v.grant, v.attempt, v.meta = op.Owner, v.counter, op.Attempt, op.Meta
		v.until, v.ttl = time.Now().Add(op.TTL), op.TTL
		return node.Reply{Outcome: node.Granted, Grant: v.grant, Remaining: op.TTL, TTL: op.TTL}
	case op.Kind == node.OpConfirm && own && v.grant <= op.Token:
		v.counter, v.grant = max(v.counter, op.Token), op.Token
		return node.Reply{Outcome: node.Granted, Grant: op.Token, Remaining: left}
	case op.Kind == node.OpExtend && own && v.grant <= op.Token:
		v.until, v.ttl = time.Now().Add(op.TTL), op.TTL
		return node.Reply{Outcome: node.Granted, Grant: v.grant, Remaining: op.TTL, Meta: v.meta}
	case op.Kind == node.OpExtend && !held && v.counter <= op.Token:
		v.lease, v.grant, v.attempt, v.meta = op.Owner, op.Token, "", ""
		v.until, v.ttl = time.Now().Add(op.TTL), op.TTL
		return node.Reply{Outcome: node.Granted, Grant: op.Token, Remaining: op.TTL, Recreated: true}
	case (op.Kind == node.OpRelease || op.Kind == node.OpReleaseAfter) && own && (v.attempt == "" || v.grant <= op.Token), op.Kind == node.OpRetract && own && op.Attempt == v.attempt && v.grant > op.Above:
		v.lease = ""
		return node.Reply{Outcome: node.Granted, Grant: v.grant}
	case op.Kind == node.OpRead && held:
		return node.Reply{Outcome: node.Granted, Grant: v.grant, Remaining: left, TTL: v.ttl, Meta: v.meta, Owner: v.lease}
	}
	return node.Reply{Outcome: node.NotHeld}
}

// cluster is a Locker over fake nodes that vote, without membership: it starts
// in epoch 1. A test spoils single nodes through answer.
type cluster struct {
	*Locker
	set   *set
	fakes []*fakeNode
	votes []*vote1
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
	l, err := New(cfg, nodes)
	if err != nil {
		t.Fatal(err)
	}
	l.sets[0].members.Learn(1)
	c := &cluster{Locker: l, set: l.sets[0]}
	for _, n := range nodes {
		f, v := n.(*fakeNode), &vote1{epoch: 1}
		f.vote = v
		c.fakes, c.votes = append(c.fakes, f), append(c.votes, v)
		f.answer(func(op node.Op) (time.Duration, node.Reply) { return roundTrip, v.do(op) })
	}
	return c
}

// spoil lets a test change or swallow what a voting node answers: the op takes
// effect first.
func (c *cluster) spoil(i int, change func(op node.Op, reply node.Reply) (time.Duration, node.Reply)) {
	v := c.votes[i]
	c.fakes[i].answer(func(op node.Op) (time.Duration, node.Reply) { return change(op, v.do(op)) })
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
	for i := range c.votes {
		c.fakes[i].mu.Lock()
		if v := c.votes[i]; v.lease != "" && time.Now().Before(v.until) {
			n++
		}
		c.fakes[i].mu.Unlock()
	}
	return n
}

// settle lets time pass and everything that follows from it happen.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
