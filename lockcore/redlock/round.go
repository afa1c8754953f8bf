package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// round is one operation on all nodes of a set: an extend, a release or a read. It counts only the replies to
// its own operation (rule 5). It ends when decided reports that no further reply can matter, at its limit, or
// when the caller leaves.
type round struct {
	op      node.Op
	began   time.Time
	decided func(*ballot) bool
	late    func(op *node.Op, b *ballot, i int, reply node.Reply) // takes a reply after the end; may be nil
	done    chan struct{}

	mu     sync.Mutex
	ballot ballot
	ended  bool
}

func runRound(ctx context.Context, nodes []node.Node, op node.Op, limit time.Duration, decided func(*ballot) bool) ballot {
	return startRound(nodes, op, limit, decided, nil).wait(ctx)
}

// startRound sends the operation. The caller must call wait.
func startRound(nodes []node.Node, op node.Op, limit time.Duration, decided func(*ballot) bool, late func(*node.Op, *ballot, int, node.Reply)) *round {
	r := &round{op: op, began: time.Now(), decided: decided, late: late, done: make(chan struct{}), ballot: newBallot(len(nodes))}
	r.op.Deadline = r.began.Add(limit)
	for i, n := range nodes {
		n.Submit(&r.op, i, r)
	}
	return r
}

// wait returns the replies that came before the end.
func (r *round) wait(ctx context.Context) ballot {
	timer := time.NewTimer(time.Until(r.op.Deadline))
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.ballot.elapsed = time.Since(r.began)
	r.ballot.cause = ctx.Err()
	r.ballot.early = ctx.Err() == nil && time.Now().Before(r.op.Deadline)
	return r.ballot
}

// Deliver takes node i's reply.
func (r *round) Deliver(i int, reply node.Reply) {
	if !r.add(i, reply) && r.late != nil {
		r.late(&r.op, &r.ballot, i, reply) // the ballot does not change after the end
	}
}

// add reports whether the reply came before the end.
func (r *round) add(i int, reply node.Reply) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	r.ballot.add(i, reply)
	if r.ballot.open() == 0 || r.decided(&r.ballot) {
		r.ended = true
		close(r.done)
	}
	return true
}
