package events

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/internal/deadlines"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore"
)

// Channel carries messages between the servers of a cluster, over a node that they share. A message may be
// lost. Anyone who can reach the node may send one, on some nodes without any right.
type Channel interface {
	// Tell sends a message to the present subscribers of the topic.
	Tell(ctx context.Context, topic, word string) error
	// Hear calls heard for every message until ctx ends, reconnecting by itself.
	Hear(ctx context.Context, topic string, heard func(word string))
}

// Seals encrypts messages between the servers of a cluster. Both methods return false if the server does
// not know the secret.
type Seals interface {
	SealMessage(text string) (sealed string, ok bool)
	OpenMessage(sealed string) (text string, ok bool)
}

// Secrets are the secrets of a server.
type Secrets interface {
	Seals
	Keys
}

// The topics of a Relay, and how often it sends.
const (
	topicListen = "listen" // the name of a server with a reader; or a message about lease keys
	topicEvents = "events" // a sealed batch
	batchPause  = 100 * time.Millisecond
	maxBatch    = 512
	tellTimeout = 300 * time.Millisecond
	beaconPause = time.Second
	maxWord     = 3 << 19 // bytes
)

// Relay passes events on between the servers of a cluster while one of them has a reader. Otherwise it only
// compares the servers' lease keys. Batches of events are sealed. The message that a server has a reader is
// not, because a false one costs only a few messages and reveals nothing.
type Relay struct {
	hub      *Hub
	channels []Channel
	seals    Seals
	logger   *slog.Logger
	keys     *keyWatch

	mu      sync.Mutex
	recent  deadlines.Map[batchID, struct{}] // recently received batches
	refused int                              // refused messages since the last log line
	logged  time.Time
}

// NewRelay makes a Relay over the channels. There must be enough channels that one of them works whenever
// there is a quorum.
func NewRelay(hub *Hub, channels []Channel, secrets Secrets, logger *slog.Logger) *Relay {
	r := &Relay{hub: hub, channels: channels, seals: secrets, logger: logger}
	r.keys = newKeyWatch(hub.server, secrets, func(ctx context.Context, word string) { r.tell(ctx, topicListen, word) }, logger)
	return r
}

// LeaseKeysDiffer returns how many other servers have lease ids that cannot be opened here.
func (r *Relay) LeaseKeysDiffer() int { return r.keys.differing() }

// batch is events that one server sends to the others.
type batch struct {
	Server string  `json:"server"`
	Number uint64  `json:"number"` // counts this server's batches
	Sent   int64   `json:"sent"`   // in Unix milliseconds, by the server's clock
	Missed uint64  `json:"missed,omitempty"`
	Events []relay `json:"events"`
}

type relay struct {
	Kind wire.EventKind `json:"kind"`
	wire.Event
}

// Run relays until ctx ends.
func (r *Relay) Run(ctx context.Context) error {
	if len(r.channels) == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	wanted := make(chan struct{}, 1)
	var wg sync.WaitGroup
	for _, c := range r.channels {
		wg.Go(func() {
			c.Hear(ctx, topicListen, func(server string) {
				if !r.keys.heard(server) && server != r.hub.server && r.hub.wanted() {
					signal(wanted)
				}
			})
		})
	}
	wg.Go(func() { r.keys.run(ctx) })
	wg.Go(func() { r.listen(ctx) })
	wg.Go(func() { r.send(ctx, wanted) })
	wg.Wait()
	return ctx.Err()
}

// listen asks the other servers for their events while this server has a reader.
func (r *Relay) listen(ctx context.Context) {
	begun := r.hub.listening()
	for {
		select {
		case <-ctx.Done():
			return
		case <-begun:
		}
		r.listenNow(ctx)
	}
}

func (r *Relay) listenNow(ctx context.Context) {
	hearing, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, c := range r.channels {
		wg.Go(func() { c.Hear(hearing, topicEvents, r.hear) })
	}
	for ctx.Err() == nil && r.hub.local() {
		r.tell(ctx, topicListen, r.hub.server)
		pause.For(ctx, beaconPause)
	}
}

// tell sends a message on every channel.
func (r *Relay) tell(ctx context.Context, topic, word string) {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range r.channels {
		wg.Go(func() { _ = c.Tell(ctx, topic, word) }) // messages may be lost
	}
	wg.Wait()
}

// send passes this server's own events on while another server asks for them.
func (r *Relay) send(ctx context.Context, wanted <-chan struct{}) {
	number := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-wanted:
		}
		number = r.sendNow(ctx, number)
	}
}

