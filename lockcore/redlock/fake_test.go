package redlock_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/compose"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/fakenode"
	"github.com/fencelock/fencelock/lockcore/servicetest"
)

// testKeys returns the keys of clusters that have no membership, and so no secret of their own.
func testKeys(tb testing.TB, secrets ...string) *keyring.Ring {
	tb.Helper()
	var raw [][]byte
	for _, secret := range secrets {
		sum := sha256.Sum256([]byte(secret))
		raw = append(raw, sum[:])
	}
	keys, err := keyring.New(raw...)
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

// alone is a Locker over nodes without a map of the node sets.
type alone struct{ *redlock.Locker }

func (l alone) At(_ context.Context, _ string, f func(compose.Resource) error) error {
	return f(l.Now())
}
func (l alone) Rings() []*keyring.Ring              { return []*keyring.Ring{l.Locker.Ring()} }
func (l alone) ReadRings(ctx context.Context) error { return l.ReadRing(ctx) }
func (alone) Ring(p *redlock.Grant) *keyring.Ring   { return p.Ring() }
func (alone) Retract(p *redlock.Grant)              { p.Retract() }
func (alone) RetractLater(p *redlock.Grant)         { p.RetractLater() }

// composed adds the calls that a ByID lacks.
type composed struct{ *compose.Service }

// cluster is a lock service over fake nodes that vote, without membership: it starts in epoch 1. A test makes single
// nodes fail through spoil.
type cluster struct {
	servicetest.ByID
	composed
	locker *redlock.Locker
	cfg    redlock.Config
	fakes  []*fakenode.Node
}

// roundTrip is how long a vote of a sound fake node takes.
const roundTrip = time.Millisecond

func newCluster(t *testing.T, n int, cfg redlock.Config) *cluster {
	t.Helper()
	nodes := fakenode.Several(n)
	if cfg.Keys == nil {
		keys := testKeys(t, "a secret")
		cfg.Keys = func() *keyring.Ring { return keys }
	}
	cfg.NodeTimeout = cmp.Or(cfg.NodeTimeout, 50*time.Millisecond)
	l, err := redlock.New(cfg, nodes, redlock.Set{})
	if err != nil {
		t.Fatal(err)
	}
	l.Members().Learn(1)
	c := &cluster{locker: l, cfg: cfg.WithDefaults()}
	limits := lockcore.Limits{MaxTTL: c.cfg.MaxTTL}.WithDefaults()
	s := compose.New(limits, alone{l}, cfg.NodeTimeout)
	c.ByID, c.composed = servicetest.ByID{Calls: s}, composed{s}
	for _, n := range nodes {
		f := n.(*fakenode.Node)
		f.Admits(t, l.Members().Cluster())
		c.fakes = append(c.fakes, f)
		f.Answer(func(op node.Op) (time.Duration, node.Reply) { return roundTrip, f.Apply(op) })
	}
	return c
}

// spoil lets a test change or swallow the replies of a voting node. The operation takes effect first.
func (c *cluster) spoil(i int, change func(op node.Op, reply node.Reply) (time.Duration, node.Reply)) {
	f := c.fakes[i]
	f.Answer(func(op node.Op) (time.Duration, node.Reply) { return change(op, f.Apply(op)) })
}

// heal makes a node reply normally again.
func (c *cluster) heal(i int) {
	c.spoil(i, func(_ node.Op, r node.Reply) (time.Duration, node.Reply) { return roundTrip, r })
}

// cut makes nodes unreachable.
func (c *cluster) cut(nodes ...int) {
	for _, i := range nodes {
		c.fakes[i].Answer(func(node.Op) (time.Duration, node.Reply) { return -1, node.Reply{} })
	}
}

// locked counts the nodes that have a lock.
func (c *cluster) locked() (n int) {
	for _, f := range c.fakes {
		if f.Lock().Outcome == node.Granted {
			n++
		}
	}
	return n
}

// settle lets time pass until everything that follows from it has happened.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
