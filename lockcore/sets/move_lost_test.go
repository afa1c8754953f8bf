package sets_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// A set that loses its data during a change grants nothing until the change is continued.
func TestSetIsLostDuringAChange(t *testing.T) {
	t.Parallel()
	withSets(t, 3, "ab", func(a *atlas) {
		t := a.T
		s := a.serve("ab", "abc")
		for _, resource := range names() {
			a.take(s, resource)
		}
		stop := errors.New("the operator stops here")
		for _, w := range s.wires[2] {
			w.set(func() {
				w.before = func(call string) error {
					if call == "receive" {
						return stop
					}
					return nil
				}
			})
		}
		if err := s.apply(t); !errors.Is(err, stop) {
			t.Fatal(err)
		}
		for _, w := range s.wires[2] {
			w.set(func() { w.before = nil })
		}
		for _, lost := range []rune{'a', 'b', 'c'} {
			for _, m := range a.models[lost-'a'] {
				m.Restart(false)
			}
			time.Sleep(70 * time.Second)
			if name := s.mapOf(a, lost); !strings.HasPrefix(name, "closed-") {
				t.Fatalf("set %c has the map %q", lost, name)
			}
			if lost != 'b' { // it stays as it was
				a.must(s.revert(t))
				for _, resource := range names() {
					a.must(s.Release(t.Context(), a.take(s, resource).ID))
				}
				continue
			}
			a.must(s.revert(t))
		}
		a.must(s.apply(t))
		for _, m := range a.models[1] {
			m.Restart(false)
		}
		time.Sleep(70 * time.Second)
		if name := s.mapOf(a, 'b'); !strings.HasPrefix(name, "closed-") {
			t.Fatalf("the set has the map %q", name)
		}
		a.must(s.apply(t))
		for _, resource := range names() {
			a.must(s.Release(t.Context(), a.take(s, resource).ID))
		}
	})
}

// The set that got the next map first loses it with all its data, before the operator has given the map to the other
// set. A server that takes the change back meanwhile must not open the old set beside the new one.
func TestSetWithTheNextMapIsLost(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		t := a.T
		s, other := a.serve("a", "ab"), a.serve("a", "ab")
		for _, resource := range names() {
			a.take(s, resource)
		}
		const nodes = 3
		var mu sync.Mutex
		first, calls := -1, make([]int, 2)
		wake := make(chan struct{})
		for set, wires := range s.wires {
			for _, w := range wires {
				w.set(func() {
					w.before = func(call string) error {
						if call != "install-map" {
							return nil
						}
						mu.Lock()
						if calls[set]++; calls[set] > nodes && first < 0 { // after the moving map
							first = set
						}
						waits := first >= 0 && set != first
						mu.Unlock()
						if waits {
							<-wake
						}
						return nil
					}
				})
			}
		}
		applied := make(chan error, 1)
		go func() { applied <- s.apply(t) }()
		time.Sleep(5 * time.Second)
		mu.Lock()
		lost := first
		mu.Unlock()
		if lost < 0 {
			t.Fatal("no set has got the next map")
		}
		for _, m := range a.models[lost] {
			m.Restart(false)
		}
		time.Sleep(70 * time.Second)
		var began atomic.Bool // and no sync.Once: who waits for that one holds up the time of the bubble
		installs := make(chan struct{})
		for _, w := range other.wires[lost] {
			w.set(func() {
				w.before = func(call string) error {
					if call == "install-map" {
						if began.Swap(true) {
							<-installs
							return nil
						}
						close(wake)
						<-applied
						close(installs)
					}
					return nil
				}
			})
		}
		err := other.revert(t)
		was, is := s.mapOf(a, 'a'), s.mapOf(a, 'b')
		if was == a.mapName("a") && is == a.mapName("ab") {
			t.Errorf("the old set is open beside the new one (%v)", err)
		}
		a.must(s.apply(t))
	})
}

