package api

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// A batch brings 128 requests over one stream, so the operations of all batches that run at
// a time are bounded. Further batches wait for their turn, and a caller's first for its own.
const (
	maxOperations         = 1024
	maxOperationsOfCaller = maxOperations / 2
)

// turns are those of the batches. Its zero value has none: see newTurns.
type turns struct {
	all *semaphore.Weighted

	mu  sync.Mutex
	own map[string]*ownTurns // of callers that have batches here
}

type ownTurns struct {
	*semaphore.Weighted
	batches int
}

func newTurns() *turns {
	return &turns{all: semaphore.NewWeighted(maxOperations), own: make(map[string]*ownTurns)}
}

// take waits until n operations of the caller may run; then give must follow. The error is
// ctx's.
func (t *turns) take(ctx context.Context, caller string, n int) (give func(), err error) {
	own := t.enter(caller)
	weight := int64(n)
	if err := own.Acquire(ctx, weight); err != nil {
		t.leave(caller, own)
		return nil, err
	}
	if err := t.all.Acquire(ctx, weight); err != nil {
		own.Release(weight)
		t.leave(caller, own)
		return nil, err
	}
	return func() {
		t.all.Release(weight)
		own.Release(weight)
		t.leave(caller, own)
	}, nil
}

func (t *turns) enter(caller string) *ownTurns {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.own[caller]
	if own == nil {
		own = &ownTurns{Weighted: semaphore.NewWeighted(maxOperationsOfCaller)}
		t.own[caller] = own
	}
	own.batches++
	return own
}

func (t *turns) leave(caller string, own *ownTurns) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.batches--; own.batches == 0 {
		delete(t.own, caller)
	}
}
