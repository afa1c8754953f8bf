package sets_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// movable is a wire. A test may stop each of the calls by which an operator changes node sets.
type movable struct {
	*wire

	before func(call string) error // nil: none
}

func (m *movable) stop(call string) error {
	var before func(string) error
	m.set(func() { before = m.before })
	switch {
	case m.dark:
		return node.ErrNodeDown
	case before != nil:
		return before(call)
	}
	return nil
}

func (m *movable) InstallEpoch(ctx context.Context, epoch node.Epoch) (node.Marks, error) {
	if err := m.stop("install-epoch"); err != nil {
		return node.Marks{}, err
	}
	return m.wire.InstallEpoch(ctx, epoch)
}

func (m *movable) InstallMap(ctx context.Context, to node.Map) error {
	if err := m.stop("install-map"); err != nil {
		return err
	}
	return m.wire.InstallMap(ctx, to)
}

func (m *movable) Receive(ctx context.Context, epoch node.Epoch, name string, locks []node.CarriedLock) error {
	if err := cmp.Or(m.stop("receive"), ctx.Err()); err != nil { // it may have come too late
		return err
	}
	return m.wire.Receive(ctx, epoch, name, locks)
}

// atlas is several sets of three nodes, and servers that know some of them.
type atlas struct {
	*testing.T
	models [][]*nodetest.Model
	ctx    context.Context //nolint:containedctx // of the servers

	running sync.WaitGroup
}

// lone is one server, with its wires by set.
type lone struct {
	*locker
	wires [][]*movable
}

// withSets runs a test with n sets. Those that letters names are bootstrapped.
func withSets(t *testing.T, sets int, letters string, run func(a *atlas)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &atlas{T: t}
		var cancel context.CancelFunc
		a.ctx, cancel = context.WithCancel(context.WithoutCancel(t.Context()))
		defer time.Sleep(time.Second) // messages that nobody waits for are still on the wire
		defer a.running.Wait()
		defer cancel()
		for s := range sets {
			var models []*nodetest.Model
			for i := range 3 {
				models = append(models, nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("%c%d", 'a'+s, i+1)}))
			}
			a.models = append(a.models, models)
		}
		servers := a.ctx
		var stop context.CancelFunc
		a.ctx, stop = context.WithCancel(servers)
		if letters != "" {
			a.serve(letters, "")
		}
		stop()
		a.ctx = servers
		run(a)
	})
}

// serve starts a server with these sets, named by letters. next may be "".
func (a *atlas) serve(present, next string) *lone {
	a.Helper()
	s := a.prepare(present, next)
	a.run(s)
	return s
}

// prepare makes a server that does not run yet.
func (a *atlas) prepare(present, next string) *lone {
	a.Helper()
	s := &lone{wires: make([][]*movable, len(a.models))}
	for i, models := range a.models {
		for _, m := range models {
			s.wires[i] = append(s.wires[i], &movable{wire: &wire{Model: m}})
		}
	}
	setsOf := func(letters string) (sets [][]node.Node) {
		for _, letter := range letters {
			var nodes []node.Node
			for _, w := range s.wires[letter-'a'] {
				nodes = append(nodes, w)
			}
			sets = append(sets, nodes)
		}
		return sets
	}
	cfg := sets.Config{New: true, MaxTTL: time.Minute, NodeTimeout: 50 * time.Millisecond, Next: setsOf(next)}
	l, err := newLocker(cfg, setsOf(present)...)
	if err != nil {
		a.Fatal(err)
	}
	s.locker = l
	return s
}

func (a *atlas) run(s *lone) {
	ctx := a.ctx
	a.running.Go(func() { _ = s.Run(ctx) })
	time.Sleep(5 * time.Second)
}

// apply and revert plan the change from the map that the server sees.
func (s *lone) apply(t *testing.T) error {
	t.Helper()
	s.Observe(t.Context())
	return s.ApplyNext(t.Context(), s.Generation())
}

func (s *lone) revert(t *testing.T) error {
	t.Helper()
	s.Observe(t.Context())
	return s.RevertNext(t.Context(), s.Generation())
}

func (a *atlas) take(s *lone, resource string) lockcore.Lease {
	a.Helper()
	lease, err := s.Acquire(a.Context(), lockcore.Request{Resource: resource, TTL: time.Minute})
	if err != nil {
		a.Fatalf("acquire %s: %v", resource, err)
	}
	return lease
}

func (a *atlas) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

// wantHeld checks that another request finds the resource held with that token.
func (a *atlas) wantHeld(s *lone, resource string, token fencing.Token) {
	a.Helper()
	_, err := s.Acquire(a.Context(), lockcore.Request{Resource: resource})
	var held *lockcore.HeldError
	if !errors.As(err, &held) || held.Token != token {
		a.Fatalf("%s: %v, want it held with token %d", resource, err, token)
	}
}

func (a *atlas) wantNotHeld(s *lone, lease lockcore.Lease) {
	a.Helper()
	if extended, err := s.Extend(a.Context(), lease.ID, time.Minute); !errors.Is(err, lockcore.ErrNotHeld) {
		a.Fatalf("the lease of %s is extended: %+v, %v", lease.Resource, extended, err)
	}
}

// names returns enough resources that a change moves some from every set to every other.
func names() (all []string) {
	for i := range 40 {
		all = append(all, fmt.Sprint("r", i))
	}
	return all
}

// mapName returns the name of the map of these sets.
func (a *atlas) mapName(letters string) string {
	var lists [][]node.Node
	for _, letter := range letters {
		var nodes []node.Node
		for _, m := range a.models[letter-'a'] {
			nodes = append(nodes, &wire{Model: m})
		}
		lists = append(lists, nodes)
	}
	return sets.MapName(lists)
}

// mapOf returns the name of the map that a set's nodes have.
func (s *lone) mapOf(a *atlas, set rune) string {
	a.Helper()
	seen, err := a.models[set-'a'][1].Observe(a.Context())
	a.must(err)
	return seen.Marks.Map.Name
}
