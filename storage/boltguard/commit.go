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

// operation is one claim or write: the request and its result.
type operation struct {
	ctx      context.Context
	kind     fencing.AttemptKind
	resource string
	token    fencing.Token
	value    json.RawMessage // the value of a write; nil deletes the present value
	at       time.Time

	done     chan struct{} // closed when the fields below are set
	err      error
	compared fencing.Token // the mark before the operation; larger than token if it was refused
	record   fencing.Record
	grown    fencing.Usage // change of the file's usage
}

// committer puts operations that wait at the same time into one synced transaction. bbolt's own DB.Batch
// delays a lone writer for its time limit, a field of the shared DB that is 10 ms by default. Here the first
// waiting operation starts the commit of all at once.
type committer struct {
	file File

	mu      sync.Mutex
	waiting []*operation
	leading bool // a goroutine is committing, and will check waiting again
	closed  bool
	usage   fencing.Usage
	leaders sync.WaitGroup
}

// do returns after op is in the file. If ctx ends first, it returns ctx.Err() at once, and op may still take
// effect.
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
		// The leader may continue for others after its own operation is done, so it runs in a goroutine of its
		// own.
		c.leading = true
		c.leaders.Go(c.lead)
	}
	return nil
}

// lead commits waiting operations until none is left.
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

// commit runs a batch in one transaction, so all operations reach the file or none does.
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

// run applies one operation. It does nothing if the caller has given up.
func (op *operation) run(tx *bbolt.Tx) error {
	if op.err = op.ctx.Err(); op.err == nil {
		return apply(tx, op)
	}
	return nil // op.err fails only this operation, not the transaction
}

func (c *committer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.leaders.Wait()
}
