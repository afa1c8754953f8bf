package sets_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// The tests of rule 30, each with the run of events that goes wrong without a part of it.

// The sets change from two to three and back. Leases that are held meanwhile keep their tokens and ids.
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

// A waiter whose resource moves gets it on its new set as soon as it is free there. Its wait does not begin again.
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

// A request for several resources is not granted if some parts have moved. Without a key its parts are free at once.
// Under a key they stay for the key's next request.
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

// A server that did not get the next map, or has another one, grants nothing from the first step of the change on.
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

// A vote by the present map that arrives after the change began is refused. A release by that map counts as if it got
// no reply, and is repeated on the new set.
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

// One operator has read everything and pauses. Another one takes the change back. The first one must not complete it
// afterwards.
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

// A resource moves away and back while its lock and counter still live on the first set. It meets neither of them.
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

// If the readable nodes do not show a quorum of a lease, the lease may still be live. Its resource is granted to no
// other lease for as long as that.
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

// The number of running servers that do not know a change is counted, and so is the number of those that do not know
// the present sets.
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

// Each page of locks that move is written within the time limit of one call. All pages together take longer.
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
