package pgguard

import (
	"context"
	"errors"
	"sync"
	"time"
)

var errClosed = errors.New("the guard is closed")

// readiness runs the installation until it has succeeded once: at the start, and then whenever a caller needs
// it. At most one attempt runs at a time.
type readiness struct {
	install func(context.Context) error
	ctx     context.Context // ends with close
	stop    context.CancelFunc

	mu      sync.Mutex
	ready   bool
	current *installation // the last attempt; nil before the first
	running sync.WaitGroup
}

// installation is one attempt; err is valid after done is closed.
type installation struct {
	done chan struct{}
	err  error
}

func newReadiness(install func(context.Context) error) *readiness {
	ctx, stop := context.WithCancel(context.Background())
	return &readiness{install: install, ctx: ctx, stop: stop}
}

// start begins an attempt, unless one is running or none is needed. It returns the attempt to wait for, or nil
// if there is nothing to wait for.
func (r *readiness) start() *installation {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ready:
		return nil
	case r.current != nil && !isClosed(r.current.done):
		return r.current
	}
	try := &installation{done: make(chan struct{})}
	r.current = try
	r.running.Go(func() { r.run(try) })
	return try
}

func (r *readiness) run(try *installation) {
	ctx, cancel := context.WithTimeout(r.ctx, installTimeout)
	defer cancel()
	try.err = r.install(ctx)
	r.mu.Lock()
	r.ready = try.err == nil
	r.mu.Unlock()
	close(try.done)
}

// wait returns nil after the installation has succeeded, or why it has not succeeded within the limit.
func (r *readiness) wait(ctx context.Context, limit time.Duration) error {
	try := r.start() //nolint:contextcheck // it serves every caller, and outlives this one
	if try == nil {
		return nil
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-try.done:
		return try.err
	case <-timer.C:
		return errors.New("the connection or the schema is not ready yet")
	case <-ctx.Done():
		return ctx.Err()
	case <-r.ctx.Done():
		return errClosed
	}
}

// lost makes the installation run again.
func (r *readiness) lost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready = false
}

func (r *readiness) close() {
	r.stop()
	r.running.Wait()
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
