package redisnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/lockcore/node"
)

// Node is one Redis master. Close it when done.
type Node struct {
	name   string
	client *redis.Client
	opts   Options
	meter  Meter
	mark   string // the node's cluster as the scripts store and compare it; see Join

	queue  chan job
	writes node.Writes
	down   atomic.Pointer[error] // why operations fail unsent; nil while the node responds
	closed chan struct{}
	once   sync.Once
	done   sync.WaitGroup
}

// job is an operation and the sink that receives its reply.
type job struct {
	op    *node.Op
	index int
	sink  node.Sink
}

// Open makes a Node for an address in the form of ParseAddr, and starts its sender. It does not wait for the
// server, which may be down at any time.
func Open(addr string, opts Options) (*Node, error) {
	parsed, err := ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	n := &Node{
		name:   parsed.Addr + "/" + strconv.Itoa(parsed.DB),
		client: redis.NewClient(clientOptions(parsed, opts)),
		opts:   opts,
		queue:  make(chan job, opts.Queue),
		closed: make(chan struct{}),
	}
	n.meter = opts.Meters(n.name)
	n.done.Go(n.send)
	return n, nil
}

// Name is host:port/database, without user or password.
func (n *Node) Name() string { return n.name }

// Join sets the cluster in which the node votes. Call it before the node is used.
func (n *Node) Join(c node.Cluster) { n.mark = markOf(c) }

// Queue returns the number of operations that wait to be sent, and its bound.
func (n *Node) Queue() (length, bound int) { return len(n.queue), cap(n.queue) }

// Close ends the sender and the connections. Operations that wait fail.
func (n *Node) Close() error {
	n.once.Do(func() { close(n.closed) })
	n.done.Wait()
	return n.client.Close()
}

// Submit queues op for the next batch.
func (n *Node) Submit(op *node.Op, index int, sink node.Sink) {
	if why := n.down.Load(); why != nil {
		sink.Deliver(index, node.Reply{Err: *why})
		return
	}
	if err := op.Validate(); err != nil {
		sink.Deliver(index, node.Reply{Err: err})
		return
	}
	select {
	case n.queue <- job{op: op, index: index, sink: sink}:
		n.drainIfClosed()
	default:
		sink.Deliver(index, node.Reply{Err: node.ErrQueueFull})
	}
}

// drainIfClosed fails operations that were queued after the sender ended.
func (n *Node) drainIfClosed() {
	select {
	case <-n.closed:
		n.drain(node.ErrNodeDown)
	default:
	}
}

// reached reports whether a command that failed with err may have reached the server.
func reached(err error) bool {
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrClosed):
		return false
	}
	return true
}

// explain shortens a command's error to the part that an operator needs.
func explain(err error) error {
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial" && !op.Timeout():
		return notConnected(op.Err)
	case isTimeout(err):
		return errTimeout
	}
	return err
}

// notConnected removes the name of the system call from an error.
func notConnected(err error) error {
	var call *os.SyscallError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no server listens at its address: %w", syscall.ECONNREFUSED)
	case errors.As(err, &call):
		err = call.Err
	}
	return fmt.Errorf("no connection: %w", err)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

var errTimeout = errors.New("no response within the node's time limit")
