package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// The simulation's node, behind its network, keeps the rules of every node: what the
// simulation finds is true of the others, too.
func TestRules(t *testing.T) {
	for name, batches := range map[string]bool{"alone": false, "in batches": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for file, failure := range failures(t, Mutant{}, batches) {
				t.Errorf("%s:\n%s", file, failure)
			}
		})
	}
}

func TestRulesSeeAMutant(t *testing.T) {
	if len(failures(t, hunted(replica.ConfirmsForAnyOwner, Mutant{}), false)) == 0 {
		t.Error("no text fails")
	}
}

func failures(t *testing.T, mutant Mutant, batches bool) (failures map[string]string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		failures = nodetest.Failures(t, "", batches, func(tb testing.TB, wanted nodetest.Wanted) nodetest.Harness {
			tb.Helper()
			return openAlone(tb, Plan{
				Seed: 1, Nodes: 1, Sets: 1, Servers: 1, Rates: []float64{0}, Delay: 1, Tidy: true, // so that messages keep their order
				MaxTTL: time.Minute, NodeTimeout: time.Second, CounterTTL: wanted.CounterTTL, Mutant: mutant,
			})
		})
	})
	return failures
}

// openAlone makes a world of one node and no service, and lets it run until the scenario ends.
func openAlone(tb testing.TB, plan Plan) nodetest.Harness {
	tb.Helper()
	w := newWorld(plan, false)
	done, stopped := make(chan struct{}), make(chan struct{})
	running := func() bool {
		select {
		case <-done:
			return false
		default:
			return true
		}
	}
	go func() {
		defer close(stopped)
		w.runWhile(running)
	}()
	tb.Cleanup(func() {
		close(done)
		w.stir <- struct{}{}
		<-stopped
	})
	n := w.nodes[0]
	spoil := nodetest.SpoilRow(tb, n.model.Store)
	return nodetest.Harness{
		Node:    clocked{&port{w: w, server: w.servers[0], node: n, relays: make([]relay, 1), slower: 1}},
		Restart: func() { w.do(func() { n.model.Restart(true) }) },
		Wipe:    func() { w.do(n.model.Wipe) },
		Spoil:   func(resource string) { w.do(func() { spoil(resource) }) },
	}
}

// do has the world do something between two events.
func (w *world) do(f func()) {
	d := deed{f, make(chan struct{})}
	w.post(d)
	<-d.done
}

type deed struct {
	f    func()
	done chan struct{}
}

func (deed) rank() rank { return rank{} }

func (d deed) accept(*world) {
	d.f()
	close(d.done)
}
