package blocked

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fencelock/fencelock/lockcore"
)

// held returns a lock of a holder for which others wait; the first of them has waited longest.
func held(resource, holder string, waiters ...string) lockcore.LockState {
	lock := lockcore.LockState{Resource: resource, Held: true, Holder: holder, Token: 7, Waiting: len(waiters)}
	for i, waiter := range waiters {
		lock.Waiters = append(lock.Waiters, lockcore.Waiter{Holder: waiter, WaitingFor: time.Duration(len(waiters)-i) * time.Second})
	}
	return lock
}

func byName(locks ...lockcore.LockState) map[string]lockcore.LockState {
	all := make(map[string]lockcore.LockState)
	for _, lock := range locks {
		all[lock.Resource] = lock
	}
	return all
}

// membersOf returns the members of each deadlock, sorted.
func membersOf(deadlocks []Deadlock) (sets []string) {
	for _, d := range deadlocks {
		var members []string
		for _, wait := range d.Waits {
			members = append(members, wait.Holder)
		}
		slices.Sort(members)
		sets = append(sets, fmt.Sprint(slices.Compact(members)))
	}
	slices.Sort(sets)
	return sets
}

func TestDeadlocks(t *testing.T) {
	for _, c := range []struct {
		name  string
		locks []lockcore.LockState
		want  []string
	}{
		{"a chain", []lockcore.LockState{held("x", "a", "b"), held("y", "b", "c"), held("z", "c", "d")}, nil},
		{"two", []lockcore.LockState{held("x", "a", "b"), held("y", "b", "a")}, []string{"[a b]"}},
		{"three, and one that waits for them", []lockcore.LockState{held("x", "a", "b"), held("y", "b", "c", "d"), held("z", "c", "a")}, []string{"[a b c]"}},
		{"two of two", []lockcore.LockState{held("x", "a", "b"), held("y", "b", "a"), held("z", "c", "d"), held("w", "d", "c")}, []string{"[a b]", "[c d]"}},
		{"threads with one label", []lockcore.LockState{held("x", "a", "a")}, nil},
		{"a label that is missing", []lockcore.LockState{held("x", "a", ""), held("y", "", "a")}, nil},
		{"a free resource", []lockcore.LockState{held("x", "a", "b"), {Resource: "y", Holder: "b", Waiters: []lockcore.Waiter{{Holder: "a"}}}}, nil},
		{"a slot that will be free", []lockcore.LockState{held("x", "a", "b"), held("s#slot1", "b", "a"), held("s#slot2", "c", "a")}, nil},
		{"a slot of a holder whose chain ends", []lockcore.LockState{
			held("x", "a", "b"), held("s#slot1", "b", "a"), held("s#slot2", "z3", "a"), held("w1", "z2", "z3"), held("w2", "z1", "z2"), held("w3", "z0", "z1"),
		}, nil},
		{"a slot of its own", []lockcore.LockState{held("x", "a", "b"), held("s#slot1", "b", "a"), held("s#slot2", "a", "a")}, nil},
		{"one that waits for another", []lockcore.LockState{held("x", "a", "b", "c"), held("y", "b", "a"), held("z", "c", "d"), held("w", "d", "c")}, []string{"[a b]", "[c d]"}},
		{"no slot that will be free", []lockcore.LockState{held("x", "a", "b", "c"), held("s#slot1", "b", "a"), held("s#slot2", "c", "a")}, []string{"[a b c]"}},
	} {
		if got := membersOf(newGraph(byName(c.locks...)).deadlocks()); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The holder whose wait began last closed the circle. So its lease is the one to break, and the deadlock is as old as
// its wait.
func TestTheYoungestWaitIsBroken(t *testing.T) {
	wait := func(holder string, d time.Duration) []lockcore.Waiter {
		return []lockcore.Waiter{{Holder: holder, WaitingFor: d}}
	}
	locks := byName(
		lockcore.LockState{Resource: "x", Held: true, Holder: "a", Token: 1, Waiters: wait("c", 9*time.Second)},
		lockcore.LockState{Resource: "y", Held: true, Holder: "b", Token: 2, Waiters: wait("a", 2*time.Second)},
		lockcore.LockState{Resource: "z", Held: true, Holder: "c", Token: 3, Waiters: wait("b", 5*time.Second)},
	)
	found := newGraph(locks).deadlocks()
	if len(found) != 1 {
		t.Fatalf("%+v", found)
	}
	d := found[0]
	if d.For != 2*time.Second || d.Break != (Lease{Resource: "x", Token: 1, Holder: "a"}) {
		t.Errorf("since %s, to break %+v", d.For, d.Break)
	}
	var circle []string
	for _, wait := range d.Waits {
		circle = append(circle, wait.Holder)
	}
	if !slices.Equal(circle, []string{"a", "b", "c"}) {
		t.Errorf("waits %+v", d.Waits)
	}
}

// TestDeadlocksAgainstBruteForce compares with the definition. A set of holders is stuck if each of them wants
// something that only other holders of the set have. The deadlocks are the circles in the largest such set.
func TestDeadlocksAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		locks := randomLocks(t)
		got := newGraph(locks).deadlocks()
		if want := bruteForce(locks); !slices.Equal(membersOf(got), want) {
			t.Fatalf("%v, want %v of %+v", membersOf(got), want, locks)
		}
		for _, d := range got {
			checkDeadlock(t, d)
		}
	})
}

