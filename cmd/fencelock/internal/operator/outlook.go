package operator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencelock/fencelock/lockcore/sets"
)

// outlook is what "sets status" observes. Its methods derive the present state and what to do next.
type outlook struct {
	sets       []sets.SetStatus
	changing   bool // the next sets are configured
	generation int64
	goingBack  bool // the change back has begun and is not complete
}

// sentences returns the present state, and what comes next: a command, or what must be done before any
// command. unaware counts the running servers that do not know the change; it is called only if the
// result depends on it.
func (o outlook) sentences(unaware func() (int, error)) (now, next string) {
	if waits := o.waits(); waits != nil {
		now, _ = o.change(nil)
		return now, "wait: " + strings.Join(waits, "; ")
	}
	return o.change(unaware)
}

// change returns the progress of the change, and the next command.
func (o outlook) change(unaware func() (int, error)) (now, next string) {
	apply, revert := o.command("apply"), o.command("revert")
	switch foreign, next := o.with("unknown"), o.with("next"); {
	case o.goingBack:
		return "the change is being taken back, and that has stopped before its end: nothing is granted", revert + " completes that"
	case foreign != nil:
		return "the nodes of " + numbers(foreign) + " refuse servers with these lists", "" // waits describes what to do
	case !o.changing && o.with("new") != nil:
		return "the sets of FENCELOCK_REDIS_ADDRS are being opened for the first time", ""
	case !o.changing:
		return "the sets of FENCELOCK_REDIS_ADDRS are in force" + o.unready(), "nothing: no change is configured (FENCELOCK_REDIS_NEXT_ADDRS)"
	case len(next) == len(o.sets):
		return "the change is complete: the sets of FENCELOCK_REDIS_NEXT_ADDRS are in force",
			"restart the servers with the next sets in FENCELOCK_REDIS_ADDRS, and without FENCELOCK_REDIS_NEXT_ADDRS; or go back with " + revert
	case next != nil:
		return "the change is decided, and has stopped before its end: resources that move to a set without the next map are granted by no server",
			apply + " completes it, " + revert + " completes it and goes back"
	case o.lost():
		return "the change has begun, and is not decided: resources that move, and those of a set that lost its data, are granted by no server",
			apply + " continues it, " + revert + " takes it back"
	case o.with("moving") != nil:
		return "the change has begun, and is not decided: resources that move are granted by no server, all others are",
			apply + " continues it, " + revert + " takes it back"
	}
	now = "the change has not begun: the sets of FENCELOCK_REDIS_ADDRS are in force" + o.unready()
	if unaware == nil {
		return now, apply
	}
	switch n, err := unaware(); {
	case err != nil:
		return now, "look again: " + err.Error()
	case n > 0:
		return now, fmt.Sprintf("restart the servers with both maps (%d run without), then: %s", n, apply)
	}
	return now + ", and every running server has both maps", apply
}

// with returns the numbers of the sets that have this map; nil if there are none.
func (o outlook) with(mapped string) (found []int) {
	for i, s := range o.sets {
		if s.Map == mapped {
			found = append(found, i+1)
		}
	}
	return found
}

// lost reports whether a present set was bootstrapped during the change, because it has lost its data.
func (o outlook) lost() bool {
	return slices.ContainsFunc(o.sets, func(s sets.SetStatus) bool { return s.Present && s.Map == "closed" })
}

// unready returns which of the present sets grant nothing.
func (o outlook) unready() string {
	var down []int
	for i, s := range o.sets {
		if s.Present && !s.Status.Ready {
			down = append(down, i+1)
		}
	}
	if down == nil {
		return ""
	}
	return ", but " + numbers(down) + " can grant nothing"
}

// command returns a command for the terminal.
func (o outlook) command(name string) string {
	if o.generation == 0 {
		return "'fencelock sets " + name + "'"
	}
	return fmt.Sprintf("'fencelock sets %s --from %d'", name, o.generation)
}

// waits returns what must be done before any command; nil if nothing.
func (o outlook) waits() (waits []string) {
	for i, s := range o.sets {
		switch {
		case s.Map == "unknown" && !o.changing:
			waits = append(waits, fmt.Sprintf("set %d votes by the map of other node sets than those of FENCELOCK_REDIS_ADDRS: use the list of the servers that grant, or both lists of the change that is under way", i+1))
		case s.Map == "unknown" && o.goingBack: // revert describes what it needs
		case s.Map == "unknown":
			waits = append(waits, fmt.Sprintf("set %d has the map of another change: use that change's configuration", i+1))
		case s.Map == "new" && s.Status.Ready:
			waits = append(waits, fmt.Sprintf("set %d is new, and its servers open it once every set has shown the same list: start the nodes of the others", i+1))
		case !s.Status.Ready:
			waits = append(waits, fmt.Sprintf("set %d has no quorum: %s", i+1, s.Status.Reason))
		}
	}
	return waits
}

// numbers returns "set 1" or "sets 1, 2".
func numbers(of []int) string {
	var all []string
	for _, n := range of {
		all = append(all, fmt.Sprint(n))
	}
	if len(all) == 1 {
		return "set " + all[0]
	}
	return "sets " + strings.Join(all, ", ")
}
