package nodetest

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// State is what a node may hold when another version of the program takes it over.
// A node's test compares what Write leaves in its storage with a stored fixture, and has
// Read look at a node that was loaded with the fixture.
type State struct {
	Name string
	// Write brings a node from the state before to this one: the first from nothing.
	Write func(t *testing.T, n node.Node)
	// Read uses a node as every version has to be able to.
	Read func(t *testing.T, n node.Node)
}

// States are the states, which hold every kind of row: texts in rules/stored.
func States() (states []State) {
	for _, name := range []string{"quarantined", "admitted", "staged"} {
		states = append(states, State{name, storedText(name + ".write"), storedText(name + ".read")})
	}
	return states
}

func storedText(name string) func(t *testing.T, n node.Node) {
	return func(t *testing.T, n node.Node) {
		t.Helper()
		path := filepath.Join(rulesIn(t), "stored", name+".txt")
		playFile(t, path, func(testing.TB, Wanted) Harness { return Harness{Node: n} }, way{})
	}
}

// LeftOf is what is left of a row's time to live as a fixture has it: rounded up, since
// time passes in a test of a real clock; 0 is for good.
func LeftOf(left time.Duration) time.Duration { return (left + rounding - 1).Truncate(rounding) }
