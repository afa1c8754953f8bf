package operator

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// TestOutlook lists what "sets status" prints for every state of a change. A set is written as the name of its map,
// with a plus sign if it is added, and with an exclamation mark if it has no quorum.
func TestOutlook(t *testing.T) {
	for name, c := range map[string]struct {
		sets       string
		changing   bool
		generation int64
		unaware    int
		goingBack  bool
		failed     error
		now, next  string
	}{
		"no change":             {sets: "present, present", now: "the sets of FENCELOCK_REDIS_ADDRS are in force", next: "nothing: no change is configured (FENCELOCK_REDIS_NEXT_ADDRS)"},
		"no change, a set down": {sets: "present, present!", now: "the sets of FENCELOCK_REDIS_ADDRS are in force, but set 2 can grant nothing", next: "wait: set 2 has no quorum: down"},
		"first start":           {sets: "new, new", now: "the sets of FENCELOCK_REDIS_ADDRS are being opened for the first time", next: "wait: set 1 is new, and its servers open it once every set has shown the same list: start the nodes of the others; set 2 is new"},
		"another list":          {sets: "unknown, present", now: "the nodes of set 1 refuse servers with these lists", next: "wait: set 1 votes by the map of other node sets than those of FENCELOCK_REDIS_ADDRS: use the list of the servers that grant, or both lists of the change that is under way"},
		"another change":        {sets: "unknown, unknown", changing: true, now: "the nodes of sets 1, 2 refuse servers with these lists", next: "wait: set 1 has the map of another change: use that change's configuration; set 2"},
		"being taken back":      {sets: "unknown, present", changing: true, generation: 2, goingBack: true, now: "the change is being taken back, and that has stopped before its end: nothing is granted", next: "'fencelock sets revert --from 2' completes that"},
		"servers lack a list":   {sets: "present, +closed", changing: true, unaware: 2, now: "the change has not begun: the sets of FENCELOCK_REDIS_ADDRS are in force", next: "restart the servers with both maps (2 run without), then: 'fencelock sets apply'"},
		"servers not counted":   {sets: "present, +closed", changing: true, failed: errors.New("too few nodes"), now: "the change has not begun: the sets of FENCELOCK_REDIS_ADDRS are in force", next: "look again: too few nodes"},
		"new set not ready":     {sets: "present, +closed!", changing: true, unaware: 2, now: "the change has not begun: the sets of FENCELOCK_REDIS_ADDRS are in force", next: "wait: set 2 has no quorum: down"},
		"ready to begin":        {sets: "present, +closed", changing: true, generation: 4, now: "the change has not begun: the sets of FENCELOCK_REDIS_ADDRS are in force, and every running server has both maps", next: "'fencelock sets apply --from 4'"},
		"begun":                 {sets: "moving, +closed", changing: true, generation: 1, unaware: 1, now: "the change has begun, and is not decided: resources that move are granted by no server, all others are", next: "'fencelock sets apply --from 1' continues it, 'fencelock sets revert --from 1' takes it back"},
		"begun, a set down":     {sets: "moving, +moving!", changing: true, now: "the change has begun, and is not decided: resources that move are granted by no server, all others are", next: "wait: set 2 has no quorum: down"},
		"begun, data lost":      {sets: "closed, +moving", changing: true, generation: 1, now: "the change has begun, and is not decided: resources that move, and those of a set that lost its data, are granted by no server", next: "'fencelock sets apply --from 1' continues it, 'fencelock sets revert --from 1' takes it back"},
		"decided":               {sets: "next, +moving", changing: true, generation: 1, now: "the change is decided, and has stopped before its end: resources that move to a set without the next map are granted by no server", next: "'fencelock sets apply --from 1' completes it, 'fencelock sets revert --from 1' completes it and goes back"},
		"complete":              {sets: "next, +next", changing: true, generation: 1, now: "the change is complete: the sets of FENCELOCK_REDIS_NEXT_ADDRS are in force", next: "restart the servers with the next sets in FENCELOCK_REDIS_ADDRS, and without FENCELOCK_REDIS_NEXT_ADDRS; or go back with 'fencelock sets revert --from 1'"},
	} {
		t.Run(name, func(t *testing.T) {
			o := outlook{changing: c.changing, generation: c.generation, goingBack: c.goingBack}
			for word := range strings.SplitSeq(c.sets, ", ") {
				mapped, down := strings.CutSuffix(word, "!")
				mapped, added := strings.CutPrefix(mapped, "+")
				status := lockcore.ClusterStatus{Ready: !down}
				if down {
					status.Reason = "down"
				}
				o.sets = append(o.sets, sets.SetStatus{Present: !added, Next: c.changing, Map: mapped, Status: status})
			}
			now, next := o.sentences(func() (int, error) { return c.unaware, c.failed })
			if now != c.now || !strings.HasPrefix(next, c.next) {
				t.Errorf("now: %s\nnext: %s\nwant\nnow: %s\nnext: %s", now, next, c.now, c.next)
			}
		})
	}
}
