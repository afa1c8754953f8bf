package servicetest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// TestRedlock runs the suite on the quorum algorithm over nodes in memory.
func TestRedlock(t *testing.T) {
	for name, nodes := range map[string]int{"1 node": 1, "3 nodes": 3} {
		t.Run(name, func(t *testing.T) {
			servicetest.Run(t, func(t *testing.T) lockcore.Service {
				t.Helper()
				return open(t, nodes)
			})
		})
	}
}

func open(t *testing.T, n int) lockcore.Service {
	t.Helper()
	var nodes []node.Node
	for i := range n {
		nodes = append(nodes, nodetest.NewModel(nodetest.ModelOptions{Name: string(rune('a' + i))}))
	}
	l, err := sets.New(sets.Config{MaxTTL: servicetest.MaxTTL, NodeTimeout: 5 * time.Second, New: true}, nodes)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = l.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	testenv.Eventually(t, 10*time.Second, func() error {
		if s := l.Status(); !s.Ready {
			return lockcore.ErrNoQuorum
		}
		return nil
	})
	return l
}
