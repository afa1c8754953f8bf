package chaos

import (
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// A check that cannot fail checks nothing: each test here breaks something on
// purpose, and the round must find it.

// sabotaged breaks something, and runs rounds until the check finds it.
func sabotaged(t *testing.T, s *Stand, broken sabotage, kind string) {
	t.Helper()
	s.config.sabotage = broken
	for range 20 { // some need two pauses in the wrong places
		for _, v := range s.Run(named(t, "none")).Violations {
			if v.Kind == kind {
				t.Logf("found: %s", v)
				return
			}
		}
	}
	t.Fatalf("%+v was not found out", broken)
}

func named(t *testing.T, name string) Fault {
	t.Helper()
	all := Faults()
	i := slices.IndexFunc(all, func(f Fault) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no fault is called %q", name)
	}
	return all[i]
}

func TestSoakSabotageIsFound(t *testing.T) {
	testenv.Soak(t, "that the checks of chaos pass under load whatever is broken")
	config := short(t)
	config.Dir = t.TempDir()
	s := Start(t, config)
	for _, c := range []struct {
		name   string
		broken sabotage
		kind   string
	}{
		{"clients take a 412 for a success", sabotage{ignoreStale: true}, "writes"},
		{"clients write without a claim", sabotage{skipClaim: true}, "writes"},
		{"a lock is left on a node", sabotage{leaveLock: true}, "leaked"},
		{"nodes forget their counters behind the gate", sabotage{forgetCounts: true}, "tokens"},
		{"releases end nothing", sabotage{keepLease: true}, "vacant"},
		{"grants with a key are abandoned", sabotage{abandon: true}, "vacant"},
		{"a repeat does not find its lease", sabotage{otherKey: true}, "vacant"},
		{"the first in every queue never asks", sabotage{deadPlace: true}, "vacant"},
		{"nodes lose the locks of valid leases", sabotage{loseLocks: true}, "lost"},
	} {
		t.Run(c.name, func(t *testing.T) { sabotaged(t, s, c.broken, c.kind) })
		s.command(s.nodes[0], "del", "l:chaos/left")
	}
}

// made makes a history of one resource by hand.
func made(ops ...op) *checker {
	c := &checker{resource: "r"}
	for _, o := range ops {
		c.ops = append(c.ops, &o)
	}
	return c
}

func acquired(token int64, sent, done time.Duration) op {
	return op{Kind: opAcquire, Status: 201, Token: token, Sent: sent, Done: done, Validity: 100}
}

// ofLease is an operation on a lease.
func ofLease(id string, o op) op {
	o.Lease = id
	return o
}

func TestCheckersFind(t *testing.T) {
	put := func(token int64, id, value string, sent time.Duration, status int) op {
		return op{Kind: opPut, Token: token, ID: id, Value: contentOf(value), Sent: sent, Done: sent + 1, Status: status}
	}
	for name, c := range map[string]struct {
		history *checker
		check   func(*checker)
		bad     bool
	}{
		"tokens in order":          {made(acquired(1, 0, 1), acquired(2, 2, 3)), func(c *checker) { c.tokens(0) }, false},
		"tokens out of order":      {made(acquired(2, 0, 1), acquired(1, 2, 3)), func(c *checker) { c.tokens(0) }, true},
		"below an earlier round's": {made(acquired(2, 0, 1)), func(c *checker) { c.tokens(2) }, true},
		"at once, any order":       {made(acquired(2, 0, 5), acquired(1, 2, 3)), func(c *checker) { c.tokens(0) }, false},
		"one token twice":          {made(acquired(2, 0, 5), acquired(2, 2, 3)), func(c *checker) { c.tokens(0) }, true},
		"stale extension": {
			made(acquired(1, 0, 1), acquired(2, 2, 3), op{Kind: opExtend, Status: 200, Token: 1, Sent: 4, Done: 5}),
			func(c *checker) { c.tokens(0) }, true,
		},
		"two leases at once": {made(acquired(1, 0, 1), acquired(2, 50, 51)), (*checker).exclusion, true},
		"one after the other": {
			made(acquired(1, 0, 1), op{Kind: opRelease, Token: 1, Sent: 49, Done: 52}, acquired(2, 50, 51)),
			(*checker).exclusion, false,
		},
		"a write lost":      {made(put(1, "a", "a", 0, 200)), func(c *checker) { c.writes("") }, true},
		"a write twice":     {made(put(1, "a", "a", 0, 200)), func(c *checker) { c.writes("a a") }, true},
		"a refused write":   {made(put(1, "a", "a", 0, 412)), func(c *checker) { c.writes("a") }, true},
		"an open write":     {made(put(1, "a", "a", 0, 503)), func(c *checker) { c.writes("a") }, false},
		"an open one, gone": {made(put(1, "a", "a", 0, 0)), func(c *checker) { c.writes("") }, false},
		"stale accepted": {
			made(put(2, "a", "a", 0, 200), put(1, "b", "b", 5, 200)), func(c *checker) { c.order(mark{}, "b") }, true,
		},
		"fresh refused": {
			made(put(2, "a", "a", 0, 200), op{Kind: opClaim, Token: 3, Status: 412, Highest: 2, Sent: 5, Done: 6}),
			func(c *checker) { c.order(mark{}, "a") }, true,
		},
		"an open write seen late": {
			made(put(2, "a", "a", 0, 0), op{Kind: opClaim, Token: 2, Status: 200, Sent: 5, Done: 6},
				op{Kind: opClaim, Token: 3, Status: 200, Sent: 7, Done: 8, Value: contentOf("a")}),
			func(c *checker) { c.order(mark{}, "a") }, false,
		},
		"an open write undone": {
			made(put(2, "a", "a", 0, 0), op{Kind: opClaim, Token: 3, Status: 200, Sent: 5, Done: 6, Value: contentOf("a")},
				op{Kind: opClaim, Token: 3, Status: 200, Sent: 7, Done: 8}),
			func(c *checker) { c.order(mark{}, "a") }, true,
		},
		"a lease that its holder did not end is gone": {
			made(ofLease("a", acquired(1, 0, 1)), ofLease("a", op{Kind: opExtend, Status: 404, Token: 1, Sent: 20, Done: 30})),
			(*checker).lost, true,
		},
		"a lease that expired is gone": {
			made(ofLease("a", acquired(1, 0, 1)), ofLease("a", op{Kind: opExtend, Status: 404, Token: 1, Sent: 90, Done: 110})),
			(*checker).lost, false,
		},
		"a lease that was released is gone": {
			made(ofLease("a", acquired(1, 0, 1)), ofLease("a", op{Kind: opRelease, Token: 1, Sent: 10, Done: 25}),
				ofLease("a", op{Kind: opRelease, Status: 404, Token: 1, Sent: 20, Done: 30})),
			(*checker).lost, false,
		},
		"a lease whose key has two tries at the same time is gone": {
			made(ofLease("a", op{Kind: opAcquire, Key: "k", Status: 201, Token: 1, Sent: 0, Done: 5, Validity: 100}),
				op{Kind: opAcquire, Key: "k", Status: 503, Sent: 1, Done: 9},
				ofLease("a", op{Kind: opRelease, Key: "k", Status: 404, Token: 1, Sent: 20, Done: 30})),
			(*checker).lost, false,
		},
		"below every limit, and told otherwise": {
			made(op{Kind: opAcquire, Status: 429, Sent: 1, Done: 2}), (*checker).refused, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.check(c.history)
			if found := len(c.history.found) > 0; found != c.bad {
				t.Errorf("found %v", c.history.found)
			}
		})
	}
}

// Two faults at once never take more than a minority of the nodes.
func TestScheduleSparesAMajority(t *testing.T) {
	s := newSchedule(1, Faults())
	pairs := 0
	for range 1000 {
		faults := s.next()
		if len(faults) == 1 {
			continue
		}
		pairs++
		if faults[0].Nodes+faults[1].Nodes > 2 || faults[0].Major || faults[1].Major {
			t.Errorf("%s + %s", faults[0].Name, faults[1].Name)
		}
	}
	if pairs < 100 {
		t.Errorf("only %d pairs of 1000", pairs)
	}
}
