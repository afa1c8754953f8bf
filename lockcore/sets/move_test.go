package sets_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// The tests of rule 30, each with the run of events that goes wrong without a part of it.

// movable is a wire whose calls of a change a test may stop before.
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

// withSets runs a test with so many sets, of which those of the letters are bootstrapped.
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

// serve starts a server with these sets, by letter. The next ones may be "".
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

// wantHeld: another request finds the resource held, by that token.
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

// names are resources that are enough for some to move from every set to every other.
func names() (all []string) {
	for i := range 40 {
		all = append(all, fmt.Sprint("r", i))
	}
	return all
}

// Leases that are held through two sets, three and two again stay what they are.
func TestSetsAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	withSets(t, 3, "ab", func(a *atlas) {
		t := a.T
		servers := []*lone{a.serve("ab", "abc"), a.serve("ab", "abc")}
		leases := make(map[string]lockcore.Lease)
		for i, resource := range names() {
			leases[resource] = a.take(servers[i%2], resource)
		}
		keyed := lockcore.Request{Resource: "keyed", TTL: time.Minute, IdempotencyKey: "k"}
		first, err := servers[0].Acquire(t.Context(), keyed)
		a.must(err)
		check := func(servers ...*lone) {
			t.Helper()
			for i, resource := range names() {
				lease := leases[resource]
				extended, err := servers[i%2].Extend(t.Context(), lease.ID, time.Minute)
				if err != nil || extended.Token != lease.Token {
					t.Fatalf("%s: %+v, %v, want token %d", resource, extended, err, lease.Token)
				}
				a.wantHeld(servers[(i+1)%2], resource, lease.Token)
			}
			again, err := servers[1].Acquire(t.Context(), keyed)
			if err != nil || again.Token != first.Token || !again.Existing {
				t.Fatalf("the retry got %+v, %v, want token %d", again, err, first.Token)
			}
			page, err := servers[0].List(t.Context(), lockcore.ListRequest{Caller: lockcore.Everyone, Limit: 100})
			listed := make(map[string]bool)
			for _, lock := range page.Locks {
				listed[lock.Resource] = true
			}
			if err != nil || len(listed) != len(leases)+1 {
				t.Fatalf("%d locks are listed, want %d; %v", len(listed), len(leases)+1, err)
			}
		}
		check(servers...)
		a.must(servers[0].apply(t))
		check(servers...)
		if locked, _, err := a.models[2][0].Scan(t.Context(), "", "", 100); err != nil || len(locked) < 5 {
			t.Errorf("the new set has %v, %v", locked, err)
		}
		three := []*lone{a.serve("abc", "ab"), a.serve("abc", "ab")}
		check(three...)
		late := make(map[string]lockcore.Lease) // whose ids the set that is removed may have sealed
		for i := range 20 {
			resource := fmt.Sprint("late", i)
			late[resource] = a.take(three[0], resource)
		}
		a.must(three[1].apply(t))
		for _, lease := range late {
			_, err := three[1].Extend(t.Context(), lease.ID, time.Minute)
			a.must(err)
		}
		two := a.serve("ab", "")
		for _, lease := range late {
			a.must(two.Release(t.Context(), lease.ID))
		}
		check(three...)
		for resource, lease := range leases {
			a.must(three[0].Release(t.Context(), lease.ID))
			a.wantNotHeld(three[1], lease)
			if next := a.take(three[1], resource); next.Token <= lease.Token {
				t.Errorf("%s: token %d after %d", resource, next.Token, lease.Token)
			}
		}
	})
}

