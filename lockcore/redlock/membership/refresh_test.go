package membership

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// switched is a node that votes until it is switched off.
type switched struct {
	fakeNode
	maxTTL   time.Duration // of its record; 0 for an hour
	off      atomic.Bool
	observed atomic.Int32
}

func (n *switched) Observe(context.Context) (node.Observation, error) {
	n.observed.Add(1)
	if n.off.Load() {
		return node.Observation{}, errFake
	}
	return node.Observation{Incarnation: n.name, Version: "Redis 7", Role: "master", Admitted: true, Epoch: 1, Marks: node.Marks{MaxTTL: cmp.Or(n.maxTTL, time.Hour)}}, nil
}

// Observe sees that a node has become unreachable, without Run.
func TestObserveSeesTheNodeOfNow(t *testing.T) {
	n := &switched{fakeNode: fakeNode{name: "n"}}
	m := New(testConfig(), []node.Node{n})
	m.Observe(t.Context())
	if s := m.Status(); s.Nodes[0].State != lockcore.NodeVoting {
		t.Fatalf("%+v", s)
	}
	if s := m.Status().Nodes[0]; s.LastError != "" || s.Version != "Redis 7" || s.Role != "master" {
		t.Errorf("%+v", s)
	}
	n.off.Store(true)
	m.Observe(t.Context())
	if s := m.Status(); s.Nodes[0].State != lockcore.NodeUnreachable {
		t.Errorf("%+v", s)
	}
	n.off.Store(false)
	m.Observe(t.Context())
	if s := m.Status().Nodes[0]; s.State != lockcore.NodeVoting || s.LastError != errFake.Error() || s.LastErrorAgo < 0 || s.Version == "" {
		t.Errorf("it remembers no error: %+v", s)
	}
}

// Many calls at the same time cost two observations: the one under way, which may have
// begun before them, and another.
func TestObserveIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &slow{switched{fakeNode: fakeNode{name: "n"}}}
		m := New(testConfig(), []node.Node{n})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { m.Observe(t.Context()) })
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		if observations := n.observed.Load(); observations != 2 {
			t.Errorf("%d observations", observations)
		}
	})
}

// slow answers after 100 ms.
type slow struct{ switched }

func (n *slow) Observe(ctx context.Context) (node.Observation, error) {
	time.Sleep(100 * time.Millisecond)
	return n.switched.Observe(ctx)
}

// A node that never answers is unreachable after the time limit.
func TestObserveEndsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &switched{fakeNode: fakeNode{name: "n"}}
		hung := &hanging{switched{fakeNode: fakeNode{name: "hung"}}}
		m := New(testConfig(), []node.Node{n, hung})
		m.Observe(t.Context())
		if s := m.Status().Nodes; s[0].State != lockcore.NodeVoting || s[1].Reason != context.DeadlineExceeded.Error() {
			t.Errorf("%+v", s)
		}
	})
}

// hanging does not answer before the context ends.
type hanging struct{ switched }

func (n *hanging) Observe(ctx context.Context) (node.Observation, error) {
	<-ctx.Done()
	return node.Observation{}, ctx.Err()
}
