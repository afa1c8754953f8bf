package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/scenario"
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
)

// planScenarios runs scenarios of what a server observes of its nodes, and prints
// the plan. Nodes are counted from 1.
type planScenarios struct {
	cfg  Config
	seen observations
	now  time.Time
}

// scenarioStart is the time at which a cluster's scenario begins.
var scenarioStart = time.UnixMilli(1_800_000_000_000)

func TestPlanScenarios(t *testing.T) {
	p := &planScenarios{}
	for _, file := range []string{"testdata/plan_rejoin.txt", "testdata/plan_bootstrap.txt"} {
		scenario.Run(t, file, p)
	}
}

func (s *planScenarios) Do(cmd scenario.Command) (string, error) {
	switch cmd.Cmd {
	case "cluster":
		return "", s.cluster(cmd)
	case "at":
		at, err := time.ParseDuration(cmd.CmdArgs[0].Key)
		s.now = scenarioStart.Add(at)
		return "", err
	case "see":
		return "", s.see(cmd)
	case "bootstrap": // fencelock bootstrap: a Locker of its own with automatic recovery
		s.cfg.Recovery = settings.RecoveryAuto
		return "", nil
	case "plan": // printed after the commands before it
		return s.Show(), nil
	}
	return "", errors.New("no such command")
}

func (s *planScenarios) cluster(cmd scenario.Command) error {
	s.cfg = testConfig()
	s.cfg.MaxTTL = 10 * time.Second
	s.cfg.New, s.cfg.Force = cmd.HasArg("new"), cmd.HasArg("force")
	s.cfg.Recovery = cmp.Or(settings.Recovery(cmd.Pair("recovery")), settings.RecoveryAuto)
	nodes := make([]node.Node, cmd.PairNumber("n"))
	for i := range nodes {
		nodes[i] = &fakeNode{name: fmt.Sprintf("node%d", i+1)}
	}
	s.now = scenarioStart
	s.seen = newObservations(nodes, s.now)
	return nil
}

// see reads an observation of a node:
//
//	see 1 admitted epoch=5 bootstrapped=2 high=9 max-ttl=20s
//	see 2 unadmitted [empty] [epoch=5] not admitted; note=x, missed=5 or unnoted: of its quarantine
//	see 3 unanswered                 no answer
//	see 4 unfit | foreign | twin=1   may not vote
//
// inc names its incarnation if that is not the first.
func (s *planScenarios) see(cmd scenario.Command) error {
	i := int(cmd.Number(0)) - 1
	maxTTL, _ := time.ParseDuration(cmd.Pair("max-ttl"))
	seen := node.Observation{
		Incarnation: fmt.Sprintf("%d%s", i+1, cmd.Pair("inc")), Epoch: node.Epoch(cmd.PairNumber("epoch")),
		Admitted: cmd.HasArg("admitted"), Empty: cmd.HasArg("empty"),
		Marks: node.Marks{HighWater: fencing.Token(cmd.PairNumber("high")), Bootstrapped: node.Epoch(cmd.PairNumber("bootstrapped")), MaxTTL: max(maxTTL, s.cfg.MaxTTL)},
	}
	if !seen.Empty {
		seen.Cluster = s.seen.cluster
	}
	if !seen.Admitted && !cmd.HasArg("unnoted") {
		seen.Note = "note" + cmd.Pair("note")
	}
	if missed := cmd.PairNumber("missed"); missed != 0 {
		seen.Note = node.MissedNote(node.Epoch(missed))
	}
	if twin := cmd.Pair("twin"); twin != "" {
		seen.Incarnation = twin
	}
	var err error
	switch {
	case cmd.HasArg("unanswered"):
		err = errFake
	case cmd.HasArg("unfit"):
		seen.Unfit = "it is a replica"
	case cmd.HasArg("foreign"):
		seen.Cluster = node.Cluster{Nodes: 5, Hash: "elsewhere"}
	}
	s.seen.add(i, seen, err, s.now)
	s.seen.judge(planFor(&s.seen, s.cfg, s.now), s.now)
	return nil
}

