package events

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// Bounds of a Hub.
const (
	ringSize   = 4096 // events that are kept for readers that come back
	idleBudget = 200  // events a second that are kept while there is no reader
	MaxReaders = 256  // streams at the same time
	// gather is how long events are gathered before the readers are woken, so that
	// many events wake a reader rarely.
	gather = 25 * time.Millisecond
	// linger is how long a Hub continues as if it had a reader after the last one
	// disconnected: most come back.
	linger = 15 * time.Second
)

// Event is an event with its name.
type Event struct {
	Kind wire.EventKind
	wire.Event
	// Missed is how many a gap lacks, 0 for an unknown number. No reader sees it: most
	// of them may have been about resources that the reader may not see.
	Missed uint64
}

// Hub keeps the last events and wakes their readers. It is safe for concurrent use.
type Hub struct {
	server  string
	ids     ids
	on      atomic.Bool  // there is a reader, here or at another server
	budget  atomic.Int64 // events that are still kept this second while there is none
	skipped atomic.Bool  // some were not
	nudged  chan struct{}
	begun   []chan struct{} // each is signalled when a reader connects here
	stopped chan struct{}
	stop    sync.Once

	mu      sync.Mutex
	ring    []Event
	next    uint64 // the number of the next event; the first is 1
	readers map[*Reader]struct{}
	streams int
	lastOne time.Time // when the last reader left
	remote  time.Time // when another server last asked for events
	holders holders
}

// NewHub makes a Hub. Run must run for its readers to be woken.
func NewHub() *Hub {
	name := strconv.FormatUint(rand.Uint64()>>24, 36) //nolint:gosec // a name, not a secret
	h := &Hub{
		server: name, ids: newIDs(), next: 1,
		nudged: make(chan struct{}, 1), stopped: make(chan struct{}), readers: make(map[*Reader]struct{}),
	}
	h.budget.Store(idleBudget)
	return h
}

// Run wakes readers until ctx ends.
func (h *Hub) Run(ctx context.Context) error {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-second.C:
			h.budget.Store(idleBudget)
			h.settle()
		case <-h.nudged:
			pause(ctx, gather)
			h.wake()
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Server is the name of the server: random, and new with each start.
func (h *Hub) Server() string { return h.server }

// Stop ends every stream, and lets no new one begin: the server stops.
func (h *Hub) Stop() { h.stop.Do(func() { close(h.stopped) }) }

// Listened reports whether there is a reader, here or at another server.
func (h *Hub) Listened() bool { return h.on.Load() }

// Recording reports whether an event would be kept, so that a hot path makes none
// for nothing.
func (h *Hub) Recording() bool {
	if h.on.Load() || h.budget.Load() > 0 {
		return true
	}
	if !h.skipped.Load() { // a load is cheaper where many store
		h.skipped.Store(true)
	}
	return false
}

// Publish keeps an event and has the readers woken. It never waits for a reader.
// The event bears this server's name and the present time, unless it has others.
func (h *Hub) Publish(e Event) {
	if !h.on.Load() && h.budget.Add(-1) < 0 {
		h.skipped.Store(true)
		return
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	if e.Server == "" {
		e.Server = h.server
	}
	h.mu.Lock()
	if h.skipped.Load() {
		h.skipped.Store(false)
		h.keep(Event{Kind: wire.EventGap, Event: wire.Event{At: e.At, Server: h.server, Reason: "some events were dropped, because too many came while there was no reader"}})
	}
	h.holders.name(&e, time.Now())
	h.keep(e)
	read := len(h.readers) > 0
	h.mu.Unlock()
	if read {
		signal(h.nudged)
	}
}

func (h *Hub) keep(e Event) {
	if len(h.ring) < ringSize {
		h.ring = append(h.ring, e)
	} else {
		h.ring[(h.next-1)%ringSize] = e
	}
	h.next++
}

func (h *Hub) wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.readers {
		signal(r.wake)
	}
}

// settle decides whether there is a reader, and forgets the holders of leases that are over.
func (h *Hub) settle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holders.forget(time.Now())
	h.on.Store(h.streams > 0 || time.Since(h.lastOne) < linger || time.Since(h.remote) < listenedFor)
}

