package nodetest

import (
	"fmt"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// SubmitBatch submits operations so that the node executes them in one batch, if it supports batches, and
// waits for their replies.
func SubmitBatch(n node.Voter, ops ...node.Op) ([]node.Reply, error) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	busy := hold{delivering: make(chan struct{}), free: make(chan struct{})}
	go n.Submit(&node.Op{Kind: node.OpRead, Resource: "read first"}, 0, busy) // a Model delivers before it returns
	select {
	case <-busy.delivering:
	case <-timeout.C:
		return nil, fmt.Errorf("no reply to a read within %s", patience)
	}
	delivered := make(sink, 2*len(ops))
	for i := range ops {
		n.Submit(&ops[i], i, delivered)
	}
	close(busy.free)
	replies := make([]node.Reply, len(ops))
	for range ops {
		select {
		case d := <-delivered:
			replies[d.index] = d.reply
		case <-timeout.C:
			return nil, fmt.Errorf("no replies to a batch of %d operations within %s", len(ops), patience)
		}
	}
	return replies, nil
}

// hold blocks a node while it delivers a reply, so that operations submitted meanwhile queue up.
type hold struct{ delivering, free chan struct{} }

// Deliver waits until the batch is complete.
func (h hold) Deliver(int, node.Reply) {
	close(h.delivering)
	<-h.free
}

// stranger is the server of the strangers' tickets. Enqueueing them keeps it alive.
const stranger = "stranger"

// strangers are operations of callers unrelated to a test. None of them changes a counter or a lock.
func (s *suite) strangers() []node.Op {
	const resource, owner = "a stranger's", "Stranger"
	ticket := node.Ticket{ID: "stranger", Server: stranger, Arrival: 5, Holder: "a stranger"}
	early, late, elsewhere := acquire(resource, owner), acquire(resource, owner), acquire(resource, owner)
	early.Epoch, late.Epoch = 0, s.epoch+1
	elsewhere.Epoch, elsewhere.Map = s.epoch, "elsewhere"
	absent := node.Op{Kind: node.OpConfirm, Epoch: s.epoch, Resource: resource, Owner: owner, Token: 1}
	wait := node.Op{Kind: node.OpEnqueue, Epoch: s.epoch, Resource: resource, Ticket: ticket}
	return []node.Op{
		early, read(resource), wait, {Kind: node.OpRelease, Resource: resource, Owner: owner, Token: 1}, late, absent, retract(resource, owner),
		elsewhere, {Kind: node.OpDequeue, Resource: resource, Ticket: ticket}, early,
	}
}

// amid executes an operation in one batch between strangers' operations. The strangers get the same replies
// before and after it.
func (s *suite) amid(op node.Op) node.Reply {
	s.Helper()
	before, after := s.strangers(), s.strangers()
	replies, err := SubmitBatch(s.Node, append(append(before, op), after...)...)
	s.must(err)
	for i, theirs := range after {
		first, second := s.reply(theirs.Kind, replies[i]), s.reply(theirs.Kind, replies[len(before)+1+i])
		if second != first || theirs.Kind == node.OpAcquire && replies[i].Outcome == node.Granted {
			s.Errorf("a stranger's %s:\nbefore %s\n after %s\nthe operation in between: %s", brief(theirs), first, second, brief(op))
		}
	}
	return replies[len(before)]
}
