package redlock

import (
	"fmt"
	"testing"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// All slots of a resource are on its own node set.
func TestSlotsShareANodeSet(t *testing.T) {
	var sets [][]node.Node
	for i := range 3 {
		sets = append(sets, []node.Node{newFake(fmt.Sprintf("node%d", i+1))})
	}
	l, err := New(Config{}, sets...)
	if err != nil {
		t.Fatal(err)
	}
	used := map[*set]bool{}
	for i := range 20 {
		resource := fmt.Sprintf("jobs/%d", i)
		used[l.atlas.of(resource)] = true
		for _, name := range lockcore.SlotNames(resource, lockcore.MaxSlots) {
			if l.atlas.of(name) != l.atlas.of(resource) {
				t.Errorf("%s is on another set than %s", name, resource)
			}
		}
	}
	if len(used) != len(sets) {
		t.Errorf("%d sets are used", len(used))
	}
}
