package sets_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// wire is a Model behind a network of a millisecond, which a test may cut or delay, for one server.
type wire struct {
	*nodetest.Model
	mu      sync.Mutex
	down    bool                           // no operation arrives
	hook    func(op node.Op) time.Duration // extra time on the way there; nil none
	deaf    bool                           // replies do not arrive
	lose    node.OpKind                    // the replies to these fail
	lost    string                         // no operation on this resource arrives
	dark    bool                           // observations fail
	staging func()                         // is called before the node is staged
	last    chan struct{}                  // is closed when the last operation without extra time has arrived
}

func (w *wire) set(f func()) { w.mu.Lock(); defer w.mu.Unlock(); f() }

func (w *wire) Observe(ctx context.Context) (node.Observation, error) {
	w.mu.Lock()
	dark := w.dark
	w.mu.Unlock()
	if dark {
		return node.Observation{}, node.ErrNodeDown
	}
	return w.Model.Observe(ctx)
}

func (w *wire) Stage(ctx context.Context, a node.Admission) error {
	w.mu.Lock()
	before := w.staging
	w.mu.Unlock()
	if before != nil {
		before()
	}
	return w.Model.Stage(ctx, a)
}

func (w *wire) Submit(op *node.Op, i int, sink node.Sink) {
	o := *op
	w.mu.Lock()
	down, extra := w.down || o.Resource != "" && o.Resource == w.lost, time.Duration(0)
	if w.hook != nil {
		extra = w.hook(o)
	}
	deaf, lost := w.deaf, w.lose == o.Kind
	before, arrived := w.last, make(chan struct{})
	if extra == 0 && !down {
		w.last = arrived
	}
	w.mu.Unlock()
	if down {
		go func() { time.Sleep(time.Millisecond); sink.Deliver(i, node.Reply{Err: node.ErrNodeDown}) }()
		return
	}
	go func() {
		time.Sleep(time.Millisecond + extra)
		if extra == 0 && before != nil {
			<-before
		}
		r := w.Apply(o)
		close(arrived)
		if deaf {
			return
		}
		time.Sleep(time.Millisecond)
		if lost {
			r = node.Reply{Err: errors.New("the connection broke"), Sent: true}
		}
		sink.Deliver(i, r)
	}()
}

type arena struct {
	*testing.T
	models  []*nodetest.Model
	servers []*locker
	wires   [][]*wire // by server, node
}

func newArena(t *testing.T, n, servers int) (*arena, func()) {
	t.Helper()
	a := &arena{T: t}
	for i := range n {
		a.models = append(a.models, nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("n%d", i+1)}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range servers {
		var nodes []node.Node
		var ws []*wire
		for _, m := range a.models {
			w := &wire{Model: m}
			ws = append(ws, w)
			nodes = append(nodes, w)
		}
		l, err := newLocker(sets.Config{New: true, MaxTTL: time.Minute, NodeTimeout: 50 * time.Millisecond}, nodes)
		if err != nil {
			t.Fatal(err)
		}
		a.servers, a.wires = append(a.servers, l), append(a.wires, ws)
		running.Go(func() { _ = l.Run(ctx) })
	}
	time.Sleep(5 * time.Second)
	for _, l := range a.servers {
		if !l.Status().Ready {
			t.Fatalf("not ready: %+v", l.Status())
		}
	}
	return a, func() { cancel(); running.Wait() }
}

// cut disconnects nodes (counted from 1) from every server.
func (a *arena) cut(off bool, nodes ...int) {
	for _, ws := range a.wires {
		for _, n := range nodes {
			ws[n-1].set(func() { ws[n-1].down, ws[n-1].dark = off, off })
		}
	}
}

func (a *arena) on(resource string) (on []int) {
	for i, m := range a.models {
		if r := m.Apply(node.Op{Kind: node.OpRead, Resource: resource}); r.Outcome == node.Granted {
			on = append(on, i+1)
		}
	}
	return on
}

func (a *arena) must(l *locker, req lockcore.Request) lockcore.Lease {
	a.Helper()
	lease, err := l.Acquire(a.Context(), req)
	if err != nil {
		a.Fatalf("acquire %+v: %v", req, err)
	}
	return lease
}

// delay makes operations of these kinds arrive after the node's time limit.
func (w *wire) delay(kinds ...node.OpKind) {
	w.set(func() {
		w.hook = func(op node.Op) time.Duration {
			if slices.Contains(kinds, op.Kind) {
				return 200 * time.Millisecond
			}
			return 0
		}
	})
}
