package redisnode

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// probePause is the time between two pings of a node that failed.
const probePause = 20 * time.Millisecond

// send is the node's only sender: it sends what is queued as one script call, again and
// again until the node is closed.
func (n *Node) send() {
	b := &batch{node: n, jobs: make([]job, 0, n.opts.Batch)}
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

// awaitAnswer pings a node that failed until it answers. Meanwhile every operation fails
// at once, unsent, instead of waiting for the time limit, one batch after another.
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

// drain fails what is queued.
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

// batch is one script call in the making. It uses its memory again.
type batch struct {
	node  *Node
	jobs  []job
	args  []any
	ops   packer
	epoch node.Epoch
}

// collect gathers the first job and what is queued behind it. It yields before it
// takes more, so that callers which are about to submit get into this batch.
func (b *batch) collect(first job) {
	b.jobs = append(b.jobs[:0], first)
	for grown := 0; grown < len(b.jobs) && len(b.jobs) < b.node.opts.Batch; {
		grown = len(b.jobs)
		runtime.Gosched()
		b.takeQueued()
	}
}

// takeQueued takes what is queued, up to a full batch.
func (b *batch) takeQueued() {
	for len(b.jobs) < b.node.opts.Batch {
		select {
		case j := <-b.node.queue:
			b.jobs = append(b.jobs, j)
		default:
			return
		}
	}
}

// run sends the batch in one call for each of its epochs (nearly always one) and
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

// cut takes the jobs of one call from the front: those of one epoch whose deadline has
// not passed. It answers those that are too late.
func (b *batch) cut(jobs []job) (now, rest []job) {
	b.epoch = 0
	b.ops.reset()
	kept := jobs[:0:len(jobs)]
	at := time.Now()
	for i, j := range jobs {
		if !j.op.Deadline.IsZero() && at.After(j.op.Deadline) {
			j.sink.Deliver(j.index, node.Reply{Err: errTimeout})
			continue
		}
		if v := j.op.Epoch; v != 0 && b.epoch != 0 && v != b.epoch {
			return kept, jobs[i:]
		} else if v != 0 {
			b.epoch = v
		}
		kept = append(kept, j)
		b.ops.op(j.op)
	}
	return kept, nil
}

// op writes an operation as vote.lua reads it.
func (p *packer) op(op *node.Op) {
	switch op.Kind {
	case node.OpAcquire:
		p.acquire(op)
	case node.OpConfirm:
		p.owned("c", op)
	case node.OpExtend:
		p.owned("e", op)
		p.int(op.TTL.Milliseconds())
	case node.OpRelease:
		p.owned("r", op)
	case node.OpReleaseAfter:
		p.owned("k", op)
		p.int(op.TTL.Milliseconds())
	case node.OpRetract:
		p.strs("t", op.Resource, op.Owner, op.Attempt)
		p.int(int64(op.Above))
	case node.OpRead:
		p.strs("g", op.Resource)
	case node.OpEnqueue:
		p.strs("n", op.Resource)
		p.ticket(op.Ticket)
	case node.OpDequeue:
		p.strs("d", op.Resource, op.Ticket.ID, op.Ticket.Server, op.Ticket.Holder, flag(op.Ticket.Keyed))
	case node.OpHeartbeat:
		p.strs("h", op.Ticket.Server)
		p.int(op.TTL.Milliseconds())
	default:
		panic(fmt.Sprintf("redisnode: operation of unknown kind %d", op.Kind))
	}
}

// owned writes an operation that has an owner and its token.
func (p *packer) owned(kind string, op *node.Op) {
	p.strs(kind, op.Resource, op.Owner)
	p.int(int64(op.Token))
}

func (p *packer) acquire(op *node.Op) {
	kind := "a"
	if op.Ticket.ID != "" {
		kind = "w"
	}
	p.strs(kind, op.Resource, op.Owner)
	p.int(op.TTL.Milliseconds())
	p.strs(op.Attempt, op.Scope, op.Meta)
	if op.Ticket.ID != "" {
		p.ticket(op.Ticket)
	}
}

func (p *packer) ticket(t node.Ticket) {
	p.strs(t.ID, t.Server)
	p.int(t.Arrival)
	p.strs(t.Holder, flag(t.Keyed))
}

func flag(set bool) string {
	if set {
		return "1"
	}
	return ""
}

// call sends one script call and delivers its replies.
func (b *batch) call(jobs []job) error {
	n := b.node
	ctx, cancel := context.WithTimeout(context.Background(), n.opts.Timeout)
	defer cancel()
	b.args = append(append(b.args[:0], voteScript.args...), n.mark(), int64(b.epoch), millis(n.opts.CounterTTL), b.ops.bytes())
	began := time.Now()
	text, err := voteScript.run(ctx, n.client, b.args).Text()
	n.meter.Batch(len(jobs), time.Since(began), err != nil)
	replies := unpacker{rest: text}
	if err == nil {
		if got := replies.array(); got != len(jobs) {
			err = fmt.Errorf("the node sent %d replies to %d operations", got, len(jobs))
		}
	}
	if err != nil {
		fail(jobs, node.Reply{Err: explain(err), Sent: reached(err)})
		return err
	}
	for _, j := range jobs {
		j.sink.Deliver(j.index, parseAnswer(&replies))
	}
	return nil
}

func fail(jobs []job, reply node.Reply) {
	for _, j := range jobs {
		j.sink.Deliver(j.index, reply)
	}
}
