package boltnode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/fencelock/fencelock/lockcore"
)

// Name is what every boltnode is called: a cluster holds one, and the name
// must stay when the file is moved, because the admission record is bound to it.
const Name = "embedded"

// Node is a lockcore.Node in a bbolt file. Close it before the file.
type Node struct {
	db      *bbolt.DB
	opts    Options
	epoch   uint64 // this opening of the file
	opened  moment
	cluster atomic.Pointer[lockcore.Cluster]
	wakes   subscribers

	queue  chan job
	closed chan struct{}
	once   sync.Once
	done   sync.WaitGroup
}

var _ lockcore.Node = (*Node)(nil)

// New makes the node's buckets in an open file, founds it if it holds no state
// yet, and starts its committer. It fails if the file cannot be written or
// holds a state that this version cannot read.
func New(db *bbolt.DB, opts Options) (*Node, error) {
	opts = opts.withDefaults()
	n := &Node{
		db: db, opts: opts, opened: opts.clock.now(),
		queue: make(chan job, opts.Queue), closed: make(chan struct{}),
	}
	n.cluster.Store(&lockcore.Cluster{})
	if err := db.Update(n.open); err != nil {
		return nil, fmt.Errorf("boltnode: prepare the file: %w", err)
	}
	n.done.Go(n.work)
	return n, nil
}

// open prepares the file and counts this opening.
func (n *Node) open(tx *bbolt.Tx) error {
	if err := prepareBuckets(tx); err != nil {
		return err
	}
	st, err := readState(tx)
	if err != nil {
		return err
	}
	if st.Format == 0 {
		st = newState()
		if !n.opts.blank {
			st.found(n.opened.wall)
		}
	}
	st.Epoch++
	st.High = max(st.High, n.opts.Floor)
	n.epoch = st.Epoch
	return writeState(tx, st)
}

// prepareBuckets makes what is missing. The lines begin empty: whoever stood in
// them waited on connections to a process that has ended.
func prepareBuckets(tx *bbolt.Tx) error {
	for _, name := range []string{metaBucket, locksBucket, countersBucket, keysBucket} {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return fmt.Errorf("bucket %s: %w", name, err)
		}
	}
	return errors.Join(purge(tx, linesBucket), purge(tx, sessionsBucket))
}

// purge empties a bucket.
func purge(tx *bbolt.Tx, name string) error {
	if err := tx.DeleteBucket([]byte(name)); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
		return fmt.Errorf("bucket %s: %w", name, err)
	}
	if _, err := tx.CreateBucket([]byte(name)); err != nil {
		return fmt.Errorf("bucket %s: %w", name, err)
	}
	return nil
}

// Name is the constant Name.
func (n *Node) Name() string { return Name }

// Join names the cluster that asks. A node that founded itself belongs to the
// first that does.
func (n *Node) Join(c lockcore.Cluster) { n.cluster.Store(&c) }

// Submit queues op for the next transaction.
func (n *Node) Submit(op *lockcore.Op, index int, sink lockcore.Sink) {
	select {
	case <-n.closed:
		sink.Deliver(index, lockcore.Reply{Err: lockcore.ErrNodeDown})
		return
	default:
	}
	select {
	case n.queue <- job{op: op, index: index, sink: sink}:
		n.drainIfClosed()
	default:
		sink.Deliver(index, lockcore.Reply{Err: lockcore.ErrQueueFull})
	}
}

// do queues a call and waits for it, or for ctx; the call may then still take
// effect.
func (n *Node) do(ctx context.Context, c *call) error {
	c.ctx, c.done = ctx, make(chan struct{})
	select {
	case <-n.closed:
		return lockcore.ErrNodeDown
	case <-ctx.Done():
		return ctx.Err()
	case n.queue <- job{call: c}:
		n.drainIfClosed()
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drainIfClosed answers what came into the queue after the committer had left.
func (n *Node) drainIfClosed() {
	select {
	case <-n.closed:
		n.drain()
	default:
	}
}

// Close ends the committer after the transaction under way; what waits fails.
// The file stays open.
func (n *Node) Close() error {
	n.once.Do(func() { close(n.closed) })
	n.done.Wait()
	return nil
}

// Queue is how many operations wait for the committer, and how many may.
func (n *Node) Queue() (length, bound int) { return len(n.queue), cap(n.queue) }
