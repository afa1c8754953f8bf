package boltnode

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/lockcore"
)

var errTooLate = errors.New("the round had ended before the file was free")

// job is an operation with where its reply goes, or a call.
type job struct {
	op    *lockcore.Op
	index int
	sink  lockcore.Sink
	reply lockcore.Reply // kept back until it is in the file

	call *call
}

// call is anything else that is done in a transaction. What run finds out
// must be read only after done, and not at all when ctx ended first.
type call struct {
	writes bool
	run    func(*txn) error
	ctx    context.Context
	err    error
	done   chan struct{}
}

func (j *job) writes() bool {
	if j.call != nil {
		return j.call.writes
	}
	return j.op.Kind != lockcore.OpRead
}

// run does the job in t. What goes wrong with the file is in t.err.
func (j *job) run(t *txn) {
	switch {
	case j.call == nil:
		j.reply = t.vote(j.op)
	case j.call.ctx.Err() != nil:
		j.call.err = j.call.ctx.Err()
	default:
		j.call.err = j.call.run(t)
	}
}

// finish gives the answer; err is of the whole transaction.
func (j *job) finish(err error, sent bool) {
	if j.call != nil {
		if err != nil {
			j.call.err = err
		}
		close(j.call.done)
		return
	}
	if err != nil {
		j.reply = lockcore.Reply{Err: err, Sent: sent}
	}
	j.sink.Deliver(j.index, j.reply)
}

// work is the node's one committer: it takes what is queued and puts it into
// one transaction, and sweeps in between, until the node is closed.
func (n *Node) work() {
	jobs := make([]job, 0, n.opts.Batch)
	sweeper := newSweeper(n)
	defer sweeper.timer.Stop()
	failing := false
	for {
		select {
		case <-n.closed:
			n.drain()
			return
		case <-sweeper.timer.C:
			sweeper.sweep()
		case first := <-n.queue:
			jobs = n.collect(append(jobs[:0], first))
			failing = n.report(n.commit(jobs), failing)
			clear(jobs) // keeps no caller's memory
		}
	}
}

// collect adds what is queued behind the first job. It gives way once before
// it does: callers that are about to submit get into this transaction.
func (n *Node) collect(jobs []job) []job {
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

// drain fails what is queued.
func (n *Node) drain() {
	for {
		select {
		case j := <-n.queue:
			j.finish(lockcore.ErrNodeDown, false)
		default:
			return
		}
	}
}

// commit does the jobs in one transaction and then answers all of them.
func (n *Node) commit(jobs []job) error {
	writes := false
	for i := range jobs {
		writes = writes || jobs[i].writes()
	}
	began := time.Now()
	err := n.transact(writes, func(t *txn) {
		for i := range jobs {
			jobs[i].run(t)
		}
	})
	n.opts.Meter.Batch(len(jobs), time.Since(began), err != nil)
	for i := range jobs {
		jobs[i].finish(err, true)
	}
	return err
}

// transact runs f. When it returns nil, what f changed is in the file; with an
// error all of it is undone, unless it was the last sync that failed.
func (n *Node) transact(writes bool, f func(*txn)) error {
	run := n.db.View
	if writes {
		run = n.db.Update
	}
	var turns []turn
	err := run(func(tx *bbolt.Tx) error {
		t, err := n.begin(tx)
		if err != nil {
			return err
		}
		f(t)
		turns = t.turns
		return t.end()
	})
	if err != nil {
		return fmt.Errorf("the file of the embedded node: %w", err)
	}
	n.wakes.tell(turns)
	return nil
}

// report logs when commits begin to fail and when they succeed again.
func (n *Node) report(err error, failing bool) bool {
	switch {
	case err != nil && !failing:
		n.opts.Logger.Error("the embedded node cannot commit: nothing is granted", "error", err)
	case err == nil && failing:
		n.opts.Logger.Info("the embedded node commits again")
	}
	return err != nil
}

// late reports whether op's round has ended.
func late(op *lockcore.Op) bool { return !op.Deadline.IsZero() && time.Now().After(op.Deadline) }