// labels are the holders' labels in the random locks; "" is a missing label.
var labels = []string{"", "a", "b", "c", "d", "e", "f"}

func randomLocks(t *rapid.T) map[string]lockcore.LockState {
	label := rapid.SampledFrom(labels[:rapid.IntRange(3, len(labels)).Draw(t, "labels")]) // few make many circles
	locks := make(map[string]lockcore.LockState)
	for _, resource := range []string{"r1", "r2", "r3", "r4", "r5", "s#slot1", "s#slot2", "s#slot3"} {
		lock := held(resource, label.Draw(t, resource), rapid.SliceOfN(label, 0, 3).Draw(t, "waiters of "+resource)...)
		lock.Held = rapid.IntRange(0, 9).Draw(t, "held") > 0
		locks[resource] = lock
	}
	return locks
}

// wanted returns for each label the sets of holders that have what it wants. One holder of a set is enough.
func wanted(locks map[string]lockcore.LockState) map[string]map[string][]string {
	wants := make(map[string]map[string][]string)
	for resource, lock := range locks {
		for _, waiter := range lock.Waiters {
			if waiter.Holder == "" || !lock.Held {
				continue
			}
			if wants[waiter.Holder] == nil {
				wants[waiter.Holder] = make(map[string][]string)
			}
			what := resource[:min(2, len(resource))] // all slots begin with s#
			wants[waiter.Holder][what] = append(wants[waiter.Holder][what], lock.Holder)
		}
	}
	return wants
}

func bruteForce(locks map[string]lockcore.LockState) (sets []string) {
	wants := wanted(locks)
	inSet := func(set int, label string) bool { return label != "" && set&(1<<slices.Index(labels, label)) != 0 }
	blockedIn := func(set int, label string) (by []string) { // who blocks the label in the set
		for _, holders := range wants[label] {
			if !slices.ContainsFunc(holders, func(h string) bool { return h == label || !inSet(set, h) }) {
				by = append(by, holders...)
			}
		}
		return by
	}
	largest := 0
	for set := range 1 << len(labels) {
		if set&1 == 0 && !slices.ContainsFunc(labels, func(l string) bool { return inSet(set, l) && len(blockedIn(set, l)) == 0 }) {
			largest |= set
		}
	}
	var reach [7][7]bool
	for i, label := range labels {
		if inSet(largest, label) {
			for _, by := range blockedIn(largest, label) {
				reach[i][slices.Index(labels, by)] = true
			}
		}
	}
	for k := range labels {
		for i := range labels {
			for j := range labels {
				reach[i][j] = reach[i][j] || reach[i][k] && reach[k][j]
			}
		}
	}
	for i, label := range labels {
		circle := []string{label}
		for j, other := range labels {
			if i != j && reach[i][j] && reach[j][i] {
				circle = append(circle, other)
			}
		}
		slices.Sort(circle)
		if set := fmt.Sprint(circle); len(circle) > 1 && !slices.Contains(sets, set) {
			sets = append(sets, set)
		}
	}
	slices.Sort(sets)
	return sets
}

// checkDeadlock checks the fields of a deadlock: all waits are between members, it is as old as the youngest of them,
// and the lease to break belongs to the holder with that wait and has a waiter.
func checkDeadlock(t *rapid.T, d Deadlock) {
	waits := func(holder string) bool {
		return slices.ContainsFunc(d.Waits, func(w Wait) bool { return w.Holder == holder })
	}
	waitedFor := false
	longest := time.Duration(0) // of the waits for the lease to break
	for _, wait := range d.Waits {
		if wait.Resource == d.Break.Resource {
			longest = max(longest, wait.For)
		}
	}
	for _, wait := range d.Waits {
		if wait.HeldBy == d.Break.Holder && wait.For > longest {
			t.Fatalf("%+v is older than those for %+v", wait, d.Break)
		}
		if !waits(wait.HeldBy) || wait.HeldBy == wait.Holder || wait.For < d.For {
			t.Fatalf("%+v in %+v", wait, d)
		}
		waitedFor = waitedFor || (Lease{Resource: wait.Resource, Token: wait.Token, Holder: wait.HeldBy} == d.Break)
	}
	if first := d.Waits[0]; first.For != d.For || d.Break.Holder != first.Holder || !waitedFor {
		t.Fatalf("%+v", d)
	}
}
