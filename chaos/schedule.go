package chaos

import "math/rand/v2"

// schedule chooses faults from a seed. Each pass has every fault once, in a different order, and combines half
// of them with another fault.
type schedule struct {
	random *rand.Rand
	faults []Fault
	left   []Fault
}

func newSchedule(seed uint64, faults []Fault) *schedule {
	return &schedule{random: rand.New(rand.NewPCG(seed, 0)), faults: faults} //nolint:gosec // repeats on purpose
}

func (s *schedule) next() []Fault {
	if len(s.left) == 0 {
		for _, i := range s.random.Perm(len(s.faults)) {
			s.left = append(s.left, s.faults[i])
		}
	}
	first := s.left[0]
	s.left = s.left[1:]
	if s.random.IntN(2) == 0 {
		return []Fault{first}
	}
	for range 20 {
		second := s.faults[s.random.IntN(len(s.faults))]
		if together(first, second) {
			return []Fault{first, second}
		}
	}
	return []Fault{first}
}

// together reports whether two faults may be combined. They must not affect more than a minority of the nodes,
// or the same part. A server that starts without its engine exits with an error, so no server is started then.
func together(a, b Fault) bool {
	minority := nodes - (nodes/2 + 1)
	return a.Name != b.Name && !a.alone() && !b.alone() && a.part != b.part &&
		a.Nodes+b.Nodes <= minority && (a.On == nil || b.On == nil) &&
		(!a.cutsServer || b.part != partServers) && (!b.cutsServer || a.part != partServers)
}

// alone reports that the fault needs a majority of nodes, or all proxies.
func (f Fault) alone() bool { return f.Major || f.Nodes > nodes/2 || f.part == partAll }
