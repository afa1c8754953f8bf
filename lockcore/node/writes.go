package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Prover is a Node that can prove that it takes writes. A full disk, a missing replica or a
// foreign lock leave every read as it is, an observation among them.
type Prover interface {
	// Prove returns nil if the node has committed a write of this server within so much time,
	// and none has failed since. Otherwise it writes what is there already: that and nothing
	// else. After a failed write it returns an error for a second at least, so that a node on
	// which some writes fail does not seem sound between them. It returns when ctx ends.
	Prove(ctx context.Context, within time.Duration) error
}

// failureStays is how long a failed write counts, though others succeed.
const failureStays = time.Second

var errSlowWrite = errors.New("a write has taken too long")

// Writes is what a node knows of its writes, for Prove. The zero value knows of none. All
// methods may be called from any goroutine.
type Writes struct {
	mu         sync.Mutex
	done, fail time.Time // of the last one
	why        error     // of the last one that failed
}

// Done notes a write that was committed.
func (w *Writes) Done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = time.Now()
}

// Failed notes a write that failed.
func (w *Writes) Failed(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail, w.why = time.Now(), why
}

// Doubt has the next Prove write.
func (w *Writes) Doubt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = time.Time{}
}

// Failing is an ErrUnwritable with the reason of the last failure, nil if a write was
// committed since.
func (w *Writes) Failing() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why == nil || w.done.After(w.fail) {
		return nil
	}
	return unwritable(w.why)
}

// Prove is that of a Prover. Write writes; its result need not be noted.
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

// known is what is known without a write, if that is enough.
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

// late notes a write that has not ended in time. An earlier failure says more.
func (w *Writes) late() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why == nil || w.done.After(w.fail) {
		w.why = errSlowWrite
	}
	w.fail = time.Now()
}

// ErrUnwritable is for a node that answers reads and fails writes.
var ErrUnwritable = errors.New("it cannot be written")

func unwritable(why error) error { return fmt.Errorf("%w: %w", ErrUnwritable, why) }
