package sets_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// failing counts the calls of all nodes' membership, and makes one of them fail.
type failing struct {
	fails  int  // the number of the call; 0 for none
	unsent bool // the node does not get it; otherwise its reply is lost

	mu    sync.Mutex
	calls []string
}

// call makes a call of a node, or fails instead.
func (f *failing) call(what string, send func() error) error {
	f.mu.Lock()
	f.calls = append(f.calls, what)
	fails := len(f.calls) == f.fails
	f.mu.Unlock()
	var err error
	if !fails || !f.unsent {
		err = send()
	}
	if fails {
		return errors.New("no response in time")
	}
	return err
}

func (f *failing) made() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// flawed is a node whose calls can fail.
type flawed struct {
	*nodetest.Model
	*failing
}

func (n flawed) Observe(ctx context.Context) (seen node.Observation, err error) {
	err = n.call("observe", func() (err error) { seen, err = n.Model.Observe(ctx); return err })
	return seen, err
}

func (n flawed) Quarantine(ctx context.Context, note string) error {
	return n.call("quarantine", func() error { return n.Model.Quarantine(ctx, note) })
}

func (n flawed) Stage(ctx context.Context, a node.Admission) error {
	return n.call("stage", func() error { return n.Model.Stage(ctx, a) })
}

func (n flawed) Admit(ctx context.Context, a node.Admission) error {
	return n.call("admit", func() error { return n.Model.Admit(ctx, a) })
}

// A server that was told that the cluster is new does not wait for the longest TTL, whichever call of its start
// fails. A node that was staged by a failed bootstrap is no longer empty. So the bootstrap must not begin while the
// beginning of a quarantine may be under way, whose note would come in between.
func TestFirstStartDoesNotWait(t *testing.T) {
	start := func(t *testing.T, f *failing) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			var nodes []node.Node
			for i := range 5 {
				nodes = append(nodes, flawed{nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("n%d", i+1)}), f})
			}
			t.Cleanup(func() { time.Sleep(time.Second) }) // for what is on its way
			l := running(t, sets.Config{New: true, MaxTTL: time.Minute}, nodes)
			time.Sleep(2 * time.Second)
			if now := l.Status(); !now.Ready {
				t.Errorf("not ready: call %d (unsent: %t) of %s failed: %s", f.fails, f.unsent, f.made(), now.Reason)
			}
		})
	}
	whole := &failing{}
	start(t, whole)
	calls := whole.made()
	for i := range calls {
		start(t, &failing{fails: i + 1})
		start(t, &failing{fails: i + 1, unsent: true})
	}
	t.Logf("each call failed of %s", calls)
}
