package sets

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
)

// several returns nodes that are never asked.
func several(n int) []node.Node {
	nodes := make([]node.Node, n)
	for i := range nodes {
		nodes[i] = nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("node%d", i+1)})
	}
	return nodes
}

func TestNewRefusesNodeSets(t *testing.T) {
	for _, n := range []int{0, 2, 4, 6, 8, 9} {
		if _, err := New(Config{}, several(n)); err == nil {
			t.Errorf("%d nodes are taken", n)
		}
	}
	twice := several(3)
	twice[2] = twice[0]
	if _, err := New(Config{}, twice); err == nil || !strings.Contains(err.Error(), "node1") {
		t.Errorf("a node listed twice: %v", err)
	}
	if _, err := New(Config{MaxTTL: 1}, several(3)); err == nil {
		t.Error("a configuration that is not valid is taken")
	}
}

func TestListPlace(t *testing.T) {
	ring := testRing(t)
	sets := ofSizes(t, 3, 5)
	for _, p := range []listPlace{{}, {reader: 1}, {set: 1, reader: 2, node: "17 x"}} {
		if got, err := openListPlace(ring, "use", ring.SealCursor("use", p.String()), sets); err != nil || got != p {
			t.Errorf("%+v came back as %+v, %v", p, got, err)
		}
	}
	for _, text := range []string{"", "x", "0", "0 2 ", "2 0 ", "-1 0 ", "0 -1 ", "1 3 x"} {
		if _, err := openListPlace(ring, "use", ring.SealCursor("use", text), sets); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if _, err := openListPlace(ring, "use", "AAAA", sets); err == nil {
		t.Error("what no key sealed is taken")
	}
	if a, b := len(listPlace{node: "a"}.String()), len(listPlace{node: "a longer name"}.String()); a != b {
		t.Errorf("the length of a cursor tells that of a name: %d, %d", a, b)
	}
}

// ofSizes returns sets with these numbers of nodes.
func ofSizes(t *testing.T, sizes ...int) (all []*set) {
	t.Helper()
	nodes, next := several(8), 0
	var lists [][]node.Node
	for _, n := range sizes {
		lists = append(lists, nodes[next:next+n])
		next += n
	}
	l, err := New(Config{}, lists...)
	if err != nil {
		t.Fatal(err)
	}
	return l.router.sets
}

func testRing(t *testing.T) *keyring.Ring {
	t.Helper()
	ring, err := keyring.New(make([]byte, node.MinSecretBytes))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// All slots of a resource are on its own node set.
func TestSlotsShareANodeSet(t *testing.T) {
	nodes := several(3)
	l, err := New(Config{}, nodes[:1], nodes[1:2], nodes[2:])
	if err != nil {
		t.Fatal(err)
	}
	used := map[any]bool{}
	for i := range 20 {
		resource := fmt.Sprintf("jobs/%d", i)
		used[l.router.of(resource)] = true
		for _, name := range lockcore.SlotNames(resource, lockcore.MaxSlots) {
			if l.router.of(name) != l.router.of(resource) {
				t.Errorf("%s is on another set than %s", name, resource)
			}
		}
	}
	if len(used) != len(nodes) {
		t.Errorf("%d sets are used", len(used))
	}
}
