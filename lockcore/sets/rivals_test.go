package sets_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// crashAfter lets the server's operator install n maps on nodes, and nothing after that.
func (s *lone) crashAfter(installs int32) {
	var installed atomic.Int32
	s.stopCalls(func(call string) error {
		if installed.Load() == installs || call == "install-map" && installed.Add(1) > installs {
			return node.ErrNodeDown
		}
		return nil
	})
}

// pauseBefore holds this call of the server's operator back until wake is closed.
func (s *lone) pauseBefore(paused string, wake <-chan struct{}) {
	s.stopCalls(func(call string) error {
		if call == paused {
			<-wake
		}
		return nil
	})
}

func (s *lone) stopCalls(before func(call string) error) {
	for _, wires := range s.wires {
		for _, w := range wires {
			w.set(func() { w.before = before })
		}
	}
}

// Two changes to different sets are planned from the same generation. One operator pauses after a look, and continues
// when the other one has crashed at its first set. Only one change may begin: otherwise one set would have the moving
// map of one change and another set that of the other, and neither could be completed or taken back.
func TestTwoChangesFromOneGeneration(t *testing.T) {
	t.Parallel()
	for _, letters := range []string{"abc", "acb", "bac", "bca", "cab", "cba"} { // the sets have an order by their nodes' names
		present, one, other := letters[:1], letters[:1]+letters[1:2], letters[:1]+letters[2:]
		t.Run(fmt.Sprintf("%s to %s and to %s", present, one, other), func(t *testing.T) {
			withSets(t, 3, present, func(a *atlas) {
				t := a.T
				stale, crashed, third := a.serve(present, one), a.serve(present, other), a.serve(present, other)
				wake, applied := make(chan struct{}), make(chan error)
				stale.pauseBefore("install-epoch", wake)
				go func() { applied <- stale.apply(t) }()
				time.Sleep(time.Second)
				crashed.crashAfter(3)
				if err := crashed.apply(t); err == nil {
					t.Fatal("the operator has not crashed")
				}
				close(wake)
				if err := <-applied; err == nil {
					t.Error("the operator that paused has made its change")
				}
				a.must(third.apply(t))
				a.must(third.Release(t.Context(), a.take(third, "r").ID))
			})
		})
	}
}

// A change is decided, and its operator crashes before all sets have the next map. No other change may begin on the
// sets that have it, because the first one could not be completed any more.
func TestNoChangeBeginsBesideAnother(t *testing.T) {
	t.Parallel()
	for _, letters := range []string{"ab", "ba"} {
		present, next := letters[:1], letters
		for name, installs := range map[string]int32{"begun": 3, "decided": 9} {
			t.Run(present+" to "+next+", "+name, func(t *testing.T) {
				withSets(t, 3, present, func(a *atlas) {
					t := a.T
					crashed, again := a.serve(present, next), a.serve(present, next)
					crashed.crashAfter(installs)
					if err := crashed.apply(t); err == nil {
						t.Fatal("the operator has not crashed")
					}
					for _, other := range []*lone{a.serve(present, "c"), a.serve(next, "c"), a.serve(next, letters[1:])} {
						for what, err := range map[string]error{"apply": other.apply(t), "revert": other.revert(t)} {
							if err == nil {
								t.Errorf("%s of another change succeeded", what)
							}
						}
					}
					a.must(again.apply(t))
					a.must(again.Release(t.Context(), a.take(again, "r").ID))
				})
			})
		}
	}
}

// An operator crashes after each number of maps that a change installs. The same command with the generation that was
// planned from continues the change, and the opposite command takes it back.
func TestAChangeGoesOnFromWhereItStopped(t *testing.T) {
	t.Parallel()
	const installs = 2*2*3 - 1 // the moving map and the next one, on two sets of three; the last node is not needed
	for done := range int32(installs) {
		t.Run(fmt.Sprint(done, " installs"), func(t *testing.T) {
			withSets(t, 2, "a", func(a *atlas) {
				t := a.T
				crashed, again := a.serve("a", "ab"), a.serve("a", "ab")
				held := make(map[string]lockcore.Lease)
				for _, resource := range names() {
					held[resource] = a.take(again, resource)
				}
				crashed.crashAfter(done)
				if err := crashed.ApplyNext(t.Context(), 0); err == nil {
					t.Fatal("the operator has not crashed")
				}
				again.Observe(t.Context())
				if again.Begun() != (done > 0) {
					t.Errorf("begun: %t", again.Begun())
				}
				if done%2 == 0 { // taken back first, which is refused when it is decided
					if err := again.RevertNext(t.Context(), 0); err != nil && !errors.Is(err, sets.ErrDecided) {
						t.Error(err)
					}
					again.Observe(t.Context())
				}
				if again.Begun() {
					a.must(again.ApplyNext(t.Context(), 0))
				}
				time.Sleep(5 * time.Second) // until nodes that missed a map have it
				for resource, lease := range held {
					a.wantHeld(again, resource, lease.Token)
					if _, err := again.Extend(t.Context(), lease.ID, time.Minute); err != nil {
						t.Errorf("%s: %v", resource, err)
					}
				}
			})
		})
	}
}
