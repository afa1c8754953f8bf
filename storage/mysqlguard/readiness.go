package mysqlguard

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

var errClosed = errors.New("the guard is closed")

// readiness runs an installation until it has succeeded once: whenever a caller needs it,
// never two at the same time. One goes on when the call that began it has run out of time:
// on a slow server each call would otherwise cut it off and begin again.
type readiness struct {
	install func(context.Context) error
	ctx     context.Context // ends with close
	stop    context.CancelFunc

	mu      sync.Mutex
	ready   bool
	current *installation // the last one begun; nil before the first
	running sync.WaitGroup
}

// installation is one try; done is closed when err may be read.
type installation struct {
	done chan struct{}
	err  error
}

func newReadiness(install func(context.Context) error) *readiness {
	ctx, stop := context.WithCancel(context.Background())
	return &readiness{install: install, ctx: ctx, stop: stop}
}

// start begins a try unless one is running or none is needed, and returns the
// try to wait for, nil when there is nothing to wait for.
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

// wait returns nil once the installation has succeeded, or why it has not before ctx ends.
func (r *readiness) wait(ctx context.Context) error {
	try := r.start() //nolint:contextcheck // it serves every caller, and outlives this one
	if try == nil {
		return nil
	}
	select {
	case <-try.done:
		return try.err
	case <-ctx.Done():
		return fmt.Errorf("the guard is being installed: %w", ctx.Err())
	case <-r.ctx.Done():
		return errClosed
	}
}

// lost asks for the installation to be run again.
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
