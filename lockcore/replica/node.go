package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Options tune a Node. The zero value of a field takes its default.
type Options struct {
	Rules
	// Bootstrap makes an empty store a cluster of its own, for a store that is the only node. Without it, the
	// node waits to be admitted, as an empty Redis does.
	Bootstrap bool
	// Floor raises the high-water mark, so that tokens begin above it: a guard's highest mark, for example. A
	// floor that no cluster can have reached (node.Plausible) is ignored. Default 0.
	Floor fencing.Token
	// Queue bounds the operations that wait; default 8192. When it is full, further operations fail at once
	// with node.ErrQueueFull.
	Queue int
	// Batch bounds the operations of one transaction; default 512.
	Batch int
	// Timeout bounds a transaction, unless a call in it has a later deadline; default 2s.
	Timeout time.Duration
	Logger  *slog.Logger // default discards
	Meter   Meter        // default discards
}

func (o Options) withDefaults() Options {
	o.Queue = cmp.Or(o.Queue, 8192)
	o.Batch = cmp.Or(o.Batch, 512)
	o.Timeout = cmp.Or(o.Timeout, 2*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Meter == nil {
		o.Meter = unmetered{}
	}
	return o
}

// Meter measures the node's committer. It must not block.
type Meter interface {
	// Batch is called after each transaction, including failed ones, with its number of operations and its
	// duration.
	Batch(operations int, took time.Duration, failed bool)
}

type unmetered struct{}

func (unmetered) Batch(int, time.Duration, bool) {}

// Node is a node.Node over a Store. Close it before the store.
type Node struct {
	Calls
	name    string
	store   Store
	machine *Machine
	opts    Options

	queue  chan job
	writes node.Writes
	room   node.Writes // the outcomes of Growing.Room; only Prove uses it
	damage time.Time   // when damage was last logged; owned by the committer
	closed chan struct{}
	once   sync.Once
	done   sync.WaitGroup
}

var (
	_ node.Node   = (*Node)(nil)
	_ node.Prover = (*Node)(nil)
)

// startPatience is how long New waits for its transaction. A store that has just started, or that is electing
// a leader, takes longer than a call may.
const startPatience = 10 * time.Second

// New opens the node and starts its committer. The name must be the same on every server. New fails if the
// store cannot be written within 10 seconds, or holds a record that this version cannot read.
func New(ctx context.Context, name string, store Store, opts Options) (*Node, error) {
	opts = opts.withDefaults()
	n := &Node{
		name: name, store: store, machine: NewMachine(opts.Rules), opts: opts,
		queue: make(chan job, opts.Queue), closed: make(chan struct{}),
	}
	n.Calls = Calls{Transact: func(ctx context.Context, writes bool, f func(*Txn) error) error {
		return n.do(ctx, &call{writes: writes, run: f})
	}}
	if err := n.open(ctx); err != nil {
		return nil, fmt.Errorf("replica: open %s: %w", name, err)
	}
	n.done.Go(n.commitAll)
	return n, nil
}

func (n *Node) open(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	_, err := n.update(patient, func(t *Txn) { t.Open(n.opts.Bootstrap, n.opts.Floor) })
	if err != nil && patient.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("it took no write within %s: look at its load and its disk, and start again: %w", startPatience, err)
	}
	return err
}

// Name is the name it was given.
func (n *Node) Name() string { return n.name }

// Join sets the caller's cluster.
func (n *Node) Join(c node.Cluster) { n.machine.Join(c) }

// Subscribe notifies w until ctx ends.
func (n *Node) Subscribe(ctx context.Context, server string, w node.Listener) {
	n.store.Listen(ctx, server, w)
}

// Queue returns the number of operations that wait for the committer, and its bound.
func (n *Node) Queue() (length, bound int) { return len(n.queue), cap(n.queue) }

// Close ends the committer after the present transaction; waiting operations fail.
func (n *Node) Close() error {
	n.once.Do(func() { close(n.closed) })
	n.done.Wait()
	return nil
}

var errTooLate = errors.New("the round had ended before the store was free")

// job is an operation with the sink for its reply, or a call.
type job struct {
	op    *node.Op
	index int
	sink  node.Sink
	reply node.Reply // held back until it is durable

	call *call
}

// call is any other function that runs in a transaction. Read the results of run only after done is closed,
// and not at all if ctx ended first.
type call struct {
	writes bool
	run    func(*Txn) error
	ctx    context.Context
	err    error
	done   chan struct{}
}

