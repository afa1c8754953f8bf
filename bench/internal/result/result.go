// Package result stores what the rounds measured, and computes the figures of the tables, plots
// and checks.
package result

import (
	"math"
	"slices"
	"time"

	"github.com/fencelock/fencelock/bench/internal/load"
	"github.com/fencelock/fencelock/bench/internal/stats"
)

// Baseline is the contender with which the others are compared.
const Baseline = "redsync"

// Key names a measurement: "uncontended", "64", "redsync".
type Key struct{ Scenario, Variant, Peer string }

// Measurement is one round.
type Measurement struct {
	Key
	Round   int
	Outcome load.Outcome
}

// Machine describes where and when a run was measured.
type Machine struct {
	CPU, Kernel, Memory string
	Processors          int
	Go                  string
	Commit              string
	Versions            []Version
	Begun               time.Time
	Took                time.Duration
	Load                string // the load average before the first round
	// Foreign is the share of processor time that other programs used while rounds were measured.
	Foreign float64
}

// Version is a program's or a library's.
type Version struct{ Name, Version string }

// Noisy is the foreign share above which the results should not be trusted.
const Noisy = 0.05

// Set is a whole run.
type Set struct {
	Quick        bool
	Machine      Machine
	Measurements []Measurement
	Values       map[string]float64 // values that are not measured in rounds: memory, …
	Notes        []string

	before Figures // set by Compare
}

// Add appends a round.
func (s *Set) Add(k Key, round int, o load.Outcome) {
	s.Measurements = append(s.Measurements, Measurement{Key: k, Round: round, Outcome: o})
}

// Set records a single value.
func (s *Set) Set(name string, v float64) {
	if s.Values == nil {
		s.Values = map[string]float64{}
	}
	s.Values[name] = v
}

// Value returns a single value, or NaN if there is none.
func (s *Set) Value(name string) float64 {
	v, ok := s.Values[name]
	if !ok {
		return math.NaN()
	}
	return v
}

// Rounds returns the rounds of a key by their number.
func (s *Set) Rounds(k Key) map[int]load.Outcome {
	rounds := map[int]load.Outcome{}
	for _, m := range s.Measurements {
		if m.Key == k {
			rounds[m.Round] = m.Outcome
		}
	}
	return rounds
}

// Variants lists a scenario's variants in the order in which they were added.
func (s *Set) Variants(scenario string) []string {
	return s.distinct(scenario, func(m Measurement) (string, bool) { return m.Variant, true })
}

// Peers lists the peers of a variant in the order in which they were added.
func (s *Set) Peers(scenario, variant string) []string {
	return s.distinct(scenario, func(m Measurement) (string, bool) { return m.Peer, m.Variant == variant })
}

func (s *Set) distinct(scenario string, of func(Measurement) (string, bool)) []string {
	var names []string
	for _, m := range s.Measurements {
		if m.Scenario != scenario {
			continue
		}
		if name, ok := of(m); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Metric returns one number of a round.
type Metric func(load.Outcome) float64

// Rate is pairs per second. This and the following metrics are used by tables and checks;
// durations are in microseconds.
func Rate(o load.Outcome) float64 { return o.Rate() }

// AcquireP50 is the median acquire.
func AcquireP50(o load.Outcome) float64 { return micros(o.Acquire.P50, o.Acquire.Count) }

// PairP50 is the median of acquire and release together.
func PairP50(o load.Outcome) float64 { return micros(o.Pair.P50, o.Pair.Count) }

// PairP99 is the 99th percentile of acquire and release together.
func PairP99(o load.Outcome) float64 { return micros(o.Pair.P99, o.Pair.Count) }

// HandoffP50 is the median hand-off.
func HandoffP50(o load.Outcome) float64 { return micros(o.Handoff.P50, o.Handoff.Count) }

// HandoffP99 is the 99th percentile of a hand-off.
func HandoffP99(o load.Outcome) float64 { return micros(o.Handoff.P99, o.Handoff.Count) }

// TurnoverP50 is the median time from the sending of a release to the next grant.
func TurnoverP50(o load.Outcome) float64 { return micros(o.Turnover.P50, o.Turnover.Count) }

// HeldP50 is the median of how long a holder kept the resource.
func HeldP50(o load.Outcome) float64 { return micros(o.Held.P50, o.Held.Count) }

// LoadCPU is the load generator's processor time per pair.
func LoadCPU(o load.Outcome) float64 { return o.PerPair(o.CPU.Load) }

// ServiceCPU is the lock service's processor time per pair.
func ServiceCPU(o load.Outcome) float64 { return o.PerPair(o.CPU.Service) }

// AllCPU is the processor time of load generator, service and store per pair.
func AllCPU(o load.Outcome) float64 { return o.PerPair(o.CPU.Load + o.CPU.Service + o.CPU.Store) }

// StoreCPU is the processor time of Redis or Postgres per pair.
func StoreCPU(o load.Outcome) float64 { return o.PerPair(o.CPU.Store) }

// LoadShare is the load generator's share of the processor time that the contender used.
func LoadShare(o load.Outcome) float64 {
	return float64(o.CPU.Load) / float64(o.CPU.Load+o.CPU.Service+o.CPU.Store)
}

// micros converts to microseconds; it returns NaN if nothing was measured.
func micros(d time.Duration, count int) float64 {
	if count == 0 {
		return math.NaN()
	}
	return float64(d.Nanoseconds()) / 1000
}

// Of summarizes a metric over the rounds of a key.
func (s *Set) Of(k Key, m Metric) stats.Summary {
	var values []float64
	for _, o := range s.Rounds(k) {
		values = append(values, m(o))
	}
	return stats.Summarize(values)
}

// Ratio summarizes a's metric divided by b's in the same round.
func (s *Set) Ratio(a, b Key, m Metric) stats.Summary {
	rounds, base := s.Rounds(a), s.Rounds(b)
	var over, under []float64
	for n, o := range rounds {
		if other, ok := base[n]; ok {
			over, under = append(over, m(o)), append(under, m(other))
		}
	}
	return stats.Summarize(stats.Ratios(over, under))
}

// RatioToBest summarizes a's metric divided by the best value that the peer has in any variant of
// the scenario, in the same round.
func (s *Set) RatioToBest(a Key, peer string, m Metric) stats.Summary {
	best := map[int]float64{}
	for _, each := range s.Measurements {
		if each.Scenario == a.Scenario && each.Peer == peer {
			best[each.Round] = max(best[each.Round], m(each.Outcome))
		}
	}
	var over, under []float64
	for n, o := range s.Rounds(a) {
		if other, ok := best[n]; ok {
			over, under = append(over, m(o)), append(under, other)
		}
	}
	return stats.Summarize(stats.Ratios(over, under))
}

// failedShare is the share of failed turns in a key's rounds, or NaN.
func (s *Set) failedShare(k Key) float64 {
	pairs, failed := 0, 0
	for _, o := range s.Rounds(k) {
		pairs, failed = pairs+o.Pairs, failed+o.Failed
	}
	return float64(failed) / float64(pairs+failed)
}

// Failures returns the number of failed turns in a key's rounds, and the first reason.
func (s *Set) Failures(k Key) (failed int, reason string) {
	for _, o := range s.Rounds(k) {
		failed += o.Failed
		if reason == "" {
			reason = o.Err
		}
	}
	return failed, reason
}
