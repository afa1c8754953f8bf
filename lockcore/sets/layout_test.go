package sets_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// The tests of rule 26, each with the run of events that goes wrong without a part of it.

// bothGrant counts the resources that two servers grant at the same time.
func (a *atlas) bothGrant(one, other *lone) (n int) {
	a.Helper()
	ctx, cancel := context.WithTimeout(a.Context(), 10*time.Second)
	defer cancel()
	for _, resource := range names() {
		_, errOne := one.Acquire(ctx, lockcore.Request{Resource: resource, TTL: time.Minute})
		_, errOther := other.Acquire(ctx, lockcore.Request{Resource: resource, TTL: time.Minute})
		if errOne == nil && errOther == nil {
			n++
		}
	}
	return n
}

// A server with the list {a} opened a. A server with {a,b} finds b empty. If it opened b, it would grant resources
// there that the other server grants on a.
func TestNewSetOfAnotherListStaysShut(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		one, other := a.serve("a", ""), a.serve("ab", "")
		if n := a.bothGrant(one, other); n > 0 || !one.Status().Ready || other.Status().Ready {
			a.Errorf("%d resources are granted by both, ready: %t, %t", n, one.Status().Ready, other.Status().Ready)
		}
		says := other.Status().Nodes[0].Reason
		if !strings.Contains(says, "other node sets than this server's (a1,a2,a3;b1,b2,b3)") {
			a.Errorf("the reason is %q", says)
		}
	})
}

// A server with the list {a,b} has bootstrapped b, and cannot reach a, which a server with {a} bootstraps. So b must
// stay shut until a has shown the list.
func TestSetWaitsForTheOthersToShowTheList(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "", func(a *atlas) {
		cut := a.prepare("ab", "")
		for _, w := range cut.wires[0] {
			w.set(func() { w.dark = true })
		}
		a.run(cut)
		if got := cut.mapOf(a, 'b'); got != "new-"+a.mapName("ab") {
			a.Fatalf("b has the map %q", got)
		}
		one := a.serve("a", "")
		for _, w := range cut.wires[0] {
			w.set(func() { w.dark = false })
		}
		time.Sleep(time.Minute)
		if n := a.bothGrant(one, cut); n > 0 || cut.Status().Ready {
			a.Errorf("%d resources are granted by both, ready: %t", n, cut.Status().Ready)
		}
		if got := cut.mapOf(a, 'b'); got != "new-"+a.mapName("ab") {
			a.Errorf("b has the map %q", got)
		}
	})
}

// A set that is new says so at once, and is opened when the other one has shown the list.
func TestSetsOpenTogether(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "", func(a *atlas) {
		s := a.prepare("ab", "")
		for _, w := range s.wires[0] {
			w.set(func() { w.dark = true })
		}
		a.run(s)
		waits := func(resource string) bool {
			began := time.Now()
			_, err := s.Acquire(a.Context(), lockcore.Request{Resource: resource})
			down, ok := errors.AsType[*lockcore.QuorumError](err)
			return ok && time.Since(began) < time.Second && strings.Contains(down.Nodes[0].Reason, "once every node set has shown this server's list")
		}
		if s.Status().Ready || !slices.ContainsFunc(names(), waits) {
			a.Fatalf("no resource waits for set b: %+v", s.Status())
		}
		for _, w := range s.wires[0] {
			w.set(func() { w.dark = false })
		}
		time.Sleep(5 * time.Second)
		if now := s.Status(); !now.Ready {
			a.Fatal(now.Reason)
		}
		for _, resource := range names() {
			a.take(s, resource)
		}
	})
}

// Set b of {a,b} lost its data. A server with the list {b,c} that has seen b before bootstraps neither of its sets.
// The servers with {a,b} open b again, and know the list from the other set alone.
func TestServerOfAnotherListBootstrapsNothing(t *testing.T) {
	t.Parallel()
	withSets(t, 3, "ab", func(a *atlas) {
		stale := a.serve("bc", "")
		for _, m := range a.models[1] {
			m.Restart(false)
		}
		time.Sleep(5 * time.Minute)
		if seen, err := a.models[2][0].Observe(a.Context()); err != nil || seen.Admitted {
			a.Fatalf("c is bootstrapped by a server of another list: %+v, %v", seen, err)
		}
		one := a.serve("ab", "")
		time.Sleep(2 * time.Minute)
		if now := one.Status(); !now.Ready {
			a.Fatal(now.Reason)
		}
		if n := a.bothGrant(one, stale); n > 0 || stale.Status().Ready {
			a.Errorf("%d resources are granted by both, ready: %t", n, stale.Status().Ready)
		}
	})
}
