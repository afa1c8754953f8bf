package sets_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// timed is a Model with a clock that its server can read.
type timed struct{ *nodetest.Model }

func (n timed) Time(context.Context) (time.Time, error) { return n.Clock(), nil }

// jumps counts the jumps that a Meter gets.
type jumps struct {
	settings.Meter
	mu    sync.Mutex
	count map[string]int
}

type jumpsOf struct {
	*jumps
	node string
}

func (j jumpsOf) Vote(node.Outcome)    {}
func (j jumpsOf) NoAnswer()            {}
func (j jumpsOf) Confirm(node.Outcome) {}
func (j jumpsOf) Clock(time.Duration)  {}
func (j jumpsOf) Jump(time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.count[j.node]++
}

func (j *jumps) total() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for _, count := range j.count {
		n += count
	}
	return n
}

// clockCluster is a bootstrapped cluster of models in a bubble of time of its own.
func clockCluster(t *testing.T, n int, test func(t *testing.T, l *locker, models []*nodetest.Model, j *jumps)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var nodes []node.Node
		var models []*nodetest.Model
		for i := range n {
			m := nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("n%d", i+1)})
			models, nodes = append(models, m), append(nodes, timed{m})
		}
		j := &jumps{count: map[string]int{}}
		l := running(t, sets.Config{
			New: true, MaxHold: 10 * time.Minute, MaxTTL: 10 * time.Second, NodeTimeout: 50 * time.Millisecond, Meters: func(node string) settings.Meter { return jumpsOf{j, node} },
		}, nodes)
		time.Sleep(5 * time.Second)
		if s := l.Status(); s.Voting != n {
			t.Fatalf("%+v", s)
		}
		test(t, l, models, j)
	})
}

// A clock that jumps forward ends the locks of its node early. With the vote of that node and of one that never had
// the lock, a second client would get the resource while the first one's lease is valid. So the node is quarantined.
func TestNodeWhoseClockJumpedIsQuarantined(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour, 300 * time.Millisecond} {
		clockCluster(t, 3, func(t *testing.T, l *locker, models []*nodetest.Model, j *jumps) { //nolint:thelper // it is the test itself
			first, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			models[0].JumpClock(by)
			time.Sleep(2 * time.Second)
			s := l.Status()
			if s.Nodes[0].State != lockcore.NodeQuarantined || s.Voting != 2 || j.count["n1"] != 1 || j.total() != 1 {
				t.Fatalf("after a jump by %s: %+v, %v", by, s, j.count)
			}
			if _, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r"}); !errors.Is(err, lockcore.ErrHeld) {
				t.Fatalf("a second holder, or none: %v", err)
			}
			if _, err := l.Extend(t.Context(), first.ID, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			time.Sleep(6 * time.Second)
			if _, err := l.Extend(t.Context(), first.ID, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second) // the longest TTL has passed
			if s := l.Status(); s.Voting != 3 || j.total() != 1 {
				t.Fatalf("it does not come back: %+v, %v", s, j.count)
			}
			lease, err := l.Lease(t.Context(), first.ID)
			if err != nil || lease.Token != first.Token {
				t.Fatalf("the lease did not outlive it: %v", err)
			}
		})
	}
}

func TestServerWhoseClockJumpedExpelsNoNode(t *testing.T) {
	for n, jump := range map[int]int{1: 1, 3: 2, 5: 3, 7: 7} {
		clockCluster(t, n, func(t *testing.T, l *locker, models []*nodetest.Model, j *jumps) { //nolint:thelper // it is the test itself
			for _, m := range models[:jump] {
				m.JumpClock(time.Minute)
			}
			for range 60 {
				time.Sleep(time.Second)
				if s := l.Status(); s.Voting != n {
					t.Fatalf("%d of %d jumped: %+v", jump, n, s)
				}
			}
			if j.total() != jump {
				t.Errorf("%d jumps, want %d", j.total(), jump)
			}
			// After that the readings are enough for the next jump.
			models[0].JumpClock(time.Minute)
			time.Sleep(2 * time.Second)
			if s := l.Status(); n > 1 && s.Nodes[0].State != lockcore.NodeQuarantined {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A node whose clock jumped is not quarantined if the quorum needs it.
func TestQuorumIsNotGivenUpForAClock(t *testing.T) {
	clockCluster(t, 3, func(t *testing.T, l *locker, models []*nodetest.Model, _ *jumps) { //nolint:thelper // it is the test itself
		models[2].Restart(false)
		time.Sleep(2 * time.Second)
		if s := l.Status(); s.Voting != 2 {
			t.Fatalf("%+v", s)
		}
		models[0].JumpClock(time.Hour)
		for range 5 {
			time.Sleep(time.Second)
			if s := l.Status(); !s.Ready {
				t.Fatalf("%+v", s)
			}
		}
		time.Sleep(10 * time.Second) // the third is back
		if s := l.Status(); s.Nodes[0].State != lockcore.NodeQuarantined || s.Nodes[2].State != lockcore.NodeVoting {
			t.Fatalf("%+v", s)
		}
	})
}

// Two servers see the same jump: the node is quarantined once.
func TestTwoServersSeeAJump(t *testing.T) {
	clockCluster(t, 3, func(t *testing.T, first *locker, models []*nodetest.Model, j *jumps) { //nolint:thelper // it is the test itself
		var nodes []node.Node
		for _, m := range models {
			nodes = append(nodes, timed{m})
		}
		second := running(t, sets.Config{
			MaxTTL: 10 * time.Second, WatchInterval: 333 * time.Millisecond, Meters: func(node string) settings.Meter { return jumpsOf{j, node} },
		}, nodes)
		time.Sleep(5 * time.Second)
		models[1].JumpClock(-time.Hour)
		time.Sleep(13 * time.Second)
		for range 30 {
			time.Sleep(time.Second)
			if a, b := first.Status(), second.Status(); a.Voting != 3 || b.Voting != 3 {
				t.Fatalf("%+v\n%+v", a, b)
			}
		}
	})
}
