package replica

import (
	"context"
	"testing"
)

// Block keeps the committer busy until free is called.
func (n *Node) Block(tb testing.TB) (free func()) {
	tb.Helper()
	running, gate := make(chan struct{}), make(chan struct{})
	c := &call{writes: true, ctx: context.Background(), done: make(chan struct{}), run: func(*Txn) error {
		close(running)
		<-gate
		return nil
	}}
	n.queue <- job{call: c}
	<-running
	return func() { close(gate); <-c.done }
}

// Queued returns how many jobs wait for a transaction.
func (n *Node) Queued() int { return len(n.queue) }

// Closed is closed once Close was called.
func (n *Node) Closed() <-chan struct{} { return n.closed }
