package api

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/fencelock/fencelock/api/access"
)

// The budget bounds the memory of requests and responses until the responses are read. An HTTP/1 connection
// has one request at a time. Over HTTP/2 a caller may begin a hundred requests with a few bytes each, and read
// no response.
const (
	budgetBytes         = 128 << 20
	budgetBytesOfCaller = budgetBytes / 4
	budgetBytesAlways   = 1 << 20  // a caller may always use this many, however much others use
	streamBytes         = 16 << 10 // overhead of a request over HTTP/2, in addition to its bodies
	smallBody           = 4 << 10  // a response up to this size is always delivered, because the operation is done
	resultBytes         = 1 << 10  // usual maximum for the result of an operation of a batch
	maxUnreadRefusals   = 256      // of each caller that is over its share
)

// budget bounds the bytes that callers' requests and responses use at a time.
type budget struct {
	mu      sync.Mutex
	used    int64
	callers map[string]int64 // no zeros
}

func newBudget() *budget { return &budget{callers: make(map[string]int64)} }

// take reports whether the caller may use n more bytes. If so, call give later.
func (b *budget) take(caller string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.callers[caller] + n
	if own > budgetBytesOfCaller || b.used+n > budgetBytes && own > budgetBytesAlways {
		return false
	}
	b.add(caller, n)
	return true
}

// overdraw records n bytes that are in use already.
func (b *budget) overdraw(caller string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(caller, n)
}

func (b *budget) give(caller string, n int64) { b.overdraw(caller, -n) }

// add changes a caller's count. The caller of add holds mu.
func (b *budget) add(caller string, n int64) {
	b.used += n
	if b.callers[caller] += n; b.callers[caller] == 0 {
		delete(b.callers, caller)
	}
}

// expense is the use of one request from its caller's share. The zero value is for requests that need no
// share: operations of a batch, and requests that are bounded elsewhere.
type expense struct {
	budget *budget
	caller string
	bytes  int64
}

// cover raises the request's use to n bytes. The error is errUnread.
func (e *expense) cover(n int64) error { return e.take(n - e.bytes) }

// take uses n more bytes. The error is errUnread.
func (e *expense) take(n int64) error {
	if e.budget == nil || n <= 0 {
		return nil
	}
	if !e.budget.take(e.caller, n) {
		return errUnread
	}
	e.bytes += n
	return nil
}

// pause gives everything back while the request waits in a queue, where it counts as a waiter. resume takes it
// again.
func (e *expense) pause() (resume func()) {
	if e.budget == nil {
		return func() {}
	}
	e.budget.give(e.caller, e.bytes)
	return func() { e.budget.overdraw(e.caller, e.bytes) }
}

// end gives everything back, for good.
func (e *expense) end() {
	if e.budget != nil {
		e.budget.give(e.caller, e.bytes)
		*e = expense{}
	}
}

// errUnread refuses a caller that is over its share of the budget.
var errUnread error = unreadError{}

type unreadError struct{}

func (unreadError) Error() string {
	return fmt.Sprintf("this caller's requests, and responses that it has not read, take its share of the memory at this server, %d MiB: read the responses, or have fewer requests at a time", budgetBytesOfCaller>>20)
}

func (unreadError) Is(target error) bool { return target == access.ErrRequestLimit }

// admit takes the request's use from its caller's share. The error is errUnread.
func (s *Server) admit(w *exchange, r *http.Request) error {
	if w.part != nil {
		return nil
	}
	w.expense = expense{budget: s.budget, caller: shareholder(w, r)}
	if r.ProtoMajor == 1 {
		return nil
	}
	return w.expense.take(streamBytes)
}

// settle gives back the request's use after its response is delivered: net/http itself writes the end of a
// response to an HTTP/2 stream after the handler.
func (w *exchange) settle(r *http.Request) {
	if w.expense.budget != nil && r.ProtoMajor != 1 && w.status != 0 {
		_ = http.NewResponseController(w).Flush() // a caller that does not read the response loses it
	}
	w.expense.end()
}

// refuseUnread refuses a caller that is over its share, and cuts off a caller that does not even read the
// refusals.
func (s *Server) refuseUnread(w *exchange, r *http.Request, a refusal) {
	caller := shareholder(w, r)
	if !s.refusals.take(caller) {
		panic(http.ErrAbortHandler)
	}
	defer s.refusals.give(caller)
	if s.writeRefusal(w, a) == nil {
		_ = http.NewResponseController(w).Flush()
	}
}
