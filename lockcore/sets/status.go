package sets

import (
	"fmt"

	"github.com/fencelock/fencelock/lockcore"
)

// SetStatus is how far a node set is in a change to Config.Next.
type SetStatus struct {
	Nodes []string
	// Present and Next say in which of the two maps the set is.
	Present, Next bool
	// Map says by which map its nodes vote: "present", "moving", "next", "closed" (it was
	// bootstrapped during the change) or "unknown" (of another change).
	Map    string
	Status lockcore.ClusterStatus
}

// Generation is the largest generation of the maps of the sets, as last observed: what a
// change is planned from.
func (l *Locker) Generation() int64 {
	largest := l.router.generation.Load()
	for _, s := range l.router.sets {
		largest = max(largest, s.Members().Map().Generation)
	}
	return largest
}

// Sets are all sets of both maps, as their nodes were last observed.
func (l *Locker) Sets() []SetStatus {
	sets := make([]SetStatus, len(l.router.sets))
	for i, s := range l.router.sets {
		sets[i] = SetStatus{
			Present: l.router.present.has(s), Next: l.router.next.has(s), Status: s.Members().Status(),
			Map: [...]string{
				phaseUnknown: "unknown", phaseClosed: "closed", phasePresent: "present", phaseMoving: "moving", phaseNext: "next",
			}[l.router.phaseOf(s.Members().Map().Name)],
		}
		for _, n := range s.Nodes() {
			sets[i].Nodes = append(sets[i].Nodes, n.Name())
		}
	}
	return sets
}

// Move is a share of the resources that gets another set.
type Move struct {
	From, To int // of Sets
	Share    float64
}

// Moves are the shares of the resources that change their set, measured on many names.
func (l *Locker) Moves() (moves []Move) {
	if l.router.next.sets == nil {
		return nil
	}
	const names = 20_000
	shares := make(map[[2]*set]int)
	for i := range names {
		resource := fmt.Sprint("resource ", i)
		if from, to := l.router.present.winner(resource), l.router.next.winner(resource); from != to {
			shares[[2]*set{from, to}]++
		}
	}
	for i, from := range l.router.sets {
		for k, to := range l.router.sets {
			if n := shares[[2]*set{from, to}]; n > 0 {
				moves = append(moves, Move{From: i, To: k, Share: float64(n) / names})
			}
		}
	}
	return moves
}
