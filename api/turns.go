package api

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// One stream can bring the 128 requests of a batch, so the number of operations in all running batches is
// bounded. Further batches wait for their turn: first for one of their caller's turns, then for one of all.
const (
	maxOperations         = 1024
	maxOperationsOfCaller = maxOperations / 2
)

// turns bounds the operations of batches that run at a time. Its zero value permits none: use newTurns.
type turns struct {
	all *semaphore.Weighted

	mu  sync.Mutex
	own map[string]*ownTurns // by caller, for callers with batches at this server
}

type ownTurns struct {
	*semaphore.Weighted
	batches int
}

func newTurns() *turns {
	return &turns{all: semaphore.NewWeighted(maxOperations), own: make(map[string]*ownTurns)}
}

// take waits until n operations of the caller may run. Call give after they have run. The error is ctx's.
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