func (j *job) writes() bool {
	if j.call != nil {
		return j.call.writes
	}
	return j.op.Kind != node.OpRead
}

// run executes the job in t.
func (j *job) run(t *Txn) {
	switch {
	case j.call != nil && j.call.ctx.Err() != nil:
		j.call.err = j.call.ctx.Err()
	case j.call != nil:
		j.call.err = j.call.run(t)
	case !j.op.Deadline.IsZero() && time.Now().After(j.op.Deadline):
		j.reply = node.Reply{Err: errTooLate}
	default:
		j.reply = t.Vote(j.op)
	}
}

// finish delivers the reply; err is the error of the whole transaction.
func (j *job) finish(err error, sent bool) {
	if j.call != nil {
		if err != nil {
			j.call.err = err
		}
		close(j.call.done)
		return
	}
	if err != nil {
		j.reply = node.Reply{Err: err, Sent: sent}
	}
	j.sink.Deliver(j.index, j.reply)
}

// Submit queues op for the next transaction.
func (n *Node) Submit(op *node.Op, index int, sink node.Sink) {
	select {
	case <-n.closed:
		sink.Deliver(index, node.Reply{Err: node.ErrNodeDown})
		return
	default:
	}
	select {
	case n.queue <- job{op: op, index: index, sink: sink}:
		n.drainIfClosed()
	default:
		sink.Deliver(index, node.Reply{Err: node.ErrQueueFull})
	}
}

// Observe reports the node's state. It waits for the present transaction. If that hangs, as the last write
// did, Observe returns why that write failed.
func (n *Node) Observe(ctx context.Context) (node.Observation, error) {
	seen, err := n.Calls.Observe(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = cmp.Or(n.writes.Failing(), err)
	}
	return seen, err
}

// roomProof is how long the result of Room counts for a Growing store.
const roomProof = 5 * time.Second

// Prove rewrites the admission record, unless the node has committed a write in the last `within`. Such a
// write does not prove that a Growing store has room, so Prove also calls Room.
func (n *Node) Prove(ctx context.Context, within time.Duration) error {
	if store, ok := n.store.(Growing); ok {
		err := n.room.Prove(ctx, min(within, roomProof), func(ctx context.Context) error {
			// The committer calls it, so that a hanging disk blocks the committer and not the caller.
			return n.do(ctx, &call{run: func(*Txn) error { return store.Room() }})
		})
		if err != nil {
			return err
		}
	}
	return n.writes.Prove(ctx, within, func(ctx context.Context) error {
		return n.do(ctx, &call{writes: true, run: (*Txn).rewrite})
	})
}

