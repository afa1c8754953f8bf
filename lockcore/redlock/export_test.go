package redlock

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// For the tests of package redlock_test.

const (
	MaxTries      = maxTries
	SplitMaxPause = splitMaxPause
	NotAwaited    = notAwaited
)

var ErrNoAnswer = errNoAnswer

// TakePlace occupies one of the places for acquires in flight for good.
func (l *Locker) TakePlace() { l.inFlight <- struct{}{} }

// PendingCleanups returns the number of operations that are still to be repeated.
func (l *Locker) PendingCleanups() int { return l.cleaner.Pending() }

// TryOnce makes one try of an Acquire.
func (l *Locker) TryOnce(ctx context.Context, req *lockcore.Request) (*Grant, error) {
	taken, lost := l.Now().try(ctx, req, node.Op{})
	if lost != nil {
		return nil, lost.err
	}
	return taken, nil
}

// NewAttempt prepares one attempt; run makes it. answered is closed when the caller may have the response.
func (l *Locker) NewAttempt(ctx context.Context, op node.Op, limit time.Duration) (answered <-chan struct{}, run func() quorum.Verdict) {
	a := l.newAcquisition(ctx, op, limit)
	return a.done, func() quorum.Verdict {
		a.start()
		a.wait(ctx)
		return a.result().verdict
	}
}
