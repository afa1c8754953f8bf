package sets_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// eyed is a Model that one server observes late: after the node's next admission an observation takes longer.
type eyed struct {
	*nodetest.Model
	slower time.Duration
	late   atomic.Bool
	shut   atomic.Bool // observations wait until it is open
	looks  atomic.Int64
}

func (e *eyed) Observe(ctx context.Context) (node.Observation, error) {
	if e.late.Load() {
		time.Sleep(e.slower)
	}
	for e.shut.Load() && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	e.looks.Add(1)
	return e.Model.Observe(ctx)
}

func (e *eyed) Admit(ctx context.Context, a node.Admission) error {
	err := e.Model.Admit(ctx, a)
	e.late.Store(e.slower > 0)
	return err
}

// eyedServers starts a server for each configuration, over the same three nodes.
func eyedServers(t *testing.T, slower time.Duration, cfgs ...sets.Config) (servers []*locker, seen [][]*eyed, models []*nodetest.Model) {
	t.Helper()
	for i := range 3 {
		models = append(models, nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("n%d", i+1)}))
	}
	for _, cfg := range cfgs {
		var nodes []node.Node
		var eyes []*eyed
		for _, m := range models {
			e := &eyed{Model: m, slower: slower}
			nodes, eyes = append(nodes, e), append(eyes, e)
		}
		cfg.New = true
		servers, seen = append(servers, running(t, cfg, nodes)), append(seen, eyes)
	}
	time.Sleep(5 * time.Second)
	for _, eyes := range seen {
		for _, e := range eyes {
			e.late.Store(false)
		}
	}
	return servers, seen, models
}

// Two of three nodes restart empty, and the cluster is bootstrapped again. Leases that are granted around that time
// can be extended and released, even before the server has observed the new nodes.
func TestLeasesAroundABootstrapOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, _, models := eyedServers(t, 100*time.Millisecond, sets.Config{MaxTTL: 3 * time.Second})
		l := servers[0]
		for _, m := range models[:2] {
			m.Restart(false)
		}
		var wg sync.WaitGroup
		var granted, refused atomic.Int32
		for i := range 1000 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 5 * time.Millisecond)
				lease, err := l.Acquire(t.Context(), lockcore.Request{Resource: fmt.Sprint("r", i), TTL: 2 * time.Second})
				if err != nil {
					return
				}
				granted.Add(1)
				time.Sleep(200 * time.Millisecond)
				_, extended := l.Extend(t.Context(), lease.ID, 2*time.Second)
				if released := l.Release(t.Context(), lease.ID); extended != nil || released != nil {
					refused.Add(1)
				}
			})
		}
		wg.Wait()
		if granted.Load() < 100 || refused.Load() > 0 {
			t.Errorf("of %d leases %d could not be extended and released", granted.Load(), refused.Load())
		}
	})
}

// A server has just observed all nodes when two of them lose their data. Another server bootstraps them and grants a
// lease before the first one observes again. The first server does not know the key of that lease's id, and must not
// say that there is no such lease.
func TestAnIDThatIsNewerThanTheLastObservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fast := sets.Config{MaxTTL: 100 * time.Millisecond, NodeTimeout: 10 * time.Millisecond, WatchInterval: 10 * time.Millisecond}
		slow := fast
		slow.WatchInterval = time.Second
		servers, seen, models := eyedServers(t, 0, fast, slow)
		for looks := seen[1][2].looks.Load(); seen[1][2].looks.Load() == looks; {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Millisecond) // the other nodes' turn comes in the same instant
		for _, e := range seen[1] {
			e.shut.Store(true)
		}
		for _, m := range models[:2] {
			m.Restart(false)
		}
		looked := seen[1][0].looks.Load()
		var lease lockcore.Lease
		for err := lockcore.ErrNoQuorum; err != nil; {
			time.Sleep(time.Millisecond)
			if lease, err = servers[0].Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 100 * time.Millisecond}); err != nil && !errors.Is(err, lockcore.ErrNoQuorum) {
				t.Fatal(err)
			}
		}
		if seen[1][0].looks.Load() != looked {
			t.Fatal("the other server has looked since")
		}
		for _, e := range seen[1] {
			e.shut.Store(false)
		}
		if _, err := servers[1].Extend(t.Context(), lease.ID, 100*time.Millisecond); err != nil {
			t.Errorf("extend: %v", err)
		}
	})
}

// However many ids come that no key opens, the nodes are observed at most ten times as often as at rest. Texts that
// are not ids cause no observation.
func TestUnknownIDsHaveTheNodesObservedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := newForeignID(t)
		servers, seen, _ := eyedServers(t, 0, sets.Config{})
		looks := func(id string) int64 {
			before := seen[0][0].looks.Load()
			var wg sync.WaitGroup
			for i := range 1000 {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * time.Millisecond)
					if err := servers[0].Release(t.Context(), id); !errors.Is(err, lockcore.ErrNotHeld) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			return seen[0][0].looks.Load() - before
		}
		if n := looks(foreign); n > 42 {
			t.Errorf("%d observations in a second", n)
		}
		if n := looks("no id"); n > 5 {
			t.Errorf("%d observations in a second for what is no id", n)
		}
	})
}
