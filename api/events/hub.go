package events

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/api/internal/deadlines"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore"
)

// Bounds of a Hub.
const (
	ringSize   = 4096 // the number of events that are kept for readers that reconnect
	idleBudget = 200  // the number of events a second that are kept while there is no reader
	// maxReaders is the maximum number of streams at a time, maxReadersOfCaller that of one caller. The
	// last reservedReaders are for administrators.
	maxReaders         = 256
	maxReadersOfCaller = maxReaders / 4
	reservedReaders    = 16
	// gather is how long events are gathered before the readers are woken, so that a burst of events wakes
	// a reader only once.
	gather = 25 * time.Millisecond
	// linger is how long a Hub continues as if it had a reader after the last one has disconnected, because
	// most readers reconnect.
	linger = 15 * time.Second
)

// Event is an event with its name.
type Event struct {
	Kind wire.EventKind
	wire.Event
	// Missed is the number of events missing at a gap, 0 if it is unknown. No reader sees it, because most
	// of the events may have been about resources that the reader may not see.
	Missed uint64
}

// Hub keeps the last events and wakes their readers. It is safe for concurrent use.
type Hub struct {
	server  string
	ids     ids
	on      atomic.Bool  // whether there is a reader, here or at another server
	budget  atomic.Int64 // how many more events are kept this second while there is no reader
	skipped atomic.Bool  // some events were not kept
	nudged  chan struct{}
	begun   []chan struct{} // each is signalled when a reader connects here
	stopped chan struct{}
	stop    sync.Once

	mu      sync.Mutex
	ring    []Event
	next    uint64 // the number of the next event; the first is 1
	readers map[*Reader]struct{}
	streams int
	callers map[string]int // streams by caller; no zeros
	lastOne time.Time      // when the last reader disconnected
	remote  time.Time      // when another server last asked for events
	holders holders
}

// NewHub makes a Hub. It wakes readers only while Run runs.
func NewHub() *Hub {
	name := strconv.FormatUint(rand.Uint64()>>24, 36) //nolint:gosec // a name, not a secret
	h := &Hub{
		server: name, ids: newIDs(), next: 1,
		nudged: make(chan struct{}, 1), stopped: make(chan struct{}), readers: make(map[*Reader]struct{}), callers: make(map[string]int),
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
			pause.For(ctx, gather)
			h.wake()
		}
	}
}

// Server returns the name of the server: random, and new after each start.
func (h *Hub) Server() string { return h.server }

// Stop ends every stream and refuses new ones, because the server stops.
func (h *Hub) Stop() { h.stop.Do(func() { close(h.stopped) }) }

// Listened reports whether there is a reader, here or at another server.
func (h *Hub) Listened() bool { return h.on.Load() }

// Recording reports whether an event would be kept. A frequent operation asks first, to avoid making an
// event that is dropped.
func (h *Hub) Recording() bool {
	if h.on.Load() || h.budget.Load() > 0 {
		return true
	}
	if !h.skipped.Load() { // loading is cheaper than storing if many goroutines get here
		h.skipped.Store(true)
	}
	return false
}

// Publish keeps an event and wakes the readers. It never waits for a reader. If the event has no server or
// no time, it gets this server's name and the present time.
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

// settle updates whether there is a reader, and forgets the holders of leases that have ended.
func (h *Hub) settle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holders.forget(time.Now())
	h.on.Store(h.streams > 0 || time.Since(h.lastOne) < linger || time.Since(h.remote) < listenedFor)
}

// local reports whether this server has a reader, or had one until a moment ago.
func (h *Hub) local() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.streams > 0 || time.Since(h.lastOne) < linger
}

// listenedFor is how long a message that another server has a reader is valid.
const listenedFor = 4 * time.Second

// wanted records that another server has a reader. It reports whether that is new.
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
	caller string // the stream's caller
}

// The errors of Listen.
var (
	ErrTooMany = errors.New("this server has the maximum number of readers of events: listen at another server")
	ErrLimit   = errors.New("this caller has its maximum number of streams of events at this server: close one")
)

// Listen begins a stream of future events; call Close at its end. A caller may have at most half of the
// streams that other callers have not taken, so that a few callers with many streams leave some for others.
// Errors: ErrTooMany, ErrLimit.
func (h *Hub) Listen(caller string, administers bool) (*Reader, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	room := maxReaders
	if !administers {
		room -= reservedReaders
	}
	own := h.callers[caller]
	share := max(1, (room-(h.streams-own))/2)
	switch {
	case own >= min(share, maxReadersOfCaller):
		return nil, ErrLimit
	case h.streams >= room:
		return nil, ErrTooMany
	}
	h.streams++
	h.callers[caller]++
	h.on.Store(true)
	r := h.reader()
	r.stream, r.caller = true, caller
	for _, begun := range h.begun {
		signal(begun)
	}
	return r, nil
}

// tap returns a Reader that does not count as a reader.
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

// Close ends the stream.
func (r *Reader) Close() {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.readers, r)
	if r.stream {
		r.stream = false
		h.streams--
		if h.callers[r.caller]--; h.callers[r.caller] == 0 {
			delete(h.callers, r.caller)
		}
		h.lastOne = time.Now()
	}
}

