// Package gocronlock makes gocron run each job on only one of several schedulers: a Locker for
// gocron.WithDistributedLocker, and an Elector for gocron.WithDistributedElector.
//
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(
//		gocronlock.NewLocker(locks, "jobs/", client.MinHold(30*time.Second))))
//
// A Locker runs a job on the scheduler that gets its lock. That is once for each tick only if the lock is kept
// for longer than the difference of the hosts' clocks: client.MinHold does that. An Elector runs all jobs on
// one scheduler, so that the clocks do not matter.
//
// Not promised: that a job stops when its lease is lost, because gocron does not notify the job. A job that
// writes should present a token: Elector.Lease has the leader's; under a Locker, use client.Do inside the job.
package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/fencelock/fencelock/client"
)

// releaseLimit bounds the release of a job's lease.
const releaseLimit = 10 * time.Second

// ErrNotLeader: another scheduler leads, or no scheduler does.
var ErrNotLeader = errors.New("this scheduler does not lead")

// Locker is a gocron.Locker. It is safe for concurrent use.
type Locker struct {
	locks  *client.Client
	prefix string
	opts   []client.AcquireOption
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker makes a Locker. The resource of a job is the prefix followed by the job's name, so give each job a
// name (gocron.WithName). The option Wait is ignored.
func NewLocker(locks *client.Client, prefix string, opts ...client.AcquireOption) *Locker {
	return &Locker{locks: locks, prefix: prefix, opts: opts}
}

// Lock takes a lease that is kept alive until Unlock. It does not wait: if another scheduler holds the lock,
// that one runs the job. The errors are those of client.Client.TryAcquire.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lease, err := l.locks.TryAcquire(ctx, l.prefix+key, l.opts...)
	if err != nil {
		return nil, err
	}
	_, stop := lease.KeepAlive(context.WithoutCancel(ctx))
	return &lock{lease: lease, stop: stop}, nil
}

// lock is a gocron.Lock.
type lock struct {
	lease *client.Lease
	stop  func()
}

// Unlock releases the lease, even if the scheduler is being shut down.
func (l *lock) Unlock(ctx context.Context) error {
	l.stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer cancel()
	return l.lease.Release(ctx)
}

// Elector is a gocron.Elector. It leads while Run runs and holds the lease. It is safe for concurrent use.
type Elector struct {
	locks    *client.Client
	resource string
	opts     []client.DoOption
	term     atomic.Pointer[term] // nil while another scheduler leads
}

// term is a period in which this scheduler leads.
type term struct {
	ctx   context.Context //nolint:containedctx // it is the term
	lease *client.Lease
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector makes an Elector, which leads only while Run runs. All schedulers must name the same resource.
func NewElector(locks *client.Client, resource string, opts ...client.DoOption) *Elector {
	return &Elector{locks: locks, resource: resource, opts: opts}
}

// Run competes for the leadership until ctx ends, and then resigns. The error is that of client.Client.Elect;
// if only ctx ended it, it is ctx's.
func (e *Elector) Run(ctx context.Context) error {
	return e.locks.Elect(ctx, e.resource, func(ctx context.Context, lease *client.Lease) error {
		e.term.Store(&term{ctx, lease})
		defer e.term.Store(nil)
		<-ctx.Done()
		return ctx.Err()
	}, e.opts...)
}

// Lease returns the leader's lease, for its token. If this scheduler does not lead, the error is ErrNotLeader.
func (e *Elector) Lease() (*client.Lease, error) {
	now := e.term.Load()
	if now == nil || now.ctx.Err() != nil { // Err reads the clock, which matters after a pause of the process
		return nil, fmt.Errorf("%q: %w", e.resource, ErrNotLeader)
	}
	return now.lease, nil
}

// IsLeader returns nil while this scheduler leads, and ErrNotLeader.
func (e *Elector) IsLeader(context.Context) error {
	_, err := e.Lease()
	return err
}
