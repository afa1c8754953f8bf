package membership

import (
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
	off    atomic.Bool
	looked atomic.Int32
}

func (n *switched) Observe(context.Context) (node.Observation, error) {
	n.looked.Add(1)
	if n.off.Load() {
		return node.Observation{}, errFake
	}
	return node.Observation{Incarnation: n.name, Admitted: true, Epoch: 1, Marks: node.Marks{MaxTTL: time.Hour}}, nil
}

// A node that no vote could be counted from is not called voting, with no look of
// the watch in between.
func TestObserveSeesTheNodeOfNow(t *testing.T) {
	n := &switched{fakeNode: fakeNode{name: "n"}}
	m := New(testConfig(), []node.Node{n})
	m.Observe(t.Context())
	if s := m.Status(); s.Nodes[0].State != lockcore.NodeVoting {
		t.Fatalf("%+v", s)
	}
	n.off.Store(true)
	m.Observe(t.Context())
	if s := m.Status(); s.Nodes[0].State != lockcore.NodeUnreachable {
		t.Errorf("%+v", s)
	}
}

// Many who ask at the same time cost two looks: the one under way, which may be from
// before they asked, and another.
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
		if looks := n.looked.Load(); looks != 2 {
			t.Errorf("%d looks", looks)
		}
	})
}

// slow takes its time to answer.
type slow struct{ switched }

func (n *slow) Observe(ctx context.Context) (node.Observation, error) {
	time.Sleep(100 * time.Millisecond)
	return n.switched.Observe(ctx)
}
