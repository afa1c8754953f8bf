package sets

import (
	"context"
	"fmt"

	"github.com/fencelock/fencelock/lockcore"
)

// SetStatus is the progress of a node set in a change to Config.Next.
type SetStatus struct {
	Nodes []string
	// Present and Next report in which of the two maps the set is.
	Present, Next bool
	// Map says under which map its nodes vote: "present", "new" (it was bootstrapped, and not every set has
	// shown the list), "moving", "next", "closed" (it was bootstrapped during the change) or "unknown" (of
	// another change, or of another list).
	Map    string
	Status lockcore.ClusterStatus
}

// Generation is the largest generation of the sets' maps, as last observed. A change is planned from it.
func (l *Locker) Generation() int64 {
	largest := l.router.generation.Load()
	for _, s := range l.router.sets {
		largest = max(largest, s.Members().Map().Generation)
	}
	return largest
}

// Sets returns all sets of both maps, as their nodes were last observed.
func (l *Locker) Sets() []SetStatus {
	sets := make([]SetStatus, len(l.router.sets))
	for i, s := range l.router.sets {
		sets[i] = SetStatus{
			Present: l.router.present.has(s), Next: l.router.next.has(s), Status: s.Members().Status(),
			Map: [...]string{
				phaseUnknown: "unknown", phaseNew: "new", phaseClosed: "closed", phasePresent: "present", phaseMoving: "moving", phaseNext: "next",
			}[l.router.phaseOf(s.Members().Map().Name)],
		}
		for _, n := range s.Nodes() {
			sets[i].Nodes = append(sets[i].Nodes, n.Name())
		}
	}
	return sets
}

// Moving counts the locks that a change to Config.Next would carry now, as one node of each
// present set shows them. It changes nothing.
func (l *Locker) Moving(ctx context.Context) (locks int, err error) {
	if l.router.next.sets == nil {
		return 0, ErrNoNext
	}
	for _, s := range l.router.present.sets {
		listed, err := s.Members().ListLocks(ctx)
		if err != nil {
			return 0, s.Failed(err)
		}
		for _, lock := range listed {
			if l.router.present.winner(lock.Resource) == s && l.router.next.winner(lock.Resource) != s {
				locks++
			}
		}
	}
	return locks, nil
}

// Move is a share of the resources that moves to another set.
type Move struct {
	From, To int // indexes into Sets
	Share    float64
}

// Moves returns the shares of the resources that move, estimated from many names.
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
