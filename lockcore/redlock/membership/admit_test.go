package membership

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// reader is a node that a rejoining node's locks are read from.
type reader struct {
	*fakeNode
	lock    node.CarriedLock
	counter fencing.Token
}

func (r *reader) Survey(context.Context, node.Epoch, string) ([]node.CarriedLock, string, error) {
	return []node.CarriedLock{r.lock}, "", nil
}

func (r *reader) Counters(context.Context, node.Epoch, []string) ([]fencing.Token, error) {
	return []fencing.Token{r.counter}, nil
}

func (r *reader) InstallEpoch(context.Context, node.Epoch) (node.Marks, error) {
	return node.Marks{}, nil
}

// A lock whose grant is below the counter is not carried to a node. Otherwise a retry under its idempotency key would
// find it there, and get a token between the two on other nodes. The node would confirm that token, although larger
// ones have been granted.
func TestCarriedLockIsNotBelowItsCounter(t *testing.T) {
	nodes := fakes(3)
	for i, grant := range []fencing.Token{0, 29, 79} {
		f, _ := nodes[i].(*fakeNode)
		nodes[i] = &reader{
			fakeNode: f, counter: grant,
			lock: node.CarriedLock{Resource: "r", Owner: "keyed", Grant: grant, Remaining: time.Minute, TTL: time.Minute},
		}
	}
	carried, err := New(testConfig(), nodes).readLocks(t.Context(), []int{1, 2}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(carried) != 1 || carried[0].Owner != "keyed" || carried[0].Counter != 79 || carried[0].Grant != 79 {
		t.Errorf("carried %+v, want the lock with counter and grant 79", carried)
	}
}

// Several nodes rejoin one after the other, each in a later epoch than the one before, although no node was observed
// in between.
func TestReadNodesAreInTheEpoch(t *testing.T) {
	nodes := fakes(3)
	for i := range nodes {
		f, _ := nodes[i].(*fakeNode)
		nodes[i] = &reader{fakeNode: f}
	}
	m := New(testConfig(), nodes)
	now := time.Now()
	for i := range m.seen.nodes {
		m.seen.add(i, node.Observation{Incarnation: nodes[i].Name(), Admitted: i > 0, Epoch: 10, Cluster: m.cluster}, nil, now)
	}
	if readers, _ := m.installEpoch(t.Context(), []int{1, 2}, 25); len(readers) != 2 {
		t.Fatalf("%d nodes were read", len(readers))
	}
	if p := planFor(&m.seen, m.cfg, now); p.largest != 25 || p.epoch != 25 {
		t.Errorf("after epoch 25 was installed the plan has largest epoch %d, and epoch %d", p.largest, p.epoch)
	}
}

// staging is a node of a bootstrap: it accepts every step, or returns an error.
type staging struct {
	*fakeNode
	did           *[]string // of all nodes, in order
	staged, opens error
}

func (s *staging) Stage(context.Context, node.Admission) error {
	*s.did = append(*s.did, "stage "+s.name)
	return s.staged
}

func (s *staging) Admit(context.Context, node.Admission) error {
	*s.did = append(*s.did, "open "+s.name)
	return s.opens
}

// A server that meets another bootstrap stops if it has not opened a node yet. If it has, it opens every node that it
// can. A node that does not reply does not stop it.
func TestBootstrapYields(t *testing.T) {
	const all = "stage node1, stage node2, stage node3, stage node4, "
	raced, failed := fmt.Errorf("staging: %w", node.ErrRaced), errFake
	cases := []struct {
		name          string
		staged, opens [5]error
		did           string
		bootstrapped  bool
	}{
		{"alone", [5]error{}, [5]error{}, all + "open node1, open node2, open node3, open node4", true},
		{"met at the first", [5]error{raced}, [5]error{}, "stage node1", false},
		{"met when a quorum is closed", [5]error{3: raced}, [5]error{}, all[:len(all)-2], false},
		{"a node without an answer", [5]error{failed}, [5]error{failed}, all + "open node2, open node3, open node4", true},
		{"two nodes without an answer", [5]error{failed, failed}, [5]error{}, all[:len(all)-2], false},
		{"overtaken before it opens", [5]error{}, [5]error{raced}, all + "open node1", false},
		{"overtaken after a node without an answer", [5]error{}, [5]error{failed, raced}, all + "open node1, open node2", false},
		{"overtaken later", [5]error{}, [5]error{1: raced}, all + "open node1, open node2, open node3, open node4", true},
	}
	for _, c := range cases {
		nodes, did := fakes(5), []string{}
		for i := range nodes {
			f, _ := nodes[i].(*fakeNode)
			nodes[i] = &staging{fakeNode: f, did: &did, staged: c.staged[i], opens: c.opens[i]}
		}
		m := New(testConfig(), nodes)
		err := m.bootstrap(t.Context(), plan{bootstrap: []int{0, 1, 2, 3}, pins: make([]pin, len(nodes))})
		if got := strings.Join(did, ", "); got != c.did || (err == nil) != c.bootstrapped {
			t.Errorf("%s: %s, %v; want %s", c.name, got, err, c.did)
		}
	}
}

// A rejoining node gets no lock that its lease (perhaps under an idempotency key) could not use or release.
func TestCarriedLock(t *testing.T) {
	lock := func(grant fencing.Token) survey {
		return survey{"r": {Resource: "r", Owner: "l", Grant: grant, Remaining: time.Minute, TTL: time.Minute, Keyed: grant > 5}}
	}
	kept, largest := reserve("r", []survey{lock(5), lock(7), lock(6)}, 2, 0)
	if kept.Grant != 5 || largest != 7 || !kept.Keyed {
		t.Errorf("%+v, largest grant %d", kept, largest)
	}
}
