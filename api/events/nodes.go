package events

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore"
)

// watchPause is how often the states of the nodes are compared.
const watchPause = 100 * time.Millisecond

// WatchNodes publishes changes of the nodes' states while this server has a reader, until ctx ends.
func (h *Hub) WatchNodes(ctx context.Context, status func() lockcore.ClusterStatus) error {
	begun := h.listening()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-begun:
		}
		var states map[string]lockcore.NodeState
		for ctx.Err() == nil && h.local() {
			states = h.compare(states, status().Nodes)
			pause.For(ctx, watchPause)
		}
	}
}

// compare publishes which nodes have another state than before, and returns the present states.
func (h *Hub) compare(before map[string]lockcore.NodeState, nodes []lockcore.NodeStatus) map[string]lockcore.NodeState {
	states := make(map[string]lockcore.NodeState, len(nodes))
	for _, n := range nodes {
		states[n.Name] = n.State
		if was, known := before[n.Name]; known && was != n.State {
			h.Publish(Event{Kind: wire.EventNode, Event: wire.Event{
				Node: n.Name, State: string(n.State), Was: string(was), Reason: n.Reason,
			}})
		}
	}
	return states
}
