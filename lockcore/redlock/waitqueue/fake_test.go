package waitqueue

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
)

// slowNode grants every operation after a second, and notes the tickets that it gets.
type slowNode struct {
	node.Node
	mu      sync.Mutex
	tickets []node.Ticket
	gone    []node.Ticket
}

func (n *slowNode) dequeued() []node.Ticket {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.gone
}

func (n *slowNode) Submit(op *node.Op, i int, sink node.Sink) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch op.Kind {
	case node.OpEnqueue:
		n.tickets = append(n.tickets, op.Ticket)
	case node.OpDequeue:
		n.gone = append(n.gone, op.Ticket)
	}
	time.AfterFunc(time.Second, func() { sink.Deliver(i, node.Reply{Outcome: node.Granted}) })
}

func (n *slowNode) enqueued() []node.Ticket {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tickets
}

// ignored is a sink for replies that no caller waits for.
type ignored struct{}

func (ignored) Deliver(int, node.Reply) {}

func newQueue(nodes ...node.Node) *Queue {
	return New(Config{
		Nodes: nodes, NodeTimeout: time.Second, Random: random.Source{Reader: rand.Reader},
		Epoch: func() node.Epoch { return 1 }, Map: func() string { return "" },
		Cleanup: func(i int, op node.Op, _ time.Time, submit func(*node.Op, int, node.Sink) bool) {
			submit(&op, i, ignored{})
		},
	})
}

// busyNode accepts heartbeats, and knows the server. It refuses a number of enqueues, as a node does that many of
// them reach at once.
type busyNode struct {
	node.Node
	refuse int
	taken  []string // ids of tickets
}

func (n *busyNode) Submit(op *node.Op, i int, sink node.Sink) {
	reply := node.Reply{Outcome: node.Granted, Existing: true}
	if op.Kind == node.OpEnqueue {
		if n.refuse--; n.refuse >= 0 {
			reply = node.Reply{Err: errors.New("no response in time")}
		} else {
			n.taken = append(n.taken, op.Ticket.ID)
		}
	}
	sink.Deliver(i, reply)
}

func (*busyNode) Subscribe(ctx context.Context, _ string, _ node.Listener) { <-ctx.Done() }

// tries reports whether the waiter tries now, and clears its wakes.
func tries(q *Queue, w *Waiter) bool {
	next, _ := q.untilTry([]*Waiter{w})
	return next == 0
}

// beating counts heartbeats.
type beating struct {
	slowNode
	beats int
}

func (n *beating) Submit(op *node.Op, i int, sink node.Sink) {
	if op.Kind == node.OpHeartbeat {
		n.mu.Lock()
		n.beats++
		n.mu.Unlock()
	}
	n.slowNode.Submit(op, i, sink)
}

func (n *beating) Subscribe(ctx context.Context, _ string, _ node.Listener) { <-ctx.Done() }

// amnesiac accepts every operation. It replies that it knows the server, and forgets the server's tickets when the
// test says so.
type amnesiac struct {
	node.Node
	mu      sync.Mutex
	tickets map[string]bool
}

func (n *amnesiac) Submit(op *node.Op, i int, sink node.Sink) {
	n.mu.Lock()
	if op.Kind == node.OpEnqueue {
		n.tickets[op.Ticket.ID] = true
	}
	n.mu.Unlock()
	sink.Deliver(i, node.Reply{Outcome: node.Granted, Existing: true})
}

func (*amnesiac) Subscribe(ctx context.Context, _ string, _ node.Listener) { <-ctx.Done() }

// beaten counts heartbeats.
type beaten struct {
	node.Node
	beats int
}

func (n *beaten) Submit(op *node.Op, i int, sink node.Sink) {
	if op.Kind == node.OpHeartbeat && op.TTL == ticketTTL {
		n.beats++
	}
	sink.Deliver(i, node.Reply{Outcome: node.Granted})
}