func (s *planScenarios) Show() string {
	p := planFor(&s.seen, s.cfg, s.now)
	s.seen.judge(p, s.now)
	status := s.seen.status(p, s.now)
	var out strings.Builder
	for _, part := range []struct {
		name  string
		nodes []int
	}{{"old-epoch", p.oldEpoch}, {"low-max-ttl", p.lowMaxTTL}, {"rejoin", p.rejoin}, {"bootstrap", p.bootstrap}} {
		if len(part.nodes) > 0 {
			fmt.Fprintf(&out, "%s %s\n", part.name, scenario.Ordinals(part.nodes))
		}
	}
	if p.fresh {
		out.WriteString("fresh\n")
	}
	fmt.Fprintf(&out, "ready=%v", status.Ready)
	if !status.Ready {
		fmt.Fprintf(&out, ": %s", status.Reason)
	}
	out.WriteByte('\n')
	for i, n := range status.Nodes {
		fmt.Fprintf(&out, "%d %s", i+1, n.State)
		if n.Wait > 0 {
			fmt.Fprintf(&out, " wait=%s", n.Wait)
		}
		if n.Reason != "" && n.Reason != status.Reason {
			fmt.Fprintf(&out, ": %s", n.Reason)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// An epoch is computed from random bytes and from the epochs seen before, never from a constant.
func TestEpochsGrow(t *testing.T) {
	m := New(testConfig(), fakes(3))
	for largest := range node.Epoch(100) {
		if v := m.rejoinEpoch(largest); v <= largest || v > largest+16 {
			t.Fatalf("a rejoin above epoch %d took %d", largest, v)
		}
	}
	clock := node.Epoch(time.Now().UnixMilli()) << epochBits
	if v := m.bootstrapEpoch(3); v < clock {
		t.Errorf("the bootstrap's epoch %d does not follow the clock (%d)", v, clock)
	}
	if v := m.bootstrapEpoch(2 * clock); v <= 2*clock {
		t.Errorf("the bootstrap's epoch %d is not above the largest seen (%d)", v, 2*clock)
	}
}

// The cluster's name does not depend on the order in which a server lists its nodes, but on each of them (rule 14).
func TestClusterOfNodes(t *testing.T) {
	nodes := fakes(3)
	turned := []node.Node{nodes[2], nodes[0], nodes[1]}
	if ClusterOf(nodes) != ClusterOf(turned) {
		t.Error("the order of the list changes the cluster")
	}
	if ClusterOf(nodes) == ClusterOf(fakes(5)) {
		t.Error("three nodes and five are one cluster")
	}
	other := []node.Node{nodes[0], nodes[1], &fakeNode{name: "elsewhere"}}
	if ClusterOf(nodes) == ClusterOf(other) {
		t.Error("another node is the same cluster")
	}
}

func TestBootstrapFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := node.FloorAt(time.Now())
		cases := []struct {
			name  string
			high  fencing.Token
			guard func(context.Context) (fencing.Token, error)
			want  fencing.Token
		}{
			{"the clock", 0, nil, now},
			{"a mark that survived", now + 5, nil, now + 5},
			{"a broken mark", fencing.MaxToken, nil, now},
			{"the guard's mark", now + 5, guardSays(now+9, nil), now + 9},
			{"a broken guard's", now + 5, guardSays(fencing.MaxToken, nil), now + 5},
			{"an unreachable guard", now + 5, guardSays(now+9, errors.New("unreachable")), now + 5},
		}
		for _, c := range cases {
			m := New(withFloor(c.guard), fakes(3))
			m.seen.add(1, node.Observation{Incarnation: "1", Marks: node.Marks{HighWater: c.high}}, nil, time.Now())
			if got := m.bootstrapFloor(t.Context()); got != c.want {
				t.Errorf("%s: floor %d, want %d", c.name, got, c.want)
			}
		}
	})
}

func guardSays(mark fencing.Token, err error) func(context.Context) (fencing.Token, error) {
	return func(context.Context) (fencing.Token, error) { return mark, err }
}

// The nodes that know of the bootstrap do not reply for a moment. The node that missed it keeps the part of its wait
// that has passed.
func TestBootstrapIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(withMaxTTL(10*time.Second), fakes(3))
		see := func(i int, epoch, bootstrapped node.Epoch, err error) {
			m.seen.add(i, node.Observation{
				Incarnation: string(rune('a' + i)), Admitted: true, Epoch: epoch, Cluster: m.cluster,
				Marks: node.Marks{Bootstrapped: bootstrapped, MaxTTL: 10 * time.Second},
			}, err, time.Now())
			m.judge()
		}
		see(0, 900, 900, nil)
		see(1, 900, 900, nil)
		see(2, 7, 1, nil)
		time.Sleep(9 * time.Second)
		for i := range 3 {
			see(i, 0, 0, errFake)
		}
		see(2, 7, 1, nil)
		see(0, 900, 900, nil)
		see(1, 900, 900, nil)
		if left := m.Status().Nodes[2].Wait; left > 2*time.Second {
			t.Errorf("after 9 s of the wait, %s are left", left)
		}
	})
}

func withFloor(floor func(context.Context) (fencing.Token, error)) Config {
	cfg := testConfig()
	cfg.Floor = floor
	return cfg
}

func withMaxTTL(ttl time.Duration) Config {
	cfg := testConfig()
	cfg.MaxTTL = ttl
	return cfg
}
