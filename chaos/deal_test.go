package chaos

import (
	"math/rand/v2"
	"testing"
)

// Any two faults that together need no more nodes than there are get their nodes, in either order. Once a fault that
// needs a certain node found that node given to another fault.
func TestNodesAreDealt(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	faults := Faults()
	for range 20 {
		for _, a := range faults {
			for _, b := range faults {
				if a.Nodes+b.Nodes > 3 || a.On != nil && b.On != nil && a.Name == b.Name {
					continue
				}
				for i, dealt := range deal(random.Perm(nodes), []Fault{a, b}) {
					if want := []Fault{a, b}[i].Nodes; len(dealt) != want {
						t.Fatalf("%q beside %q: %d nodes for the %d. one, want %d", a.Name, b.Name, len(dealt), i+1, want)
					}
				}
			}
		}
	}
}
