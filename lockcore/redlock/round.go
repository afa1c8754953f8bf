package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// poll is a round that only asks: extend, release, read. It counts nothing but
// the replies to its own question (rule 5), and ends as soon as enough says
// that no further reply can matter, at its limit, or when the caller goes away.
type round struct {
	n      int
	enough func(*ballot) bool
	late   func(b *ballot, i int, reply node.Reply) // takes what is answered after the end, and how that was; may be nil
	began  time.Time
	op     node.Op
	done   chan struct{}

	mu     sync.Mutex
	ballot ballot
	ended  bool
}

// ballot is the replies of a poll. A node that has not answered is Failed with
// errNoAnswer.
type ballot struct {
	n, quorum int
	replies   [quorum.MaxNodes]node.Reply
	answered  nodeSet
	open      int  // nodes that have not answered yet
	early     bool // it ended before its limit: the silent were not waited for
	elapsed   time.Duration
	cause     error // the context's, when the caller went away
}

func runRound(ctx context.Context, nodes []node.Node, op node.Op, limit time.Duration, enough func(*ballot) bool) ballot {
	return startRound(nodes, op, limit, enough, nil).wait(ctx)
}

// startRound asks the nodes; wait for the answers must follow.
func startRound(nodes []node.Node, op node.Op, limit time.Duration, enough func(*ballot) bool, late func(*ballot, int, node.Reply)) *round {
	p := &round{
		n: len(nodes), enough: enough, late: late, op: op,
		began:  time.Now(),
		done:   make(chan struct{}),
		ballot: ballot{n: len(nodes), quorum: quorum.Of(len(nodes)), open: len(nodes)},
	}
	for i := range nodes {
		p.ballot.replies[i] = node.Reply{Outcome: node.Failed, Err: errNoAnswer, Sent: true}
	}
	p.op.Deadline = p.began.Add(limit)
	for i, n := range nodes {
		n.Submit(&p.op, i, p)
	}
	return p
}

// wait returns the replies once they are enough, at the limit, or when ctx ends.
func (p *round) wait(ctx context.Context) ballot {
	timer := time.NewTimer(time.Until(p.op.Deadline))
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.ballot.elapsed = time.Since(p.began)
	p.ballot.cause = ctx.Err()
	p.ballot.early = ctx.Err() == nil && time.Now().Before(p.op.Deadline)
	return p.ballot
}

// Deliver takes node i's answer.
func (p *round) Deliver(i int, reply node.Reply) {
	if !p.take(i, reply) && p.late != nil {
		p.late(&p.ballot, i, reply) // the replies in it do not change any more
	}
}

// take reports whether the answer came before the end.
func (p *round) take(i int, reply node.Reply) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	p.ballot.replies[i] = reply
	p.ballot.answered |= only(i)
	p.ballot.open--
	if p.ballot.open == 0 || p.enough(&p.ballot) {
		p.ended = true
		close(p.done)
	}
	return true
}

// count counts the nodes that answered with the outcome.
func (b *ballot) count(outcome node.Outcome) (n int) {
	for i := range b.replies[:b.n] {
		if b.answered.has(i) && b.replies[i].Outcome == outcome {
			n++
		}
	}
	return n
}

// heard counts the nodes that answered usably: admitted, and not failed.
func (b *ballot) heard() int { return b.count(node.Granted) + b.count(node.NotHeld) }

// decided is enough for calls that need a quorum of Granted.
func (b *ballot) decided() bool {
	granted := b.count(node.Granted)
	return granted >= b.quorum || granted+b.open < b.quorum
}