// A waiter whose resource moves gets it on its new set, as soon as it is free there; its wait
// does not begin again.
func TestWaiterMoves(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		t := a.T
		s, other := a.serve("a", "ab"), a.serve("a", "ab")
		type grant struct {
			lockcore.Lease
			at time.Time
		}
		held, released := make(map[string]lockcore.Lease), make(map[string]time.Time)
		granted, ended := make(chan grant, len(names())), make(chan time.Duration, len(names()))
		for _, resource := range names() {
			held[resource] = a.take(s, resource)
			go func() {
				lease, err := other.Acquire(t.Context(), lockcore.Request{Resource: resource, TTL: time.Minute, Wait: 30 * time.Second})
				if err != nil {
					t.Errorf("%s: %v", resource, err)
				}
				granted <- grant{lease, time.Now()}
			}()
			go func() {
				began := time.Now()
				if lease, err := other.Acquire(t.Context(), lockcore.Request{Resource: resource, Wait: 3 * time.Second}); !errors.Is(err, lockcore.ErrWaitTimeout) {
					t.Errorf("%s: %+v, %v", resource, lease, err)
				}
				ended <- time.Since(began)
			}()
		}
		time.Sleep(time.Second)
		a.must(s.apply(t))
		for range names() {
			if took := <-ended; took < 3*time.Second || took > 3*time.Second+soon {
				t.Errorf("a wait of 3 s ended after %s", took)
			}
		}
		for _, lease := range held {
			a.must(s.Release(t.Context(), lease.ID))
			released[lease.Resource] = time.Now()
		}
		for range names() {
			next := <-granted
			if next.Token <= held[next.Resource].Token {
				t.Errorf("%s: token %d after %d", next.Resource, next.Token, held[next.Resource].Token)
			}
			if took := next.at.Sub(released[next.Resource]); took > soon {
				t.Errorf("%s was granted %s after its release", next.Resource, took)
			}
		}
	})
}

// A request for several resources whose parts have moved is not granted. Without a key its
// parts are free at once; under a key they stay for the key's next request.
func TestPartsThatMovedAreGivenBack(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "key"} {
		t.Run("key "+key, func(t *testing.T) {
			t.Parallel()
			withSets(t, 2, "a", func(a *atlas) {
				t := a.T
				s, other := a.serve("a", "ab"), a.serve("a", "ab")
				parts := names()[:10]
				held := a.take(s, "zz") // the last part
				req := lockcore.Request{
					Resources: append(parts, "zz"), TTL: 20 * time.Second, Wait: 3 * time.Second, IdempotencyKey: key,
				}
				ended := make(chan error, 1)
				go func() {
					_, err := other.Acquire(t.Context(), req)
					ended <- err
				}()
				time.Sleep(time.Second)
				for _, resource := range parts {
					if _, err := s.Acquire(t.Context(), lockcore.Request{Resource: resource}); !errors.Is(err, lockcore.ErrHeld) {
						t.Fatalf("%s is not taken: %v", resource, err)
					}
				}
				a.must(s.apply(t))
				if err := <-ended; !errors.Is(err, lockcore.ErrWaitTimeout) {
					t.Fatal(err)
				}
				time.Sleep(soon)
				kept := 0
				for _, resource := range parts {
					lease, err := s.Acquire(t.Context(), lockcore.Request{Resource: resource, TTL: time.Second})
					switch {
					case err == nil:
						a.must(s.Release(t.Context(), lease.ID))
					case errors.Is(err, lockcore.ErrHeld):
						kept++
					default:
						t.Errorf("%s: %v", resource, err)
					}
				}
				if key == "" && kept > 0 || key != "" && (kept == 0 || kept == len(parts)) {
					t.Errorf("%d of %d parts are still taken", kept, len(parts))
				}
				a.must(s.Release(t.Context(), held.ID))
				if lease, err := s.Acquire(t.Context(), req); err != nil {
					t.Errorf("the next request: %+v, %v", lease, err)
				}
			})
		})
	}
}

// A server that never got the next map, or has another one, grants nothing from the
// first step on.
func TestServerWithoutTheMap(t *testing.T) {
	t.Parallel()
	withSets(t, 3, "ab", func(a *atlas) {
		t := a.T
		s, without := a.serve("ab", "abc"), a.serve("ab", "")
		a.must(without.Release(t.Context(), a.take(without, "r1").ID))
		a.must(s.apply(t))
		check := func(with *lone) {
			t.Helper()
			for _, resource := range names() {
				_, err := with.Acquire(t.Context(), lockcore.Request{Resource: resource})
				if _, lost := errors.AsType[*lockcore.QuorumError](err); !lost {
					t.Fatalf("%s: %v", resource, err)
				}
				a.must(s.Release(t.Context(), a.take(s, resource).ID))
			}
		}
		check(without)
		time.Sleep(time.Second)
		check(without)
		if reason := without.Status().Nodes[0].Reason; !strings.Contains(reason, "give every server the same FENCELOCK_REDIS_ADDRS") {
			t.Errorf("the reason is %q", reason)
		}
		check(a.serve("ac", ""))
		check(a.serve("ac", "bc"))
	})
}

