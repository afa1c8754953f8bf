package redisnode

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/lockcore/node"
)

// probePause is the time between two pings of a node that failed.
const probePause = 20 * time.Millisecond

// send is the node's only sender. In a loop, it sends all queued operations as one script call, until the node
// is closed.
func (n *Node) send() {
	b := &batch{node: n, jobs: make([]job, 0, n.opts.Batch)}
	defer b.disconnect()
	for {
		select {
		case <-n.closed:
			n.drain(node.ErrNodeDown)
			return
		case first := <-n.queue:
			b.collect(first)
		}
		if err := b.run(); err != nil {
			n.awaitAnswer(err)
		}
	}
}

// awaitAnswer pings a failed node until it responds. Meanwhile every operation fails at once, unsent.
// Otherwise one batch after another would wait for the time limit.
func (n *Node) awaitAnswer(cause error) {
	why := fmt.Errorf("%w: %w", node.ErrNodeDown, explain(cause))
	n.down.Store(&why)
	defer n.down.Store(nil)
	for {
		n.drain(why)
		ctx, cancel := context.WithTimeout(context.Background(), max(n.opts.Timeout, time.Second/4))
		err := n.client.Ping(ctx).Err()
		cancel()
		if err == nil {
			return
		}
		select {
		case <-n.closed:
			return
		case <-time.After(probePause):
		}
	}
}

// drain fails all queued operations.
func (n *Node) drain(why error) {
	for {
		select {
		case j := <-n.queue:
			j.sink.Deliver(j.index, node.Reply{Err: why})
		default:
			return
		}
	}
}

// batch is one script call in preparation. It reuses its memory.
type batch struct {
	node    *Node
	jobs    []job
	patient bool // all jobs are patient
	args    []any
	ops     packer
	epoch   node.Epoch
	byMap   string // the name of the map by which all votes of the call are counted

	conn  *redis.Conn // the connection that the sender keeps; nil if it keeps none
	used  time.Time   // when conn last got a reply
	limit deadline
}

// patience is how long a batch of only patient operations waits for more operations.
const patience = time.Millisecond

// collect gathers the first job and the jobs that are queued behind it.
func (b *batch) collect(first job) {
	b.jobs, b.patient = b.jobs[:0], true
	b.take(first)
	b.gather()
	if !b.patient {
		return
	}
	over := time.NewTimer(patience)
	defer over.Stop()
	for b.patient && len(b.jobs) < b.node.opts.Batch {
		select {
		case j := <-b.node.queue:
			b.take(j)
			b.gather()
		case <-over.C:
			return
		case <-b.node.closed:
			return
		}
	}
}

// gather takes the queued jobs. It yields first, so that callers that are about to submit get into this batch.
func (b *batch) gather() {
	for grown := 0; grown < len(b.jobs) && len(b.jobs) < b.node.opts.Batch; {
		grown = len(b.jobs)
		runtime.Gosched()
		b.takeQueued()
	}
}

// takeQueued takes queued jobs until the batch is full.
func (b *batch) takeQueued() {
	for len(b.jobs) < b.node.opts.Batch {
		select {
		case j := <-b.node.queue:
			b.take(j)
		default:
			return
		}
	}
}

func (b *batch) take(j job) {
	b.jobs = append(b.jobs, j)
	b.patient = b.patient && j.op.Patient
}

// run sends the batch in one call for each of its epochs and maps (nearly always one) and
// delivers every reply. It returns an error if the node failed.
func (b *batch) run() error {
	rest := b.jobs
	for len(rest) > 0 {
		var now []job
		now, rest = b.cut(rest)
		if len(now) == 0 {
			continue
		}
		if err := b.call(now); err != nil {
			fail(rest, node.Reply{Err: explain(err)})
			return err
		}
	}
	return nil
}

// cut takes from the front the jobs that can share one call: their deadlines have not passed, and those that
// need an epoch or a map have the same one. Jobs whose deadline has passed fail here.
func (b *batch) cut(jobs []job) (now, rest []job) {
	b.epoch, b.byMap = 0, ""
	epochal, mapped := false, false
	b.ops.reset()
	kept := jobs[:0:len(jobs)]
	at := time.Now()
	for i, j := range jobs {
		if !j.op.Deadline.IsZero() && at.After(j.op.Deadline) {
			j.sink.Deliver(j.index, node.Reply{Err: errTimeout})
			continue
		}
		if j.op.InEpoch() && epochal && j.op.Epoch != b.epoch || j.op.Mapped() && mapped && j.op.Map != b.byMap {
			return kept, jobs[i:]
		}
		if j.op.InEpoch() {
			b.epoch, epochal = j.op.Epoch, true
		}
		if j.op.Mapped() {
			b.byMap, mapped = j.op.Map, true
		}
		kept = append(kept, j)
		b.ops.op(j.op)
	}
	return kept, nil
}

// call makes one script call and delivers its replies.
func (b *batch) call(jobs []job) error {
	b.args = append(append(b.args[:0], voteScript.args...), b.node.mark, int64(b.epoch), millis(b.node.opts.CounterTTL), b.byMap, b.ops.bytes())
	began := time.Now()
	text, err := b.send(began)
	b.used = time.Now()
	b.node.meter.Batch(len(jobs), b.used.Sub(began), err != nil)
	replies := unpacker{rest: text}
	if err == nil {
		if got := replies.array(); got != len(jobs) {
			if !replies.bad {
				b.node.meter.Miscounted(len(jobs), got)
			}
			err = fmt.Errorf("the node sent %d replies to %d operations", got, len(jobs))
		}
	}
	if err != nil {
		b.node.writes.Doubt()
		b.disconnect()
		fail(jobs, node.Reply{Err: explain(err), Sent: reached(err)})
		return err
	}
	granted, failed := false, false
	for _, j := range jobs {
		reply := parseAnswer(&replies, j.op)
		granted = granted || j.op.Kind == node.OpAcquire && reply.Outcome == node.Granted
		failed = failed || reply.Outcome == node.Failed
		j.sink.Deliver(j.index, reply)
	}
	switch {
	case failed: // by a damaged row, or since the node takes no writes
		b.node.writes.Doubt()
	case granted:
		b.node.writes.Done()
	}
	return nil
}

// restTime is how long the sender keeps an unused connection: less time than a server needs to restart. The
// library's pool checks whether a connection is open before it hands it out. A batch that directly follows
// another does not need this system call.
const restTime = 5 * time.Millisecond

// send sends the arguments over the sender's connection. If the sender has none, it takes one from the pool
// and keeps it.
func (b *batch) send(now time.Time) (string, error) {
	timeout := b.node.opts.Timeout
	if b.conn != nil && now.Sub(b.used) < restTime {
		b.limit = deadline{Context: context.Background(), at: now.Add(timeout)}
		return voteScript.run(&b.limit, b.conn, b.args).Text()
	}
	b.disconnect()
	b.conn = b.node.client.Conn()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return voteScript.run(ctx, b.conn, b.args).Text()
}

// disconnect gives the connection back to the pool, which closes it after an error.
func (b *batch) disconnect() {
	if b.conn != nil {
		_ = b.conn.Close() // the connection is not used again, so its error changes nothing
		b.conn = nil
	}
}

// deadline is a context without a timer. This suffices for an open connection, because the library sets the
// deadline on the connection itself.
type deadline struct {
	context.Context
	at time.Time
}

func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }

func fail(jobs []job, reply node.Reply) {
	for _, j := range jobs {
		j.sink.Deliver(j.index, reply)
	}
}
