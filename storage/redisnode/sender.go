package redisnode

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// probePause is how long a node that failed is left alone between looks.
const probePause = 20 * time.Millisecond

// send is the node's one sender: it takes what is queued and sends it as one
// script call, until the node is closed.
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
			n.rest(err)
		}
	}
}

// rest lets a node that failed alone: what is queued, and what comes until it
// answers a ping, fails at once instead of waiting for the time limit, one
// batch after another. Nothing of it was sent, so nothing needs cleaning up.
func (n *Node) rest(cause error) {
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

// batch is one script call in the making. Its memory is used again and again.
type batch struct {
	node  *Node
	jobs  []job
	args  []any
	ops   packer
	epoch node.Epoch
}

// collect gathers the first job and what is queued behind it. It gives way once
// before it drains: callers that are about to submit get into this batch.
func (b *batch) collect(first job) {
	b.jobs = append(b.jobs[:0], first)
	for grown := 0; grown < len(b.jobs) && len(b.jobs) < b.node.opts.Batch; {
		grown = len(b.jobs)
		runtime.Gosched()
		b.drain()
	}
}

// drain takes what is queued, up to a full batch.
func (b *batch) drain() {
	for len(b.jobs) < b.node.opts.Batch {
		select {
		case j := <-b.node.queue:
			b.jobs = append(b.jobs, j)
		default:
			return
		}
	}
}

// run sends the batch, in as many calls as it has epochs (one, but around a
// change), and delivers every reply. An error means that the node failed.
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

// cut takes the jobs from the front that go in one call: same epoch, and not
// too late. Those that are too late are answered here.
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

func (n *Node) keep() string { return millis(n.opts.CounterTTL) }

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

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
	case node.OpRetract:
		p.strs("t", op.Resource, op.Owner, op.Attempt)
		p.int(int64(op.Above))
	case node.OpRead:
		p.strs("g", op.Resource)
	case node.OpEnqueue:
		p.strs("n", op.Resource, op.Ticket.ID, op.Ticket.Server)
		p.int(op.Ticket.Arrival)
		p.str(op.Ticket.Holder)
	case node.OpDequeue:
		p.strs("d", op.Resource, op.Ticket.ID, op.Ticket.Server, op.Ticket.Holder)
	case node.OpHeartbeat:
		p.strs("h", op.Ticket.Server)
		p.int(op.TTL.Milliseconds())
	default:
		panic(fmt.Sprintf("redisnode: operation of unknown kind %d", op.Kind))
	}
}

func (p *packer) strs(texts ...string) {
	for _, text := range texts {
		p.str(text)
	}
}

// owned writes an operation that names an owner and its token.
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
		p.strs(op.Ticket.ID, op.Ticket.Server)
		p.int(op.Ticket.Arrival)
		p.str(op.Ticket.Holder)
	}
}