// A vote by the present map that arrives after the change began is refused, and a release
// that does counts as no answer: it is repeated on the new set.
func TestReleaseThatMeetsTheMove(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		t := a.T
		s, other := a.serve("a", "ab"), a.serve("a", "ab")
		held := make([]lockcore.Lease, 0, len(names()))
		for _, resource := range names() {
			held = append(held, a.take(s, resource))
		}
		for _, w := range other.wires[0] {
			w.set(func() {
				w.hook = func(op node.Op) time.Duration {
					if op.Kind == node.OpRelease {
						return 30 * time.Millisecond
					}
					return 0
				}
			})
		}
		released := make(chan error, len(held))
		for _, lease := range held {
			go func() { released <- other.Release(t.Context(), lease.ID) }()
		}
		time.Sleep(5 * time.Millisecond)
		a.must(s.apply(t))
		for range held {
			a.must(<-released)
		}
		for _, lease := range held {
			a.wantNotHeld(s, lease)
		}
	})
}

// A change that is not decided is taken back, and may be made again.
func TestChangeIsTakenBack(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		t := a.T
		s, other := a.serve("a", "ab"), a.serve("a", "ab")
		leases := make(map[string]lockcore.Lease)
		for _, resource := range names() {
			leases[resource] = a.take(s, resource)
		}
		for _, w := range s.wires[1] {
			w.set(func() {
				w.before = func(call string) error {
					if call == "receive" {
						return errors.New("the operator stops here")
					}
					return nil
				}
			})
		}
		if err := s.apply(t); err == nil {
			t.Fatal("it was applied")
		}
		a.must(other.revert(t))
		for resource, lease := range leases {
			if _, err := s.Extend(t.Context(), lease.ID, time.Minute); err != nil {
				t.Errorf("%s: %v", resource, err)
			}
			a.wantHeld(other, resource, lease.Token)
		}
		a.must(other.apply(t))
		if err := s.revert(t); !errors.Is(err, sets.ErrDecided) {
			t.Error(err)
		}
		a.must(other.apply(t)) // again changes nothing
		for resource, lease := range leases {
			if _, err := s.Extend(t.Context(), lease.ID, time.Minute); err != nil {
				t.Errorf("%s: %v", resource, err)
			}
		}
	})
}

// One operator has read all and pauses, another takes the change back: the first must
// not decide.
func TestOperatorThatPaused(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		t := a.T
		s, other := a.serve("a", "ab"), a.serve("a", "ab")
		wake := make(chan struct{})
		for _, w := range s.wires[1] {
			w.set(func() {
				w.before = func(call string) error {
					if call == "receive" {
						<-wake
					}
					return nil
				}
			})
		}
		a.must(s.Release(t.Context(), a.take(s, "held").ID))
		for _, resource := range names() {
			a.take(s, resource)
		}
		applied := make(chan error)
		go func() { applied <- s.apply(t) }()
		time.Sleep(100 * time.Millisecond)
		a.must(other.revert(t))
		fresh := make(map[string]lockcore.Lease)
		for i := range 20 {
			resource := fmt.Sprint("fresh", i)
			fresh[resource] = a.take(other, resource)
		}
		close(wake)
		if err := <-applied; err == nil {
			t.Fatal("the paused operator decided")
		}
		for resource, lease := range fresh {
			a.wantHeld(s, resource, lease.Token)
		}
	})
}

// A resource that comes back within the life of its lock and counter meets neither.
func TestResourceComesBack(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		t := a.T
		s := a.serve("a", "ab")
		old := make(map[string]lockcore.Lease)
		for _, resource := range names() {
			old[resource] = a.take(s, resource)
		}
		a.must(s.apply(t))
		back := a.serve("ab", "a")
		last := make(map[string]fencing.Token)
		for resource, lease := range old {
			a.must(back.Release(t.Context(), lease.ID))
			for range 5 {
				next := a.take(back, resource)
				last[resource] = next.Token
				a.must(back.Release(t.Context(), next.ID))
			}
		}
		a.must(back.apply(t))
		for resource, lease := range old {
			a.wantNotHeld(back, lease)
			if next := a.take(back, resource); next.Token <= last[resource] {
				t.Errorf("%s: token %d after %d", resource, next.Token, last[resource])
			}
		}
	})
}

