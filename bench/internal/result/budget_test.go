package result

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/bench/internal/load"
)

// A figure that is worse by more than Fall than in the committed run fell, also one of
// which less is better.
func TestFallenFigures(t *testing.T) {
	run := func(http, redsync int) *Set {
		s := &Set{Machine: Machine{CPU: "this one"}}
		rounds(s, Uncontended, "256", HTTP, http)
		rounds(s, Uncontended, "256", Baseline, redsync)
		rounds(s, Uncontended, "1", HTTP, http)
		rounds(s, Uncontended, "1", Baseline, redsync)
		return s
	}
	const rate, latency = "fencelock-http ÷ redsync, pairs/s at 256", "fencelock-http ÷ redsync, p50 of a pair at 1"
	before := run(3000, 1000).Figures()
	for _, c := range []struct {
		http int
		fell bool
	}{{3000, false}, {4000, false}, {2880, false}, {2820, true}} {
		now := run(c.http, 1000)
		if why := now.Compare(before); why != "" {
			t.Fatal(why)
		}
		for _, text := range []string{rate, latency} {
			if got := find(t, now.Checks(), text); got.Fell != c.fell {
				t.Errorf("%s: from %.3f to %.3f: fell %t, want %t", text, got.Was, got.Got, got.Fell, c.fell)
			}
		}
	}
	if got := find(t, run(1, 1000).Checks(), rate); got.Fell {
		t.Error("a figure of a run that is not compared fell")
	}
}

func TestRunsThatCannotBeCompared(t *testing.T) {
	costs := func(micros int) *Set { // of a pair of bare HTTP
		s := &Set{Machine: Machine{CPU: "this one"}}
		s.Add(Key{Uncontended, "64", BareHTTP}, 0, load.Outcome{Pairs: 1, CPU: load.Usage{
			Load: time.Duration(micros-40) * time.Microsecond, Service: 40 * time.Microsecond,
		}})
		return s
	}
	before := Figures{CPU: "this one", Floor: costs(100).Figures().Floor, Is: map[string]float64{"x": 1}}
	for micros, compared := range map[int]bool{70: false, 81: true, 100: true, 124: true, 170: false} {
		if why := costs(micros).Compare(before); (why == "") != compared || !compared && !strings.Contains(why, "another speed") {
			t.Errorf("%d µs, and 100 before: %q", micros, why)
		}
	}
	for want, s := range map[string]*Set{
		"quick":           {Quick: true, Machine: Machine{CPU: "this one"}},
		"noisy":           {Machine: Machine{CPU: "this one", Foreign: 2 * Noisy}},
		"another machine": {Machine: Machine{CPU: "that one"}},
	} {
		if why := s.Compare(before); !strings.Contains(why, want) {
			t.Errorf("%q does not say %q", why, want)
		}
	}
	none, err := ReadFigures(filepath.Join(t.TempDir(), "none"))
	if why := (&Set{}).Compare(none); err != nil || !strings.Contains(why, "no committed run") {
		t.Errorf("%v, %q", err, why)
	}
}
