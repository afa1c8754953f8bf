package membership

import (
	"context"
	"sync"
	"time"
)

// refresh lets calls of Observe that came together share one look at the nodes.
type refresh struct {
	mu    sync.Mutex
	began time.Time
}

// Observe observes every node now, each within a time limit. Afterwards Status
// says nothing that was so before the call only.
func (m *Controller) Observe(ctx context.Context) {
	asked := time.Now()
	m.refresh.mu.Lock()
	defer m.refresh.mu.Unlock()
	if m.refresh.began.After(asked) || ctx.Err() != nil {
		return
	}
	m.refresh.began = time.Now()
	all := make([]int, len(m.nodes))
	for i := range all {
		all[i] = i
	}
	m.ForEach(ctx, all, m.look)
}