// local reports whether this server has a reader, or had one a moment ago.
func (h *Hub) local() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.streams > 0 || time.Since(h.lastOne) < linger
}

// listenedFor is how long another server's message that it has a reader counts.
const listenedFor = 4 * time.Second

// wanted notes that another server has a reader. It reports whether that is new.
func (h *Hub) wanted() (begins bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	begins = time.Since(h.remote) >= listenedFor
	h.remote = time.Now()
	h.on.Store(true)
	return begins
}

// wantedNow reports whether another server has a reader.
func (h *Hub) wantedNow() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.remote) < listenedFor
}

// Reader reads events in their order. It is for one goroutine.
type Reader struct {
	hub    *Hub
	wake   chan struct{}
	at     uint64 // the next event to read
	stream bool
}

// TooManyError refuses one more stream.
type TooManyError struct{ Max int }

func (e *TooManyError) Error() string {
	return fmt.Sprintf("this server already streams events to %d readers", e.Max)
}

// Listen begins a stream of the events from now on; Close must follow.
// Errors: *TooManyError.
func (h *Hub) Listen() (*Reader, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams >= MaxReaders {
		return nil, &TooManyError{Max: MaxReaders}
	}
	h.streams++
	h.on.Store(true)
	r := h.reader()
	r.stream = true
	for _, begun := range h.begun {
		signal(begun)
	}
	return r, nil
}

// tap reads without counting as a reader.
func (h *Hub) tap() *Reader {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reader()
}

func (h *Hub) reader() *Reader {
	r := &Reader{hub: h, wake: make(chan struct{}, 1), at: h.next}
	h.readers[r] = struct{}{}
	return r
}

// listening returns a channel that is signalled when a reader connects here.
func (h *Hub) listening() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	begun := make(chan struct{}, 1)
	h.begun = append(h.begun, begun)
	if h.streams > 0 {
		signal(begun)
	}
	return begun
}

// signal leaves a signal in the channel, unless there is one already.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Close ends the reading.
func (r *Reader) Close() {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.readers, r)
	if r.stream {
		r.stream = false
		h.streams--
		h.lastOne = time.Now()
	}
}

// Wake is signalled when there may be something to read.
func (r *Reader) Wake() <-chan struct{} { return r.wake }

// Stopped is closed when the server stops.
func (r *Reader) Stopped() <-chan struct{} { return r.hub.stopped }

// Resume goes back to just behind the event of this id. If that is no longer kept,
// it goes back to the oldest event; Next reports the gap, or false does where even its
// size is unknown: the id is another server's, or from before a restart.
func (r *Reader) Resume(id string) bool {
	n, ok := r.hub.ids.open(id)
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	if !ok || n >= r.hub.next {
		r.at = r.hub.oldest()
		return false
	}
	r.at = n + 1
	return true
}

// Rewind goes back by as many as n events that want accepts, as far as they are kept.
func (r *Reader) Rewind(n int, want func(*Event) bool) {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for at := h.next; n > 0 && at > h.oldest(); {
		at--
		if want(&h.ring[(at-1)%ringSize]) {
			n--
			r.at = at
		}
	}
}

func (h *Hub) oldest() uint64 { return h.next - uint64(len(h.ring)) }

// Numbered is an event with the id that a reader resumes by.
type Numbered struct {
	ID string
	Event
}

// Next appends to list the events that want accepts, until it has limit events, and
// reports how many were missed before them because the reader was too slow.
// more: there is more to read at once.
func (r *Reader) Next(list []Numbered, limit int, want func(*Event) bool) (_ []Numbered, missed uint64, more bool) {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if oldest := h.oldest(); r.at < oldest {
		missed = oldest - r.at
		r.at = oldest
	}
	const look = 1024 // at once, so that publishing is not blocked for long
	for looked := 0; r.at < h.next && looked < look && len(list) < limit; looked++ {
		e := &h.ring[(r.at-1)%ringSize]
		if want(e) {
			list = append(list, Numbered{ID: h.ids.seal(r.at), Event: *e})
		}
		r.at++
	}
	return list, missed, r.at < h.next
}

// Server is the name of the server whose events are read.
func (r *Reader) Server() string { return r.hub.server }

// LastID is the id of the last event that was read or passed over.
func (r *Reader) LastID() string { return r.hub.ids.seal(r.at - 1) }
