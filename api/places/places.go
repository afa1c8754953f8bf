// Package places counts the places that callers have in the queues of a server.
//
// A request that waits has one place, or one for each slot if it asks for a slot. A request under an
// idempotency key that ended without a lease still has its places, because the nodes remember when it
// arrived, so that it can be repeated. If kept places were free, a caller that may have one waiting request
// could send many, hang up at once, and later overtake everyone who began to wait in the meantime. So kept
// places count like waiting requests, and the oldest kept places are given up when new requests need room.
package places

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"time"
)

// KeptFor is how long the nodes remember a place after they last received it.
const KeptFor = 11 * time.Minute

// ErrFull: the requests that wait at this server occupy all places.
var ErrFull = errors.New("the server has no place left")

// LimitError refuses a caller whose waiting requests are at its limit of places.
type LimitError struct{ Max int }

func (e *LimitError) Error() string {
	return fmt.Sprintf("the caller's requests wait for as much as they may: %d", e.Max)
}

// Request is a request that is about to wait.
type Request struct {
	Caller string // "" without access control: then only the table's max applies
	// Waiters is the maximum number of resources for which the caller's requests may wait. With 0 the
	// caller may have a share: half of the places that other callers have not taken.
	Waiters   int
	Resources int    // the number of resources that it requests; at least 1
	Places    int    // the number of places that it occupies at a time; at least 1. Several resources are waited for one after the other
	Key       string // "" for a request that keeps no place
	// Forget makes the nodes forget the request's places. It is called only after the request has ended.
	Forget func()
}

// Table counts the places at one server. It is safe for concurrent use.
type Table struct {
	max int // the maximum number of places, for all callers together

	mu      sync.Mutex
	waiting int // places of requests that wait
	kept    int // places of requests that have ended
	callers map[string]*caller
}

// caller counts the places of one caller. A caller without places is not in the table.
type caller struct {
	requests      int // waiting requests
	resources     int // resources that they request
	waiting       int // places that they occupy
	keptResources int
	kept          int
	order         list.List                // of *keeping, the oldest first
	byKey         map[string]*list.Element // the same
}

// keeping is the kept places of one request that has ended.
type keeping struct {
	request Request
	until   time.Time
}

// New makes a table with maxPlaces places.
func New(maxPlaces int) *Table { return &Table{max: maxPlaces, callers: make(map[string]*caller)} }

// Enter counts a request that begins to wait, and forgets the oldest kept places that exceed the caller's
// limit or the table's. If it returns ErrFull or a *LimitError, it has counted nothing. Otherwise call
// leave when the request stops waiting. lost says that the request got no lease; if it has a Key, its
// places are then kept.
func (t *Table) Enter(r Request) (leave func(lost bool), err error) {
	forget, err := t.enter(r)
	for _, f := range forget {
		f()
	}
	return func(lost bool) { t.leave(r, lost) }, err
}

func (t *Table) enter(r Request) (forget []func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.of(r.Caller)
	defer t.forgetIfEmpty(r.Caller, c)
	share := max(1, (t.max-(t.waiting-c.waiting))/2)
	switch {
	case t.waiting+r.Places > t.max:
		return nil, ErrFull
	case r.Caller == "":
	case r.Waiters > 0 && c.resources+r.Resources > r.Waiters:
		return nil, &LimitError{r.Waiters}
	case r.Waiters == 0 && c.waiting+r.Places > share:
		return nil, &LimitError{share}
	}
	t.drop(c, c.byKey[r.Key])
	t.wait(c, &r, +1)
	for c.order.Len() > 0 && c.tooMany(&r, share) {
		forget = append(forget, t.drop(c, c.order.Front()))
	}
	for t.kept > 0 && t.waiting+t.kept > t.max {
		forget = append(forget, t.dropOldest())
	}
	return forget, nil
}

// tooMany reports whether the caller's places, including the kept ones, exceed its limit.
func (c *caller) tooMany(r *Request, share int) bool {
	switch {
	case r.Caller == "":
		return false
	case r.Waiters > 0:
		return c.resources+c.keptResources > r.Waiters
	}
	return c.waiting+c.kept > share
}

func (t *Table) leave(r Request, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.of(r.Caller)
	defer t.forgetIfEmpty(r.Caller, c)
	t.wait(c, &r, -1)
	if !lost || r.Key == "" {
		return
	}
	t.drop(c, c.byKey[r.Key])
	c.byKey[r.Key] = c.order.PushBack(&keeping{request: r, until: time.Now().Add(KeptFor)})
	c.keptResources += r.Resources
	c.kept += r.Places
	t.kept += r.Places
}

// Drop stops counting the kept places of a caller's key, because the caller gave them up.
func (t *Table) Drop(name, key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.callers[name]; c != nil {
		t.drop(c, c.byKey[key])
		t.forgetIfEmpty(name, c)
	}
}

// Kept returns the number of kept places of requests that ended at this server. It includes places of
// requests that were repeated at another server, because this server does not know that.
func (t *Table) Kept() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for name, c := range t.callers {
		for first := c.order.Front(); first != nil && now.After(keepingOf(first).until); first = c.order.Front() {
			t.drop(c, first)
		}
		t.forgetIfEmpty(name, c)
	}
	return t.kept
}

func (t *Table) of(name string) *caller {
	c := t.callers[name]
	if c == nil {
		c = &caller{byKey: make(map[string]*list.Element)}
		t.callers[name] = c
	}
	return c
}

func (t *Table) forgetIfEmpty(name string, c *caller) {
	if c.requests == 0 && c.order.Len() == 0 {
		delete(t.callers, name)
	}
}

// wait counts a request that begins (sign +1) or stops (-1) to wait.
func (t *Table) wait(c *caller, r *Request, sign int) {
	c.requests += sign
	c.resources += sign * r.Resources
	c.waiting += sign * r.Places
	t.waiting += sign * r.Places
}

func keepingOf(e *list.Element) *keeping { return e.Value.(*keeping) } //nolint:errcheck,forcetypeassert // nothing else is in these lists

// drop removes kept places, and returns the function that makes the nodes forget them; nil if there is
// nothing to forget.
func (t *Table) drop(c *caller, e *list.Element) (forget func()) {
	if e == nil {
		return nil
	}
	r := keepingOf(e).request
	c.order.Remove(e)
	delete(c.byKey, r.Key)
	c.keptResources -= r.Resources
	c.kept -= r.Places
	t.kept -= r.Places
	return r.Forget
}

// dropOldest drops the oldest kept places. There must be some.
func (t *Table) dropOldest() (forget func()) {
	var oldest *caller
	var name string
	for n, c := range t.callers {
		first := c.order.Front()
		if first != nil && (oldest == nil || keepingOf(first).until.Before(keepingOf(oldest.order.Front()).until)) {
			oldest, name = c, n
		}
	}
	forget = t.drop(oldest, oldest.order.Front())
	t.forgetIfEmpty(name, oldest)
	return forget
}
