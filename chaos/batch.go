package chaos

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// Every second client simulates one of many callers in a process. Its requests that do not wait go to the
// server in a batch, together with the requests of other such clients at the same time.

// gatherFor is how long a request waits for others.
const gatherFor = 3 * time.Millisecond

// gathering collects the next batch to a server.
type gathering struct {
	mu      sync.Mutex
	waiting []*gathered
}

// gathered is a request that waits for its batch.
type gathered struct {
	operation wire.BatchOperation
	answer    chan answer // has room for one
}

// join adds a request, and reports whether it is the first.
func (g *gathering) join(one *gathered) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, one)
	return len(g.waiting) == 1
}

func (g *gathering) take() []*gathered {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.waiting
	g.waiting = nil
	return all
}

// operation returns the request as part of a batch; ok is false if it cannot be in one.
func (r request) operation() (o wire.BatchOperation, ok bool) {
	switch {
	case r.wait > 0:
		return o, false
	case r.path == "/locks" && r.method == http.MethodPost:
		o.Operation = wire.OperationAcquire
	case r.path == "/leases/current/extend":
		o.Operation = wire.OperationExtend
	case r.path == "/leases/current" && r.method == http.MethodDelete:
		o.Operation = wire.OperationRelease
	default:
		return o, false
	}
	o.IdempotencyKey, o.LeaseID = r.header.Get(wire.HeaderIdempotencyKey), r.header.Get(wire.HeaderLease)
	if r.body != "" {
		o.Body = json.RawMessage(r.body)
	}
	return o, true
}

// sendInBatch is send in a batch. If a caller leaves early, the batch continues for the others.
func (s *Stand) sendInBatch(ctx context.Context, server int, o wire.BatchOperation) answer {
	one := &gathered{operation: o, answer: make(chan answer, 1)}
	if next := &s.servers[server].gathering; next.join(one) {
		time.AfterFunc(gatherFor, func() { s.sendBatch(context.WithoutCancel(ctx), server, next.take()) })
	}
	select {
	case a := <-one.answer:
		return a
	case <-ctx.Done():
		return answer{}
	}
}

// sendBatch sends the requests, and gives each its response. A request without one gets the empty answer.
func (s *Stand) sendBatch(ctx context.Context, server int, all []*gathered) {
	var batch wire.Batch
	for _, one := range all {
		batch.Operations = append(batch.Operations, one.operation)
	}
	a := s.send(ctx, server, request{method: http.MethodPost, path: "/locks/batch", body: marshal(batch)})
	var results wire.BatchResults
	if a.status == http.StatusOK {
		a.into(&results)
	}
	for i, one := range all {
		switch {
		case len(results.Results) == len(all):
			one.answer <- answer{status: results.Results[i].Status, body: results.Results[i].Body}
		case a.status == http.StatusOK:
			one.answer <- answer{} // not a valid response
		default:
			one.answer <- a
		}
	}
}