// A lease of which the nodes that can be read do not show a quorum may be live: its
// resource is granted to no other for as long.
func TestUnreadLeaseBlocks(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		t := a.T
		s, other := a.serve("a", "ab"), a.serve("a", "ab")
		for _, w := range s.wires[0][2:] {
			w.set(func() { w.down = true })
		}
		var held []lockcore.Lease
		for _, resource := range names() {
			held = append(held, a.take(s, resource)) // on a1 and a2
		}
		for _, server := range []*lone{s, other} {
			for i, w := range server.wires[0] {
				w.set(func() { w.down, w.dark = i == 0, i == 0 })
			}
		}
		time.Sleep(time.Second)
		a.must(s.apply(t))
		for _, lease := range held {
			_, err := other.Acquire(t.Context(), lockcore.Request{Resource: lease.Resource})
			if !errors.Is(err, lockcore.ErrHeld) {
				t.Errorf("%s: %v", lease.Resource, err)
			}
		}
		time.Sleep(61 * time.Second)
		for _, lease := range held {
			if next := a.take(other, lease.Resource); next.Token <= lease.Token {
				t.Errorf("%s: token %d after %d", lease.Resource, next.Token, lease.Token)
			}
		}
	})
}

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

// The set that got the next map first loses it with all its data, while the operator that
// gave it has still to give it to the other. Whoever takes the change back meanwhile must
// not open the old set beside the new one.
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

// mapName is the name of the map of these sets.
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

// mapOf is the name of a set's map.
func (s *lone) mapOf(a *atlas, set rune) string {
	a.Helper()
	seen, err := a.models[set-'a'][1].Observe(a.Context())
	a.must(err)
	return seen.Marks.Map.Name
}

// A node cannot be reached when the next map comes, and has the moving one when servers
// know the next one alone. They give it the map that it missed; and a set that loses its
// data after that is bootstrapped.
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

// A change is made and the opposite one, and the servers know the first sets alone. An
// operator of the first change that looked before it all, and one that names the generation
// that was current at that time, must change nothing: all leases would be lost.
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

// The generation outlives the data of a node that rejoins, and of a set.
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

// The running servers that do not know a change are counted, and those that do not know the
// present sets either.
func TestUnawareServers(t *testing.T) {
	t.Parallel()
	withSets(t, 3, "ab", func(a *atlas) {
		t := a.T
		s := a.serve("ab", "abc")
		want := func(ofChange, ofPresent int) {
			t.Helper()
			if change, present, err := s.Unaware(t.Context()); err != nil || change != ofChange || present != ofPresent {
				t.Errorf("%d do not know the change and %d the present sets, want %d and %d; %v", change, present, ofChange, ofPresent, err)
			}
		}
		servers := a.ctx
		want(0, 0)
		for _, other := range []struct {
			present, next       string
			ofChange, ofPresent int
		}{{"ab", "", 1, 0}, {"ab", "ac", 1, 0}, {"ab", "abc", 0, 0}, {"abc", "ab", 1, 0}, {"abc", "", 1, 1}, {"a", "", 1, 1}} {
			var stop context.CancelFunc
			a.ctx, stop = context.WithCancel(servers) //nolint:fatcontext // each is of servers
			a.serve(other.present, other.next)
			want(other.ofChange, other.ofPresent)
			stop()
			time.Sleep(5 * time.Second) // its heartbeats expire
		}
		for _, w := range s.wires[2][:2] {
			w.Restart(true)
		}
		want(0, 0)
	})
}

// Each page of locks that move is written within the time of one call, all together take longer.
func TestManyLocksMoveToASlowSet(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		t := a.T
		s := a.serve("a", "b")
		const locks, page = 1_501, 150 * time.Millisecond // four pages; a call may take 250 ms
		for i := range locks {
			a.take(s, fmt.Sprint("many", i))
		}
		s.stopCalls(func(call string) error {
			if call == "receive" {
				time.Sleep(page)
			}
			return nil
		})
		a.must(s.apply(t))
		a.must(s.Release(t.Context(), a.take(s, "another").ID))
	})
}
