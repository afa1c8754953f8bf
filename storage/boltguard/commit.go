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
	value    json.RawMessage // of a write; nil deletes the one before
	at       time.Time

	done     chan struct{} // closed once what follows may be read
	err      error
	compared fencing.Token // the mark before; larger than token when refused
	record   fencing.Record
	grown    fencing.Usage // what the file holds more
}

// committer puts operations that wait at the same time into one synced
// transaction. bbolt's own DB.Batch would do, but for its time limit: it is a
// field of the shared DB, 10 ms by default, and a lone writer waits it out.
// Here the first of those who wait commits for all, at once.
type committer struct {
	file File

	mu      sync.Mutex
	waiting []*operation
	leading bool // a goroutine is committing, and will look at waiting again
	closed  bool
	usage   fencing.Usage
	leaders sync.WaitGroup
}

// do returns once op is in the file, or with ctx.Err() as soon as its caller
// gives up; op may then still take effect.
func (c *committer) do(op *operation) error {
	if err := op.ctx.Err(); err != nil {
		return err
	}
	op.done = make(chan struct{})
	if err := c.enqueue(op); err != nil {
		return err
	}
	select {
	case <-op.done:
		return op.err
	case <-op.ctx.Done():
		return op.ctx.Err()
	}
}

func (c *committer) enqueue(op *operation) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosed
	}
	if c.waiting = append(c.waiting, op); !c.leading {
		// The leader may continue for others after its own operation is done, so
		// it is not the caller's goroutine.
		c.leading = true
		c.leaders.Go(c.lead)
	}
	return nil
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
	c.waiting, c.leading = nil, batch != nil
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
		if op.err == nil {
			c.grow(op.grown)
		}
		close(op.done)
	}
}

func (c *committer) grow(by fencing.Usage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.usage.Records += by.Records
	c.usage.Bytes += by.Bytes
}

// run applies one operation. An operation whose caller has gone does nothing.
func (op *operation) run(tx *bbolt.Tx) error {
	if op.err = op.ctx.Err(); op.err == nil {
		return apply(tx, op)
	}
	return nil // op.err is the operation's own, and none of the transaction
}

func (c *committer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.leaders.Wait()
}
