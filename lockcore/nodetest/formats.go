package nodetest

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// State is the content of a node when another version of the program takes it over. A node's test compares the
// result of Write in its storage with a stored fixture. It also loads the fixture into a node and checks the
// node with Read.
type State struct {
	Name string
	// Write brings a node from the previous state to this one; the first state starts from an empty node.
	Write func(t *testing.T, n node.Node)
	// Read uses a node as every version must be able to.
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

// LeftOf returns the rest of a row's time to live in the form of a fixture: rounded up, since time passes in a
// test with a real clock; 0 means that the row never ends.
func LeftOf(left time.Duration) time.Duration { return (left + rounding - 1).Truncate(rounding) }