// call sends one script call and delivers its replies.
func (b *batch) call(jobs []job) error {
	n := b.node
	ctx, cancel := context.WithTimeout(context.Background(), n.opts.Timeout)
	defer cancel()
	b.args = append(append(b.args[:0], n.scripts.vote.args...), n.mark(), int64(b.epoch), n.keep(), b.ops.bytes())
	began := time.Now()
	text, err := n.scripts.vote.run(ctx, n.client, b.args).Text()
	n.meter.Batch(len(jobs), time.Since(began), err != nil)
	replies := unpacker{rest: text}
	if err == nil {
		if got := replies.array(); got != len(jobs) {
			err = fmt.Errorf("%d replies to %d operations", got, len(jobs))
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

// parseAnswer reads the answer to one operation: a line, or for a read a line
// and the waiters.
func parseAnswer(u *unpacker) node.Reply {
	if !u.isArray() {
		return parseReply(u.str())
	}
	parts := u.array()
	reply := parseReply(u.str())
	if reply.Outcome == node.Held { // in an answer to a read, that is what was asked
		reply.Outcome = node.Granted
	}
	reply.Waiting = u.count()
	for at := 2; at+1 < parts && !u.bad; at += 2 {
		ticket := parseTicket(u.str())
		if arrival, err := strconv.ParseFloat(u.str(), 64); err == nil {
			ticket.Arrival = int64(arrival)
			reply.Queue = append(reply.Queue, ticket)
		}
	}
	if u.bad {
		return unreadable("")
	}
	return reply
}

// parseTicket reads a member of a queue: "id server holder".
func parseTicket(member string) (t node.Ticket) {
	id, rest, _ := strings.Cut(member, " ")
	t.ID = id
	t.Server, t.Holder, _ = strings.Cut(rest, " ")
	return t
}

// parseReply reads one line of vote.lua's answer.
func parseReply(text string) node.Reply {
	if len(text) == 0 {
		return unreadable(text)
	}
	f := fields{rest: strings.TrimPrefix(text[1:], " ")}
	var r node.Reply
	switch text[0] {
	case 'G':
		r = node.Reply{Outcome: node.Granted, Grant: f.token(), Remaining: f.millis(), Meta: f.tail()}
	case 'E':
		r = node.Reply{Outcome: node.Granted, Existing: true, Grant: f.token(), Remaining: f.millis(), TTL: f.millis(), Meta: f.tail()}
	case 'C':
		r = node.Reply{Outcome: node.Granted, Recreated: true, Grant: f.token(), Remaining: f.millis()}
	case 'H':
		r = node.Reply{Outcome: node.Held, Grant: f.token(), Remaining: f.millis(), TTL: f.millis(), Waiting: int(f.number()), Owner: f.word(), Meta: f.tail()}
	case 'W':
		r = node.Reply{Outcome: node.Queued}
	case 'N':
		r = node.Reply{Outcome: node.NotHeld}
	case 'O':
		r = node.Reply{Outcome: node.OtherResource}
	case 'Q':
		r = node.Reply{Outcome: node.Exhausted}
	case 'S':
		r = node.Reply{Outcome: node.StaleEpoch, Epoch: node.Epoch(f.number())}
	case 'X':
		r = node.Reply{Outcome: node.NotAdmitted, Epoch: node.Epoch(f.number())}
	case 'T':
		return node.Reply{Err: node.ErrUnreachableToken, Sent: true}
	case '!':
		return node.Reply{Err: fmt.Errorf("the node refused the operation: %s", f.rest), Sent: true}
	default:
		return unreadable(text)
	}
	if f.bad {
		return unreadable(text)
	}
	return r
}

func unreadable(text string) node.Reply {
	const shown = 1 // never more: a line may hold an owner
	return node.Reply{Err: fmt.Errorf("unreadable reply %.*q…", shown, text), Sent: true}
}

// fields reads blank-separated fields from the front of a line.
type fields struct {
	rest string
	bad  bool
}

func (f *fields) word() string {
	word := f.perhaps()
	f.bad = f.bad || word == ""
	return word
}

// perhaps reads a field that may be empty.
func (f *fields) perhaps() (word string) {
	word, f.rest, _ = strings.Cut(f.rest, " ")
	return word
}

// number reads a number that the node can hold exactly.
func (f *fields) number() int64 {
	n, err := strconv.ParseInt(f.word(), 10, 64)
	if err != nil || n < 0 || n > int64(fencing.MaxToken) {
		f.bad = true
		return 0
	}
	return n
}

func (f *fields) token() fencing.Token  { return fencing.Token(f.number()) }
func (f *fields) tail() string          { return f.rest }
func (f *fields) millis() time.Duration { return inMillis(f.number()) }

// inMillis makes a duration of milliseconds. No broken node gets one above a
// year out of it, or one below zero.
func inMillis(n int64) time.Duration {
	const year = 365 * 24 * time.Hour
	return time.Duration(min(max(n, 0), year.Milliseconds())) * time.Millisecond
}