func (r *Relay) sendNow(ctx context.Context, number uint64) uint64 {
	reader := r.hub.tap()
	defer reader.Close()
	var list []Numbered
	for ctx.Err() == nil && r.hub.wantedNow() {
		pause.For(ctx, batchPause)
		var missed uint64
		list, missed = reader.own(list[:0])
		if len(list) == 0 && missed == 0 {
			continue
		}
		number++
		word, err := json.Marshal(batch{Server: r.hub.server, Number: number, Sent: time.Now().UnixMilli(), Missed: missed, Events: relayed(list)})
		if err != nil {
			continue
		}
		if sealed, ok := r.seals.SealMessage(string(word)); ok {
			r.tell(ctx, topicEvents, sealed)
		}
	}
	return number
}

// own reads the events of this server's clients, at most maxBatch. It reports how many more it missed.
func (r *Reader) own(list []Numbered) (_ []Numbered, missed uint64) {
	own := func(e *Event) bool { return e.Server == r.hub.server && passedOn(e) }
	for more := true; more; {
		var lost uint64
		list, lost, more = r.Next(list, maxBatch, own)
		missed += lost
		if len(list) == maxBatch && more {
			return list, missed + r.skip()
		}
	}
	return list, missed
}

// skip skips all unread events, and returns their number.
func (r *Reader) skip() uint64 {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	n := r.hub.next - r.at
	r.at = r.hub.next
	return n
}

// passedOn reports whether other servers get the event. Each server itself notices the states of nodes and
// its own gaps.
func passedOn(e *Event) bool {
	switch e.Kind {
	case wire.EventGranted, wire.EventExtended, wire.EventReleased, wire.EventBroken, wire.EventExpired,
		wire.EventWaiting, wire.EventLeft, wire.EventStaleToken:
		return true
	default:
		return false
	}
}

func relayed(list []Numbered) []relay {
	out := make([]relay, len(list))
	for i := range list {
		out[i] = relay{Kind: list[i].Kind, Event: list[i].Event.Event}
	}
	return out
}

// hear processes a batch. Each batch comes on several channels.
func (r *Relay) hear(word string) {
	var b batch
	text, ok := "", len(word) <= maxWord
	if ok {
		text, ok = r.seals.OpenMessage(word)
	}
	if !ok || json.Unmarshal([]byte(text), &b) != nil {
		r.refuse("it is not sealed under a secret that this server knows: another program sends such messages, or the servers have different lease keys")
		return
	}
	if b.Server == r.hub.server || !fits(b.Server) || len(b.Events) > maxBatch {
		return
	}
	if age := time.Since(time.UnixMilli(b.Sent)).Abs(); age >= rememberBatch {
		r.refuse("it is an old message that was sent again, or the clocks of the servers differ by more than " + rememberBatch.String())
		return
	}
	if !r.isNew(batchID{b.Server, b.Number}) {
		return
	}
	if b.Missed > 0 {
		r.hub.Publish(Event{Kind: wire.EventGap, Missed: b.Missed, Event: wire.Event{
			Server: b.Server, Reason: "another server had more events than it could pass on",
		}})
	}
	for i := range b.Events {
		e := Event{Kind: b.Events[i].Kind, Event: b.Events[i].Event}
		e.Server = b.Server
		if passedOn(&e) && lockcore.ValidateResource(e.Resource) == nil && len(e.Holder) <= lockcore.MaxHolderBytes && fits(e.Attempt) && e.FencingToken >= 0 {
			e.Reason, e.Node, e.State, e.Was = "", "", "", ""
			r.hub.Publish(e)
		}
	}
}

// fits limits the length of names that another server sends.
func fits(name string) bool { return len(name) <= 32 }

// refuse counts a message that does not come from another server, and writes at most one log line a minute.
func (r *Relay) refuse(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused++
	if time.Since(r.logged) < refusedPause {
		return
	}
	r.logger.Warn("a message from another server was refused", slog.String("reason", why), slog.Int("refused", r.refused))
	r.refused, r.logged = 0, time.Now()
}

// Bounds of the remembered batches. Each batch comes on all channels at about the same time. A batch that
// someone recorded and sends again is always refused: at first because it is remembered, later because it
// is too old.
const (
	rememberBatch = 30 * time.Second
	maxBatches    = 50_000
	refusedPause  = time.Minute
)

// batchID identifies a batch.
type batchID struct {
	server string
	number uint64
}

// isNew reports whether the batch is received for the first time. While too many batches are remembered, no
// batch is new.
func (r *Relay) isNew(id batchID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for range r.recent.TakeDue(now) { // removes them
	}
	if _, known := r.recent.Get(id); known || r.recent.Len() >= maxBatches {
		return false
	}
	r.recent.Put(id, struct{}{}, now.Add(rememberBatch))
	return true
}
