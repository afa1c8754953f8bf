package sim

import (
	"slices"
	"testing"
	"time"
)

// Shrink reduces a failing plan as long as it still breaks the same promise: fewer faults, clients and
// resources, a shorter run and a better network.
func Shrink(t *testing.T, plan Plan, rule string, until time.Time) Plan {
	t.Helper()
	s := shrinker{t: t, best: plan, rule: rule, until: until}
	for helped := true; helped; {
		helped = s.round()
	}
	return s.best
}

type shrinker struct {
	t     *testing.T
	best  Plan
	rule  string
	until time.Time
}

// try keeps a plan if it fails in the same way.
func (s *shrinker) try(plan Plan) bool {
	if time.Now().After(s.until) {
		return false
	}
	r := Run(s.t, plan)
	if r.Violation == nil || r.Violation.Rule != s.rule {
		return false
	}
	if at := r.Violation.At + time.Millisecond; at < plan.Length {
		plan.Length = at
	}
	s.best = plan
	return true
}

// round tries every reduction once, and reports whether any helped.
func (s *shrinker) round() (helped bool) {
	for size := len(s.best.Faults); size > 0; size /= 2 {
		helped = s.dropFaults(size) || helped
	}
	for _, change := range []func(*Plan) bool{
		func(p *Plan) bool { return turnOff(&p.Loss) },
		func(p *Plan) bool { return turnOff(&p.Double) },
		func(p *Plan) bool { return turnOff(&p.Late) },
		func(p *Plan) bool { p.Clients--; return p.Clients > 0 },
		func(p *Plan) bool { p.Resources--; return p.Resources > 0 },
		func(p *Plan) bool { p.MaxOps /= 2; return p.MaxOps > 0 },
		func(p *Plan) bool { was := p.Queues; p.Queues = false; return was },
		func(p *Plan) bool { was := len(p.Tardy) > 0; p.Tardy = nil; return was },
		func(p *Plan) bool { was := p.Options != Options{}; p.Options = Options{}; return was },
		func(p *Plan) bool { was := p.Clocks; p.Clocks = false; return was },
		func(p *Plan) bool { return turnOff(&p.Several) },
		func(p *Plan) bool { return turnOff(&p.Breaks) },
		func(p *Plan) bool { was := p.Slots > 0; p.Slots = 0; return was },
		dropServer,
	} {
		smaller := s.best
		if change(&smaller) {
			helped = s.try(smaller) || helped
		}
	}
	return helped && time.Now().Before(s.until)
}

func turnOff(p *float64) bool {
	was := *p
	*p = 0
	return was > 0
}

// dropServer removes the last server, if no fault concerns it.
func dropServer(p *Plan) bool {
	p.Servers--
	return p.Servers > 0 && !slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.Server >= p.Servers })
}

// dropFaults removes size faults at a time.
func (s *shrinker) dropFaults(size int) (helped bool) {
	for from := 0; from < len(s.best.Faults); {
		smaller := s.best
		to := min(from+size, len(smaller.Faults))
		smaller.Faults = slices.Concat(smaller.Faults[:from], smaller.Faults[to:])
		if s.try(smaller) {
			helped = true
		} else {
			from = to
		}
	}
	return helped
}
