package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Prover is a Node that can prove that it can write. A full disk, a missing replica or a foreign lock do not
// affect reads, so an observation does not show them.
type Prover interface {
	// Prove returns nil if the node has committed a write of this server in the last `within`, and no write
	// has failed since. Otherwise it rewrites existing data unchanged. After a failed write it returns an
	// error for at least a second, so that a node on which only some writes fail does not seem sound in
	// between. It returns when ctx ends.
	Prove(ctx context.Context, within time.Duration) error
}

// failureStays is how long a failed write counts, even if others succeed.
const failureStays = time.Second

var errSlowWrite = errors.New("a write has taken too long")

// Writes records the outcomes of a node's writes, for Prove. The zero value has no record. All methods may be
// called from any goroutine.
type Writes struct {
	mu         sync.Mutex
	done, fail time.Time // time of the last success and of the last failure
	why        error     // reason of the last failure
}

// Done records a committed write.
func (w *Writes) Done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = time.Now()
}

// Failed records a failed write.
func (w *Writes) Failed(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail, w.why = time.Now(), why
}

// FailedBy records a failed write that had to end by the deadline. One that ended much later shows that this process stood
// still, for example because it was stopped or its machine was suspended. That says nothing about the node, so the next
// Prove writes.
func (w *Writes) FailedBy(deadline time.Time, why error) {
	const noticed = 250 * time.Millisecond // timers may be late by that on a busy machine
	if time.Since(deadline) > noticed {
		w.Doubt()
		return
	}
	w.Failed(why)
}

// Doubt makes the next Prove write.
func (w *Writes) Doubt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = time.Time{}
}

// Failing returns an ErrUnwritable with the reason of the last failure, or nil if a write was committed since.
func (w *Writes) Failing() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why == nil || w.done.After(w.fail) {
		return nil
	}
	return unwritable(w.why)
}

// Prove implements Prover. write writes; its result need not be recorded.
func (w *Writes) Prove(ctx context.Context, within time.Duration, write func(context.Context) error) error {
	if known, err := w.known(within); known {
		return err
	}
	err := write(ctx)
	switch {
	case err == nil:
		w.Done()
	case ctx.Err() == nil:
		w.Failed(err)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		w.late()
	default: // the caller does not want to know any more
		return err
	}
	_, err = w.known(within)
	return err
}

// known returns the result that the record allows without a write; enough is false if it allows none.
func (w *Writes) known(within time.Duration) (enough bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	failing := w.why != nil && !w.done.After(w.fail)
	switch {
	case w.why != nil && time.Since(w.fail) < failureStays:
		return true, unwritable(w.why)
	case failing:
		return false, unwritable(w.why)
	}
	return time.Since(w.done) < within, nil
}

// late records a write that has not ended in time. It keeps an earlier failure, which says more.
func (w *Writes) late() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why == nil || w.done.After(w.fail) {
		w.why = errSlowWrite
	}
	w.fail = time.Now()
}

// ErrUnwritable says that a node serves reads and fails writes.
var ErrUnwritable = errors.New("it cannot be written")

func unwritable(why error) error { return fmt.Errorf("%w: %w", ErrUnwritable, why) }
