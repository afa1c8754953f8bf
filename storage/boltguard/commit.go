package boltguard

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/fencing"
)

var errClosed = errors.New("the guard is closed")

// operation is one claim or write: what is asked, and what came of it.
type operation struct {
	ctx      context.Context
	kind     fencing.AttemptKind
	resource string
	token    fencing.Token
	value    json.RawMessage // of a write
	at       time.Time

	done     chan struct{} // closed once what follows may be read
	err      error
	compared fencing.Token // the mark before; larger than token when refused
	record   fencing.Record
}

// committer puts operations that wait at the same time into one synced
// transaction. bbolt's own DB.Batch would do, but for its time limit: it is a
// field of the shared DB, 10 ms by default, and a lone writer waits it out.
// Here the first of those who wait commits for all, at once.
type committer struct {
	file File

	mu      sync.Mutex
	waiting []*operation
	leading bool // somebody is committing, and will look at waiting again
	closed  bool
	idle    *sync.Cond // signalled when leading ends
}

func newCommitter(db File) *committer {
	c := &committer{file: db}
	c.idle = sync.NewCond(&c.mu)
	return c
}

// do returns once op is in the file, or with ctx.Err() as soon as its caller
// gives up; op may then still take effect.
func (c *committer) do(op *operation) error {
	if err := op.ctx.Err(); err != nil {
		return err
	}
	op.done = make(chan struct{})
	lead, err := c.enqueue(op)
	if err != nil {
		return err
	}
	if lead {
		// The leader may go on for others after its own operation is done, so
		// it is not the caller's goroutine.
		go c.lead()
	}
	select {
	case <-op.done:
		return op.err
	case <-op.ctx.Done():
		return op.ctx.Err()
	}
}

func (c *committer) enqueue(op *operation) (lead bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false, errClosed
	}
	c.waiting = append(c.waiting, op)
	lead = !c.leading
	c.leading = true
	return lead, nil
}

// lead commits whatever waits until nothing does.
func (c *committer) lead() {
	for batch := c.next(); batch != nil; batch = c.next() {
		c.commit(batch)
	}
}

func (c *committer) next() []*operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := c.waiting
	c.waiting = nil
	if batch == nil {
		c.leading = false
		c.idle.Broadcast()
	}
	return batch
}

// commit runs a batch in one transaction: all of it reaches the file or none.
func (c *committer) commit(batch []*operation) {
	err := c.file.Update(func(tx *bbolt.Tx) error {
		for _, op := range batch {
			if err := op.run(tx); err != nil {
				return err
			}
		}
		return nil
	})
	for _, op := range batch {
		if op.err == nil {
			op.err = err
		}
		close(op.done)
	}
}

// run applies one operation. An operation whose caller has gone does nothing.
func (op *operation) run(tx *bbolt.Tx) error {
	op.err = op.ctx.Err()
	if op.err == nil {
		var err error
		op.compared, op.record, err = apply(tx, op)
		return err
	}
	return nil
}

func (c *committer) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for c.leading {
		c.idle.Wait()
	}
}
