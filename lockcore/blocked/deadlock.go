package blocked

import (
	"cmp"
	"maps"
	"slices"
)

// stuck returns, by holder, the waits of the holders that cannot continue unless somebody breaks a lease.
// Such a holder waits for a resource, or for every slot of one, that other stuck holders hold. A holder that
// waits for a member of a deadlock is also stuck.
//
// A label that waits for itself is not stuck: it is the label of several threads, one of which holds the lock.
func (g *graph) stuck() map[string][]Wait {
	stuck := make(map[string]bool, len(g.wants))
	behind := make(map[string][]string) // by holder, the holders that wait for it
	for holder, wants := range g.wants {
		stuck[holder] = true
		for _, wait := range slices.Concat(wants...) {
			behind[wait.HeldBy] = append(behind[wait.HeldBy], holder)
		}
	}
	hopeless := func(w want) bool {
		return !slices.ContainsFunc(w, func(wait Wait) bool { return wait.HeldBy == wait.Holder || !stuck[wait.HeldBy] })
	}
	for undecided := slices.Sorted(maps.Keys(stuck)); len(undecided) > 0; {
		holder := undecided[len(undecided)-1]
		undecided = undecided[:len(undecided)-1]
		if stuck[holder] && !slices.ContainsFunc(g.wants[holder], hopeless) {
			stuck[holder] = false
			undecided = append(undecided, behind[holder]...)
		}
	}
	waits := make(map[string][]Wait)
	for holder, is := range stuck {
		if is {
			for _, w := range g.wants[holder] {
				if hopeless(w) {
					waits[holder] = append(waits[holder], w...)
				}
			}
		}
	}
	return waits
}

// deadlocks returns the circles among the stuck holders, the oldest first.
func (g *graph) deadlocks() (found []Deadlock) {
	waits := g.stuck()
	for _, members := range circles(waits) {
		found = append(found, newDeadlock(members, waits))
	}
	slices.SortFunc(found, func(a, b Deadlock) int {
		return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Waits[0].Holder, b.Waits[0].Holder))
	})
	return found
}

// newDeadlock describes a circle: a strongly connected set of two or more holders.
func newDeadlock(members []string, all map[string][]Wait) Deadlock {
	waits := make(map[string][]Wait, len(members)) // between members, by holder, the youngest first
	for _, member := range members {
		for _, wait := range all[member] {
			if wait.HeldBy != member && slices.Contains(members, wait.HeldBy) {
				waits[member] = append(waits[member], wait)
			}
		}
		slices.SortFunc(waits[member], byAge)
	}
	every := slices.Concat(slices.Collect(maps.Values(waits))...)
	youngest := slices.MinFunc(every, byAge)
	behind := slices.DeleteFunc(every, func(wait Wait) bool { return wait.HeldBy != youngest.Holder })
	oldest := slices.MaxFunc(behind, byAge)
	return Deadlock{
		For:   youngest.For,
		Waits: along(waits, youngest.Holder),
		Break: Lease{Resource: oldest.Resource, Token: oldest.Token, Holder: oldest.HeldBy},
	}
}

// along returns the waits of the holder, then of those it waits for, and so on.
func along(waits map[string][]Wait, holder string) (found []Wait) {
	seen := make(map[string]bool)
	for next := []string{holder}; len(next) > 0; next = next[1:] {
		if seen[next[0]] {
			continue
		}
		seen[next[0]] = true
		for _, wait := range waits[next[0]] {
			found = append(found, wait)
			next = append(next, wait.HeldBy)
		}
	}
	return found
}

// byAge orders waits, the youngest first; those that began together by name.
func byAge(a, b Wait) int {
	return cmp.Or(cmp.Compare(a.For, b.For), cmp.Compare(a.Holder, b.Holder), cmp.Compare(a.Resource, b.Resource))
}

// circles returns the strongly connected sets of two or more holders (Tarjan's algorithm).
func circles(waits map[string][]Wait) (found [][]string) {
	number, lowest := make(map[string]int), make(map[string]int)
	var path []string
	onPath := make(map[string]bool)
	var visit func(holder string)
	visit = func(holder string) {
		number[holder] = len(number) + 1
		lowest[holder] = number[holder]
		path, onPath[holder] = append(path, holder), true
		for _, wait := range waits[holder] {
			to := wait.HeldBy
			if number[to] == 0 {
				visit(to)
				lowest[holder] = min(lowest[holder], lowest[to])
			} else if onPath[to] {
				lowest[holder] = min(lowest[holder], number[to])
			}
		}
		if lowest[holder] != number[holder] {
			return
		}
		from := slices.Index(path, holder)
		set := slices.Sorted(slices.Values(path[from:]))
		path = path[:from]
		for _, member := range set {
			onPath[member] = false
		}
		if len(set) > 1 {
			found = append(found, set)
		}
	}
	for _, holder := range slices.Sorted(maps.Keys(waits)) {
		if number[holder] == 0 {
			visit(holder)
		}
	}
	return found
}