// A node cannot be reached when the next map comes, so it has the moving map when the servers know only the next one.
// They give it the map that it missed. A set that loses its data after that is bootstrapped.
func TestNodeThatMissedTheLastMap(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		t := a.T
		servers := a.ctx
		var stop context.CancelFunc
		a.ctx, stop = context.WithCancel(servers)
		s := a.serve("a", "ab")
		installed := 0
		cut := s.wires[0][2]
		cut.set(func() {
			cut.before = func(call string) error {
				if call == "install-map" {
					installed++
				}
				if installed > 1 {
					return node.ErrNodeDown
				}
				return nil
			}
		})
		a.must(s.apply(t))
		stop()
		a.ctx = servers
		mapOf := func(m *nodetest.Model) string {
			seen, err := m.Observe(t.Context())
			a.must(err)
			return seen.Marks.Map.Name
		}
		if mapOf(a.models[0][2]) == mapOf(a.models[0][0]) {
			t.Fatal("the node has not missed a map")
		}
		after := a.serve("ab", "")
		if got, want := mapOf(a.models[0][2]), mapOf(a.models[0][0]); got != want {
			t.Errorf("the node has the map %s, want %s", got, want)
		}
		for _, m := range a.models[0] {
			m.Restart(true)
		}
		time.Sleep(5 * time.Minute)
		for _, resource := range names() {
			a.must(after.Release(t.Context(), a.take(after, resource).ID))
		}
	})
}

// A change is made, and then the opposite one, and the servers know only the first sets. An operator of the first
// change that looked before all this, or that names the generation of that time, must change nothing: all leases
// would be lost.
func TestChangeOfAnEarlierGeneration(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		t := a.T
		servers := a.ctx
		var stop context.CancelFunc
		a.ctx, stop = context.WithCancel(servers)
		paused, again, first := a.serve("a", "ab"), a.serve("a", "ab"), a.serve("a", "ab")
		wake := make(chan struct{})
		for _, wires := range paused.wires {
			for _, w := range wires {
				w.set(func() {
					w.before = func(call string) error {
						if call == "install-epoch" {
							<-wake
						}
						return nil
					}
				})
			}
		}
		applied := make(chan error)
		go func() { applied <- paused.apply(t) }()
		time.Sleep(time.Second)
		a.must(first.apply(t))
		second := a.serve("ab", "a")
		a.must(second.apply(t))
		stop()
		a.ctx = servers
		server := a.serve("a", "")
		held := make(map[string]lockcore.Lease)
		for _, resource := range names() {
			held[resource] = a.take(server, resource)
		}
		close(wake)
		if err := <-applied; !errors.Is(err, sets.ErrOtherChange) {
			t.Errorf("the paused operator: %v", err)
		}
		for name, err := range map[string]error{"apply": again.ApplyNext(t.Context(), 0), "revert": again.RevertNext(t.Context(), 0)} {
			if !errors.Is(err, sets.ErrOtherChange) {
				t.Errorf("%s from generation 0: %v", name, err)
			}
		}
		if from, want := again.Generation(), int64(2); from != want {
			t.Errorf("the maps are at generation %d, want %d", from, want)
		}
		for resource, lease := range held {
			if _, err := server.Extend(t.Context(), lease.ID, time.Minute); err != nil {
				t.Errorf("%s: %v", resource, err)
			}
		}
	})
}

// The generation survives the loss of the data of a node that rejoins, and of a set.
func TestGenerationIsKept(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		t := a.T
		servers := a.ctx
		var stop context.CancelFunc
		a.ctx, stop = context.WithCancel(servers)
		a.must(a.serve("a", "ab").apply(t))
		a.must(a.serve("ab", "a").apply(t))
		stop()
		a.ctx = servers
		server := a.serve("a", "")
		wantGeneration := func(what string) {
			t.Helper()
			if seen, err := a.models[0][0].Observe(t.Context()); err != nil || !seen.Admitted || seen.Marks.Map.Generation != 2 {
				t.Fatalf("%s: %+v, %v, want generation 2", what, seen, err)
			}
		}
		a.models[0][0].Restart(false)
		time.Sleep(70 * time.Second)
		wantGeneration("a node has rejoined")
		for _, m := range a.models[0] {
			m.Restart(false)
		}
		time.Sleep(70 * time.Second)
		a.must(server.Release(t.Context(), a.take(server, "r").ID))
		wantGeneration("the set was bootstrapped")
	})
}
