// Package places counts the places that callers have in the queues of a server.
//
// A request that waits has one, and one for each slot if it asks for one of several. A
// request under an idempotency key that ended without a lease still has its places: the
// nodes remember when it arrived, so that it can be repeated. If that cost its caller
// nothing, a caller that may have one request waiting could send many, hang up at once, and
// have them all go before whoever waits meanwhile. So these kept places count like requests
// that wait, and the oldest make room for those who come.
package places

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"time"
)

// KeptFor is how long the nodes remember a place after they last got it.
const KeptFor = 11 * time.Minute

// ErrFull: the requests that wait at this server have all the places.
var ErrFull = errors.New("the server has no place left")

// LimitError refuses a caller whose waiting requests are at its limit of places.
type LimitError struct{ Max int }

func (e *LimitError) Error() string {
	return fmt.Sprintf("the caller's requests wait in %d places, the maximum", e.Max)
}

// Request is one that is about to wait.
type Request struct {
	Caller string // "" without access control: nothing but the table's Max bounds it
	// Waiters is how many requests of the caller may wait; 0 for a share: half of what
	// others leave of the table's places.
	Waiters int
	Places  int    // at least 1
	Key     string // "" for a request that keeps no place
	// Forget has the nodes forget the places of the request, after it has ended.
	Forget func()
}

// Table is the places at one server. It is safe for concurrent use.
type Table struct {
	max int // of all callers

	mu      sync.Mutex
	waiting int // places of requests that wait
	kept    int // places of requests that have ended
	callers map[string]*caller
}

// caller is what one caller has. One that has nothing is not in the table.
type caller struct {
	requests int // that wait
	waiting  int // their places
	kept     int
	order    list.List                // of *keeping, the oldest first
	byKey    map[string]*list.Element // the same
}

// keeping is the places of a request that has ended.
type keeping struct {
	request Request
	until   time.Time
}

// New makes a table of so many places.
func New(maxPlaces int) *Table { return &Table{max: maxPlaces, callers: make(map[string]*caller)} }

// Enter counts a request that begins to wait, and forgets the oldest kept places that its
// caller, or the server, has no room for any more. Errors: ErrFull, *LimitError; then
// nothing was counted. Otherwise leave must be called when it waits no more; lost says
// that it got no lease, and so keeps its places if it has a Key.
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
	case r.Waiters > 0 && c.requests >= r.Waiters:
		return nil, &LimitError{r.Waiters}
	case r.Waiters == 0 && c.waiting+r.Places > share:
		return nil, &LimitError{share}
	}
	t.drop(c, c.byKey[r.Key])
	t.wait(c, 1, r.Places)
	for c.order.Len() > 0 && c.tooMany(&r, share) {
		forget = append(forget, t.drop(c, c.order.Front()))
	}
	for t.kept > 0 && t.waiting+t.kept > t.max {
		forget = append(forget, t.dropOldest())
	}
	return forget, nil
}

// tooMany says whether the caller has more places than it may, those that are kept included.
func (c *caller) tooMany(r *Request, share int) bool {
	switch {
	case r.Caller == "":
		return false
	case r.Waiters > 0:
		return c.requests+c.order.Len() > r.Waiters
	}
	return c.waiting+c.kept > share
}

func (t *Table) leave(r Request, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.of(r.Caller)
	defer t.forgetIfEmpty(r.Caller, c)
	t.wait(c, -1, -r.Places)
	if !lost || r.Key == "" {
		return
	}
	t.drop(c, c.byKey[r.Key])
	c.byKey[r.Key] = c.order.PushBack(&keeping{request: r, until: time.Now().Add(KeptFor)})
	c.kept += r.Places
	t.kept += r.Places
}

// Drop counts the places no more that a caller has under a key: they were given up.
func (t *Table) Drop(name, key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.callers[name]; c != nil {
		t.drop(c, c.byKey[key])
		t.forgetIfEmpty(name, c)
	}
}

// Kept is how many places the nodes remember for requests that ended at this server, as far
// as it knows: a request that was repeated at another server is among them.
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

func (t *Table) wait(c *caller, requests, places int) {
	c.requests += requests
	c.waiting += places
	t.waiting += places
}

func keepingOf(e *list.Element) *keeping { return e.Value.(*keeping) } //nolint:errcheck,forcetypeassert // nothing else is in these lists

// drop counts kept places no more, and returns what has the nodes forget them; nil for none.
func (t *Table) drop(c *caller, e *list.Element) (forget func()) {
	if e == nil {
		return nil
	}
	r := keepingOf(e).request
	c.order.Remove(e)
	delete(c.byKey, r.Key)
	c.kept -= r.Places
	t.kept -= r.Places
	return r.Forget
}

// dropOldest drops the oldest of all that are kept; there are some.
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
