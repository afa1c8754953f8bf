package quorum

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/scenario"
)

// tallyScenarios drives a Tally by text. Nodes are counted from 1.
type tallyScenarios struct{ tally Tally }

func TestTallyScenarios(t *testing.T) {
	scenario.Run(t, "testdata/tally.txt", &tallyScenarios{})
}

func (s *tallyScenarios) Do(cmd scenario.Command) (string, error) {
	i := int(cmd.Number(0)) - 1
	switch cmd.Cmd {
	case "acquire":
		s.tally = NewTally(int(cmd.PairNumber("n")))
	case "grant":
		s.tally.Granted(i, fencing.Token(cmd.Number(1)), cmd.HasArg("existing"))
	case "confirm":
		s.tally.Confirmed(i)
	case "refuse":
		s.tally.Refused(i)
	case "verdict": // printed after the commands before it
		return s.Show(), nil
	default:
		return "", fmt.Errorf("no such command")
	}
	return "", nil
}

func (s *tallyScenarios) Show() string {
	var counts, confirm []int
	for i := range s.tally.n {
		if s.tally.Counts(i) {
			counts = append(counts, i)
		}
		if s.tally.MustConfirm(i) {
			confirm = append(confirm, i)
		}
	}
	text := s.tally.Verdict().String()
	if token := s.tally.Token(); token != 0 {
		text += fmt.Sprintf(" token=%d", token)
	}
	if counts != nil {
		text += " counts=" + scenario.Ordinals(counts)
	}
	if confirm != nil {
		text += " confirm=" + scenario.Ordinals(confirm)
	}
	return text + "\n"
}

// naiveTally is a simple twin of Tally. It keeps all events and replays them for every question. It finds quorums by
// trying every set of nodes.
type naiveTally struct {
	n      int
	events []tallyEvent
}

type tallyEvent struct {
	kind     int // 0 grant, 1 confirm, 2 refuse
	node     int
	grant    fencing.Token
	existing bool
}

// state replays the events with rule 1. It returns the token, the nodes that count, and those that are excluded.
func (n naiveTally) state() (token fencing.Token, counts, excluded map[int]bool) {
	grants := map[int]fencing.Token{}
	counts, excluded = map[int]bool{}, map[int]bool{}
	existing := false
	for _, e := range n.events {
		_, granted := grants[e.node]
		switch e.kind {
		case 0:
			if granted || excluded[e.node] {
				continue // the first grant counts
			}
			grants[e.node] = e.grant
			existing = existing || e.existing
		case 1:
			if granted && token != 0 && !excluded[e.node] {
				counts[e.node] = true
			}
		case 2:
			excluded[e.node] = true
			delete(counts, e.node)
		}
		if token == 0 {
			token = n.choose(grants, excluded, existing)
		}
		for node, grant := range grants {
			switch {
			case token == 0 || excluded[node]:
			case grant == token:
				counts[node] = true
			case grant > token && !counts[node]:
				excluded[node] = true
			}
		}
	}
	return token, counts, excluded
}

// choose tries every set of nodes that is a quorum.
func (n naiveTally) choose(grants map[int]fencing.Token, excluded map[int]bool, existing bool) (largest fencing.Token) {
	silent := 0
	for i := range n.n {
		if _, granted := grants[i]; !granted && !excluded[i] {
			silent++
		}
	}
	quorum := false
	for set := range 1 << n.n {
		size, equal, first, whole := 0, true, fencing.Token(0), true
		for i := range n.n {
			if set>>i&1 == 0 {
				continue
			}
			grant, granted := grants[i]
			whole = whole && granted && !excluded[i]
			if size++; size == 1 {
				first = grant
			}
			equal = equal && grant == first
		}
		if !whole || size <= n.n/2 {
			continue
		}
		quorum = true
		if equal {
			return first
		}
	}
	if !quorum || existing && silent > 0 {
		return 0
	}
	for i, grant := range grants {
		if !excluded[i] {
			largest = max(largest, grant)
		}
	}
	return largest
}

// verdict enumerates: won if some quorum counts, lost if every quorum has an
// excluded node.
func (n naiveTally) verdict() Verdict {
	token, counts, excluded := n.state()
	lost := true
	for set := range 1 << n.n {
		size, all, broken := 0, true, false
		for i := range n.n {
			if set>>i&1 == 0 {
				continue
			}
			size++
			all = all && counts[i]
			broken = broken || excluded[i]
		}
		if size <= n.n/2 {
			continue
		}
		if all && token != 0 {
			return Won
		}
		lost = lost && broken
	}
	if lost {
		return Lost
	}
	return Pending
}

func TestTallyAgreesWithItsNaiveTwin(t *testing.T) {
	for seed := range uint64(4000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := []int{1, 3, 5, 7}[rng.IntN(4)]
		tally, twin := NewTally(n), naiveTally{n: n}
		for step := range 3 * n {
			e := tallyEvent{
				kind: []int{0, 0, 0, 1, 2}[rng.IntN(5)], node: rng.IntN(n),
				grant: fencing.Token(1 + rng.IntN(4)), existing: rng.IntN(8) == 0,
			}
			twin.events = append(twin.events, e)
			switch e.kind {
			case 0:
				tally.Granted(e.node, e.grant, e.existing)
			case 1:
				tally.Confirmed(e.node)
			case 2:
				tally.Refused(e.node)
			}
			compareTwins(t, &tally, twin)
			if t.Failed() {
				t.Fatalf("seed %d, step %d, n=%d: %+v", seed, step, n, twin.events)
			}
		}
	}
}

func compareTwins(t *testing.T, tally *Tally, twin naiveTally) {
	t.Helper()
	token, counts, excluded := twin.state()
	if tally.Token() != token {
		t.Errorf("token %d, the twin says %d", tally.Token(), token)
	}
	if got, want := tally.Verdict(), twin.verdict(); got != want {
		t.Errorf("verdict %v, the twin says %v", got, want)
	}
	for i := range twin.n {
		if tally.Counts(i) != counts[i] {
			t.Errorf("node %d counts: %v, the twin says %v", i, tally.Counts(i), counts[i])
		}
		if tally.MustConfirm(i) && (counts[i] || excluded[i]) {
			t.Errorf("node %d must confirm, the twin says that it counts (%v) or is excluded (%v)", i, counts[i], excluded[i])
		}
	}
}

// The token of a won acquisition is on a quorum: every node that counts has granted or confirmed it, and none of them
// has granted more.
func TestTallyNeverCountsALargerGrant(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		n := []int{3, 5, 7}[rng.IntN(3)]
		tally := NewTally(n)
		grants := make([]fencing.Token, n)
		for _, i := range rng.Perm(n) {
			grants[i] = fencing.Token(1 + rng.IntN(3))
			tally.Granted(i, grants[i], false)
		}
		for _, i := range rng.Perm(n) {
			if tally.MustConfirm(i) && rng.IntN(3) > 0 {
				tally.Confirmed(i)
			}
		}
		for i := range n {
			if tally.Counts(i) && grants[i] > tally.Token() {
				t.Fatalf("seed %d: node %d counts with grant %d above the token %d", seed, i, grants[i], tally.Token())
			}
		}
	}
}

func TestQuorumsMeet(t *testing.T) {
	for _, n := range []int{1, 3, 5, 7} {
		if 2*Of(n) <= n {
			t.Errorf("two quorums of %d nodes may be apart", n)
		}
		if Of(n)+Readers(n) != n+1 {
			t.Errorf("the readers of %d nodes do not just meet every quorum", n)
		}
	}
}