// Wake is signalled when there may be something to read.
func (r *Reader) Wake() <-chan struct{} { return r.wake }

// Stopped is closed when the server stops.
func (r *Reader) Stopped() <-chan struct{} { return r.hub.stopped }

// Resume continues after the event with this id. If later events are no longer kept, it continues with the
// oldest one, and Next reports the gap. It returns false if the size of the gap is unknown, because the id
// is another server's or from before a restart.
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

// Rewind goes back by up to n events that want accepts, if they are still kept.
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

// Numbered is an event with the id at which a reader can resume.
type Numbered struct {
	ID string
	Event
}

// Next appends to list the events that want accepts, up to limit events in all. It reports how many events
// before them were lost because the reader was too slow, and whether more can be read at once.
func (r *Reader) Next(list []Numbered, limit int, want func(*Event) bool) (_ []Numbered, missed uint64, more bool) {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if oldest := h.oldest(); r.at < oldest {
		missed = oldest - r.at
		r.at = oldest
	}
	const look = 1024 // in one call, so that publishing is not blocked for long
	for looked := 0; r.at < h.next && looked < look && len(list) < limit; looked++ {
		e := &h.ring[(r.at-1)%ringSize]
		if want(e) {
			list = append(list, Numbered{ID: h.ids.seal(r.at), Event: *e})
		}
		r.at++
	}
	return list, missed, r.at < h.next
}

// Server returns the name of the server whose events are read.
func (r *Reader) Server() string { return r.hub.server }

// LastID returns the id of the last event that was read or skipped.
func (r *Reader) LastID() string { return r.hub.ids.seal(r.at - 1) }

// maxHolders bounds the number of labels in a holders. Beyond it, events about the end of a lease have no
// holder.
const maxHolders = 50_000

// holders remembers the labels of leases from earlier events, because whoever ends a lease may not know its
// holder. It has no clock of its own.
type holders struct {
	labels deadlines.Map[grant, string] // until late after the end of the lease's TTL
}

// grant identifies a lease of one resource.
type grant struct {
	resource string
	token    int64
}

// late is how long after the end of a TTL the event about it may come.
const late = 5 * time.Second

// name remembers the holder of an event, or adds the remembered holder to an event about the end of a
// lease.
func (h *holders) name(e *Event, now time.Time) {
	of := grant{e.Resource, e.FencingToken}
	switch e.Kind {
	case wire.EventGranted, wire.EventExtended:
		if e.Holder != "" && h.labels.Len() < maxHolders {
			h.labels.Put(of, e.Holder, now.Add(time.Duration(e.TTLMS)*time.Millisecond+late))
		}
	case wire.EventReleased, wire.EventBroken, wire.EventExpired:
		if label, ok := h.labels.Delete(of); ok && e.Holder == "" {
			e.Holder = label
		}
	}
}

// forget removes the labels of leases that have ended.
func (h *holders) forget(now time.Time) {
	for range h.labels.TakeDue(now) { // removes them
	}
}

// Granted publishes that a lease was granted, one event for each resource.
func (h *Hub) Granted(lease *lockcore.Lease) { h.lives(wire.EventGranted, lease) }

// Extended publishes that a lease was extended, one event for each resource.
func (h *Hub) Extended(lease *lockcore.Lease) { h.lives(wire.EventExtended, lease) }

func (h *Hub) lives(kind wire.EventKind, lease *lockcore.Lease) {
	if !h.Recording() {
		return
	}
	e := Event{Kind: kind, Event: wire.Event{
		Resource: lease.Resource, FencingToken: int64(lease.Token), Holder: lease.Holder, TTLMS: lease.TTL.Milliseconds(),
	}}
	if len(lease.Parts) == 0 {
		h.Publish(e)
	}
	for _, part := range lease.Parts {
		e.Resource, e.FencingToken = part.Resource, int64(part.Token)
		h.Publish(e)
	}
}

// Released publishes that resources of a lease were released: by a release, a cancel, or an
// extend that found another part of the lease ended.
func (h *Hub) Released(parts []lockcore.LeasePart) { h.ended(wire.EventReleased, parts) }

// Expired publishes that a lease expired, one event for each resource. The server that granted or extended
// it last has read this from the nodes.
func (h *Hub) Expired(parts []lockcore.LeasePart) { h.ended(wire.EventExpired, parts) }

func (h *Hub) ended(kind wire.EventKind, parts []lockcore.LeasePart) {
	if !h.Recording() {
		return
	}
	for _, part := range parts {
		h.Publish(Event{Kind: kind, Event: wire.Event{Resource: part.Resource, FencingToken: int64(part.Token)}})
	}
}

// Broken publishes that the lease of a resource was broken. If token and holder are unknown, they are 0 and
// "".
func (h *Hub) Broken(resource string, token fencing.Token, holder string) {
	h.Publish(Event{Kind: wire.EventBroken, Event: wire.Event{Resource: resource, FencingToken: int64(token), Holder: holder}})
}
