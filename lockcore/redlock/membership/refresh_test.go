package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// switched is a node that votes until it is switched off.
type switched struct {
	fakeNode
	maxTTL   time.Duration                    // of its record; 0 for an hour
	marks    atomic.Pointer[node.Observation] // in place of the usual; nil for it
	off      atomic.Bool
	observed atomic.Int32
}

func (n *switched) Observe(context.Context) (node.Observation, error) {
	n.observed.Add(1)
	if n.off.Load() {
		return node.Observation{}, errFake
	}
	if seen := n.marks.Load(); seen != nil {
		return *seen, nil
	}
	return node.Observation{Incarnation: n.name, Version: "Redis 7", Role: "master", Admitted: true, Epoch: 1, Marks: node.Marks{MaxTTL: cmp.Or(n.maxTTL, time.Hour)}}, nil
}

// Observe notices that a node has become unreachable, although Run does not run.
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

// The largest counter of an admitted node does not fall. Between two admissions, or two incarnations, it may.
func TestInvariantOfTheHighWaterMark(t *testing.T) {
	var said []string
	cfg := testConfig()
	cfg.Violated = func(one lockcore.Invariant, what ...any) { said = append(said, fmt.Sprint(one, what)) }
	n := &switched{fakeNode: fakeNode{name: "n"}}
	m := New(cfg, []node.Node{n})
	see := func(incarnation string, epoch node.Epoch, admitted bool, highWater fencing.Token) {
		n.marks.Store(&node.Observation{
			Incarnation: incarnation, Admitted: admitted, Note: "a note", Epoch: epoch, Marks: node.Marks{MaxTTL: time.Hour, HighWater: highWater},
		})
		m.Observe(t.Context())
	}
	see("a", 1, true, 9)
	see("a", 1, true, 9)
	see("a", 2, true, 8) // admitted again
	see("b", 2, true, 7)
	see("b", 2, false, 6)
	see("b", 2, true, 5)
	if said != nil {
		t.Fatalf("%q", said)
	}
	see("b", 2, true, 4)
	if want := []string{"high_water[node n high_water 4 before 5]"}; !slices.Equal(said, want) {
		t.Errorf("%q, want %q", said, want)
	}
}

// Many calls at the same time cost two observations: the one under way, which may have begun before the calls, and
// one more.
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

// slow is a node that replies after 100 ms.
type slow struct{ switched }

func (n *slow) Observe(ctx context.Context) (node.Observation, error) {
	time.Sleep(100 * time.Millisecond)
	return n.switched.Observe(ctx)
}

// A node that never replies is unreachable after the time limit.
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

// hanging is a node that does not reply before the context ends.
type hanging struct{ switched }

func (n *hanging) Observe(ctx context.Context) (node.Observation, error) {
	<-ctx.Done()
	return node.Observation{}, ctx.Err()
}

// unproved is a node that replies; it can be set to fail its writes.
type unproved struct {
	switched
	node.Writes
	full   atomic.Bool
	writes atomic.Int32
}

var errFull = errors.New("the disk is full")

func (n *unproved) Prove(ctx context.Context, within time.Duration) error {
	return n.Writes.Prove(ctx, within, func(context.Context) error {
		n.writes.Add(1)
		if n.full.Load() {
			return errFull
		}
		return nil
	})
}

// A node that replies but accepts no writes does not vote, and cannot be given up by force. It votes again soon after
// it accepts writes, and a caller that asks for the state sees that at once.
func TestANodeThatTakesNoWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &unproved{switched: switched{fakeNode: fakeNode{name: "n"}}}
		cfg := testConfig()
		cfg.Force = true
		m := New(cfg, []node.Node{n})
		m.Observe(t.Context())
		if s := m.Status(); !s.Ready {
			t.Fatalf("%+v", s)
		}
		n.full.Store(true)
		time.Sleep(time.Second)
		m.Observe(t.Context())
		s := m.Status()
		if s.Ready || s.Nodes[0].State != lockcore.NodeRefused || !strings.Contains(s.Nodes[0].Reason, errFull.Error()) {
			t.Errorf("%+v", s)
		}
		if p := m.plan(time.Now()); len(p.bootstrap) > 0 {
			t.Errorf("it is bootstrapped: %+v", p)
		}
		n.full.Store(false)
		time.Sleep(time.Second)
		m.Observe(t.Context())
		if s := m.Status(); !s.Ready {
			t.Errorf("%+v", s)
		}
	})
}

// When a node fails again and again, the log says so once. It says that the node votes again only when that lasts.
// Without clients the log has two such lines in four minutes.
func TestTheLogOfANodeThatFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &unproved{switched: switched{fakeNode: fakeNode{name: "n"}}}
		cfg := testConfig()
		var logged strings.Builder
		cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		m := New(cfg, []node.Node{n})
		watching, stop := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { m.watch(watching, 0) })
		time.Sleep(4*time.Minute - time.Second)
		if writes := n.writes.Load(); writes != 2 {
			t.Errorf("%d writes in four idle minutes", writes)
		}
		for range 10 {
			n.Failed(errFull)
			time.Sleep(500 * time.Millisecond)
			if m.Status().Ready {
				t.Fatal("it is ready after a failed write")
			}
			n.Done()
			time.Sleep(2 * time.Second)
			if !m.Status().Ready {
				t.Fatal("it is not ready though nothing has failed for a second")
			}
		}
		time.Sleep(settled)
		stop()
		done.Wait()
		if lines := strings.Count(logged.String(), "node state"); lines != 3 { // voting, refused, voting
			t.Errorf("%d lines:\n%s", lines, logged.String())
		}
	})
}
