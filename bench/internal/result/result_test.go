package result

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock/bench/internal/load"
	"github.com/fencelock/fencelock/bench/internal/stats"
)

func rounds(s *Set, scenario, variant, peer string, pairs ...int) {
	for i, n := range pairs {
		s.Add(Key{scenario, variant, peer}, i, load.Outcome{
			Seconds: 1, Pairs: n,
			Pair: stats.Latency{Count: n, P50: time.Second / time.Duration(n), P99: 2 * time.Second / time.Duration(n)},
		})
	}
}

// Ratios are taken within a round, so a machine that slows down as a whole
// changes nothing.
func TestRatioWithinTheRound(t *testing.T) {
	s := &Set{}
	rounds(s, Uncontended, "256", HTTP, 3000, 300, 30)
	rounds(s, Uncontended, "256", Baseline, 1000, 100, 10)
	got := s.Ratio(Key{Uncontended, "256", HTTP}, Key{Uncontended, "256", Baseline}, Rate)
	if got.Median != 3 || got.Spread() != 0 || got.Rounds != 3 {
		t.Errorf("got %+v", got)
	}
}

func TestRatioOverCommonRounds(t *testing.T) {
	s := &Set{}
	rounds(s, "a", "b", "x", 4, 6)
	s.Add(Key{"a", "b", "y"}, 1, load.Outcome{Seconds: 1, Pairs: 3})
	if got := s.Ratio(Key{"a", "b", "x"}, Key{"a", "b", "y"}, Rate); got.Median != 2 || got.Rounds != 1 {
		t.Errorf("got %+v", got)
	}
	if got := s.Ratio(Key{"a", "b", "x"}, Key{"a", "b", "none"}, Rate); !math.IsNaN(got.Median) {
		t.Errorf("got %+v", got)
	}
}

func TestOrderOfAppearance(t *testing.T) {
	s := &Set{}
	rounds(s, "a", "64", "y", 1)
	rounds(s, "a", "16", "x", 1)
	rounds(s, "a", "64", "x", 1)
	rounds(s, "b", "1", "z", 1)
	if got := s.Variants("a"); !slices.Equal(got, []string{"64", "16"}) {
		t.Errorf("got %v", got)
	}
	if got := s.Peers("a", "64"); !slices.Equal(got, []string{"y", "x"}) {
		t.Errorf("got %v", got)
	}
}

func find(t *testing.T, checks []Check, text string) Check {
	t.Helper()
	for _, c := range checks {
		if c.Text == text {
			return c
		}
	}
	t.Fatalf("no check %q", text)
	return Check{}
}

func TestChecks(t *testing.T) {
	s := &Set{}
	for _, c := range s.Checks() {
		if c.Verdict != Unknown {
			t.Errorf("nothing was measured, and yet: %+v", c)
		}
	}
	rounds(s, Clients, "256", GoClient, 41, 42, 43)
	rounds(s, Clients, "256", GoClientSingle, 20, 20, 20)
	rounds(s, Clients, "256", Baseline, 10, 10, 10)
	rounds(s, Uncontended, "256", HTTP, 31, 32, 33)
	rounds(s, Uncontended, "256", InProcess, 50, 50, 50)
	rounds(s, Uncontended, "256", Baseline, 10, 10, 10)
	rounds(s, Network, "0.5 ms", HTTP, 10)
	rounds(s, Network, "0.5 ms", Baseline, 10)
	rounds(s, Uncontended, "16", HTTP, 9)
	rounds(s, Uncontended, "16", Baseline, 10)
	checks := s.Checks()
	for text, want := range map[string]Verdict{
		"go-client ÷ redsync, pairs/s at 256":                                      Pass,
		"go-client ÷ go-client-no-batches, pairs/s at 256":                         Watched,
		"go-client ÷ redsync, pairs/s at 64":                                       Unknown,
		"fencelock-http ÷ redsync, pairs/s at 256":                                 Pass,
		"fencelock-inprocess ÷ redsync, pairs/s at 256":                            Watched,
		"fencelock-http ÷ redsync, pairs/s at 64":                                  Unknown,
		"fencelock-http ÷ redsync, pairs/s at 16":                                  Miss,
		"fencelock-http ÷ redsync, p50 of a pair at 1 with a round trip of 0.5 ms": Pass,
	} {
		if got := find(t, checks, text); got.Verdict != want {
			t.Errorf("%s: %+v, want %s", text, got, want)
		}
	}
}

// Under starvation the bars are redsync's best at any number of workers, in the same round, and the share
// that fails.
func TestStarvedChecks(t *testing.T) {
	s := &Set{}
	rounds(s, Starved, "16", Baseline, 100, 200)
	rounds(s, Starved, "256", Baseline, 50, 400)
	rounds(s, Starved, "64", HTTP, 90, 360)
	rounds(s, Starved, "256", HTTP, 89, 355)
	const ratio, failing = "starved: fencelock-http ÷ redsync's best, pairs/s at ", "starved: share that fails at "
	for text, want := range map[string]Verdict{ratio + "64": Pass, ratio + "256": Miss, failing + "64": Pass} {
		if got := find(t, s.Checks(), text); got.Verdict != want {
			t.Errorf("%s: %+v, want %s", text, got, want)
		}
	}
	s.Add(Key{Starved, "64", HTTP}, 2, load.Outcome{Seconds: 1, Failed: 1})
	if got := find(t, s.Checks(), failing+"64"); got.Verdict != Miss || got.Got != 1.0/451 {
		t.Errorf("got %+v", got)
	}
}

func TestLoadShare(t *testing.T) {
	o := load.Outcome{Pairs: 10, CPU: load.Usage{Load: time.Second, Service: 2 * time.Second, Store: time.Second}}
	if LoadShare(o) != 0.25 || ServiceCPU(o) != 200_000 {
		t.Errorf("got %v, %v", LoadShare(o), ServiceCPU(o))
	}
}