// do queues a call and waits for it, or for ctx; the call may then still take
// effect.
func (n *Node) do(ctx context.Context, c *call) error {
	c.ctx, c.done = ctx, make(chan struct{})
	select {
	case <-n.closed:
		return node.ErrNodeDown
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

// commitAll executes the queued jobs, each time all of them in one transaction, until the node is closed.
func (n *Node) commitAll() {
	jobs := make([]job, 0, n.opts.Batch)
	for {
		select {
		case <-n.closed:
			n.drain()
			return
		case first := <-n.queue:
			jobs = n.collect(append(jobs[:0], first))
			n.commit(jobs)
			clear(jobs) // so that no caller's memory is kept
		}
	}
}

// patience is how long a transaction waits for further operations that are worth the wait.
const patience = 2 * time.Millisecond

// collect adds what is queued behind the first job.
func (n *Node) collect(jobs []job) []job {
	jobs = n.gather(jobs)
	if !incomplete(jobs) {
		return jobs
	}
	over := time.NewTimer(patience)
	defer over.Stop()
	for incomplete(jobs) && len(jobs) < n.opts.Batch {
		select {
		case j := <-n.queue:
			jobs = n.gather(append(jobs, j))
		case <-over.C:
			return jobs
		case <-n.closed:
			return jobs
		}
	}
	return jobs
}

// incomplete reports whether the jobs should wait for another one. A waiter's acquire follows directly after
// the release before it: in one transaction they are a hand-off. If all jobs are patient, the next release can
// share their transaction.
func incomplete(jobs []job) bool {
	patient, released := true, ""
	for i := range jobs {
		op := jobs[i].op
		patient = patient && op != nil && op.Patient
		switch {
		case op == nil:
		case op.Kind == node.OpRelease && op.Ticket.Server != "":
			released = op.Resource
		case op.Kind == node.OpAcquire && op.Resource == released && !op.Patient:
			released = ""
		}
	}
	return patient || released != ""
}

// gather takes the queued jobs. It yields first, so that callers that are about to submit get into this
// transaction.
func (n *Node) gather(jobs []job) []job {
	runtime.Gosched()
	for len(jobs) < n.opts.Batch {
		select {
		case j := <-n.queue:
			jobs = append(jobs, j)
		default:
			return jobs
		}
	}
	return jobs
}

// drainIfClosed fails jobs that were queued after the committer had ended.
func (n *Node) drainIfClosed() {
	select {
	case <-n.closed:
		n.drain()
	default:
	}
}

// drain fails all queued jobs.
func (n *Node) drain() {
	for {
		select {
		case j := <-n.queue:
			j.finish(node.ErrNodeDown, false)
		default:
			return
		}
	}
}

// commit executes the jobs in one transaction and then delivers all replies. If the jobs are too many for the
// store, or one of them finds an unreadable row, commit splits them in half. So in the end only the job with
// the unreadable row fails.
func (n *Node) commit(jobs []job) {
	began := time.Now()
	err := n.run(jobs)
	if half := len(jobs) / 2; half > 0 && (errors.Is(err, ErrTooLarge) || errors.Is(err, ErrUnreadable)) {
		n.commit(jobs[:half])
		n.commit(jobs[half:])
		return
	}
	n.opts.Meter.Batch(len(jobs), time.Since(began), err != nil)
	if took := time.Since(began); err != nil && took < n.opts.Timeout/2 {
		jobs = n.readAgain(jobs)
	}
	if errors.Is(err, ErrUnreadable) {
		n.reportDamage(err)
	}
	for i := range jobs {
		jobs[i].finish(err, true)
	}
}

// readAgain executes the read-only calls in a separate transaction, after one in which the writes of other jobs
// failed: a store that cannot be written still serves reads, and an observation must not take it for unreachable.
// It returns the other jobs.
func (n *Node) readAgain(jobs []job) (others []job) {
	var reading []job
	for _, j := range jobs {
		if j.call != nil && !j.writes() {
			reading = append(reading, j)
		} else {
			others = append(others, j)
		}
	}
	if len(reading) == 0 || len(others) == 0 {
		return jobs
	}
	n.commit(reading)
	return others
}

// run executes the jobs in one transaction, and records whether that proves that the store can be written. A
// transaction that is too large or finds a damaged row proves nothing.
func (n *Node) run(jobs []job) error {
	do := func(t *Txn) {
		for i := range jobs {
			jobs[i].run(t)
		}
	}
	deadline := n.deadline(jobs)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if !slices.ContainsFunc(jobs, func(j job) bool { return j.writes() }) {
		return n.store.View(ctx, func(tx Tx) error { return n.in(tx, do) })
	}
	wrote, err := n.update(ctx, do)
	switch {
	case err == nil && wrote:
		n.writes.Done()
	case err != nil && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrUnreadable):
		n.writes.FailedBy(deadline, err)
	}
	return err
}

// deadline returns the transaction's deadline. An admission that deletes many rows of a slow store has its
// own, later deadline.
func (n *Node) deadline(jobs []job) time.Time {
	latest := time.Now().Add(n.opts.Timeout)
	for i := range jobs {
		if jobs[i].call == nil {
			continue
		}
		if at, ok := jobs[i].call.ctx.Deadline(); ok && at.After(latest) {
			latest = at
		}
	}
	return latest
}

func (n *Node) in(tx Tx, do func(*Txn)) error {
	return n.machine.In(tx, func(t *Txn) error {
		do(t)
		return nil
	})
}

// update reports whether anything was written.
func (n *Node) update(ctx context.Context, do func(*Txn)) (wrote bool, err error) {
	err = n.store.Update(ctx, func(tx Tx) error {
		puts := &puts{Tx: tx} // of this run; fn may run several times, and only the last run counts
		err := n.in(puts, do)
		wrote = puts.any
		return err
	})
	return wrote, err
}

// puts is a transaction that records whether it has put a row. Deletions do not count, since they may have
// found nothing to delete.
type puts struct {
	Tx
	any bool
}

func (p *puts) Put(key string, value []byte, ttl time.Duration) {
	p.any = true
	p.Tx.Put(key, value, ttl)
}

// reportDamage logs, at most once a minute, that a row cannot be read. The node's state shows other failures.
func (n *Node) reportDamage(err error) {
	if time.Since(n.damage) > time.Minute {
		n.damage = time.Now()
		n.opts.Logger.Error("a row of the store is damaged: only requests that need it fail; restore a backup", "node", n.name, "error", err)
	}
}
