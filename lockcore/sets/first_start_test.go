package sets_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// muffled is a node whose quarantine begins without that its server hears so, the first time.
type muffled struct {
	*nodetest.Model
	heard bool
}

func (m *muffled) Quarantine(ctx context.Context, note string) error {
	err := m.Model.Quarantine(ctx, note)
	if !m.heard {
		m.heard = true
		return errors.New("no response in time")
	}
	return err
}

// A server that says that the cluster is new does not wait for the longest TTL, whichever node
// is slow to say that its quarantine began. A node that is staged by a bootstrap which then
// fails is not empty any more, and all would wait.
func TestFirstStartDoesNotWait(t *testing.T) {
	const n = 5
	for slow := range n {
		t.Run(fmt.Sprintf("n%d", slow+1), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var nodes []node.Node
				for i := range n {
					m := nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("n%d", i+1)})
					nodes = append(nodes, &muffled{Model: m, heard: i != slow})
				}
				t.Cleanup(func() { time.Sleep(time.Second) }) // for what is on its way
				l := running(t, sets.Config{New: true, MaxTTL: time.Minute}, nodes)
				time.Sleep(5 * time.Second)
				if s := l.Status(); !s.Ready {
					t.Errorf("not ready: %s", s.Reason)
				}
			})
		})
	}
}
