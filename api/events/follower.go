package events

import (
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// The pace of a Follower.
const (
	tickPause   = 100 * time.Millisecond
	surveyPause = 30 * time.Second // between two listings of all locks
	surveyPage  = 200
	surveyFails = 5 * time.Second
	firstRest   = 20  // times as long as a page took: the pause after it in the first listing,
	rest        = 100 // and in the others
	maxLooks    = 64  // at the same time
)

// Follower publishes what no request causes: a lease has expired, a node changed its
// state, an event of another server was missing. It works only while this server
// has a reader.
type Follower struct {
	hub     *Hub
	service lockcore.Service
}

// NewFollower makes a Follower that publishes to hub.
func NewFollower(hub *Hub, service lockcore.Service) *Follower {
	return &Follower{hub: hub, service: service}
}

// Run follows whenever this server has a reader, until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	begun := f.hub.listening()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-begun:
			f.follow(ctx)
		}
	}
}

// following is a Follower at work. Its fields belong to one goroutine.
type following struct {
	*Follower
	ctx     context.Context //nolint:containedctx // of the work, which ends with it
	nodes   map[string]lockcore.NodeState
	looks   chan look
	looking int
	workers sync.WaitGroup
}

type look struct {
	lease lease
	state lockcore.LockState
	err   error
}

// follow returns when there was no reader for a while, or with ctx.
func (f *Follower) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	w := &following{
		Follower: f, ctx: ctx, looks: make(chan look, maxLooks),
	}
	defer f.hub.beginFollowing()()
	defer w.workers.Wait()
	defer cancel()
	w.watchNodes()
	w.workers.Go(w.survey)
	tick := time.NewTicker(tickPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-w.looks:
			w.looking--
			f.hub.withBook(func(b *book) { b.looked(l.lease, l.state, l.err, time.Now()) })
			w.look()
		case <-tick.C:
			if !f.hub.local() {
				return
			}
			w.look()
			w.watchNodes()
			var inferred []Event
			f.hub.withBook(func(b *book) { inferred = b.tick(time.Now()) })
			for _, e := range inferred {
				f.hub.Publish(e)
			}
		}
	}
}

// look inspects the locks that are due.
func (w *following) look() {
	for w.looking < maxLooks {
		var l lease
		var due bool
		if w.hub.withBook(func(b *book) { l, due = b.next(time.Now()) }); !due {
			return
		}
		w.looking++
		w.workers.Go(func() {
			state, err := w.service.Inspect(w.ctx, l.resource)
			w.looks <- look{lease: l, state: state, err: err} // there is room for all
		})
	}
}

// watchNodes publishes which nodes have changed their state.
func (w *following) watchNodes() {
	states := make(map[string]lockcore.NodeState)
	for _, n := range w.service.Status().Nodes {
		states[n.Name] = n.State
		if was, known := w.nodes[n.Name]; known && was != n.State {
			w.hub.Publish(Event{Kind: wire.EventNode, Event: wire.Event{
				Node: n.Name, State: string(n.State), Was: string(was), Reason: n.Reason,
			}})
		}
	}
	w.nodes = states
}

// survey lists all locks again and again, at a pace that costs little however many
// there are, and at once when events are missing.
func (w *following) survey() {
	for first := true; w.ctx.Err() == nil; {
		next := surveyPause
		if w.sweepAll(first) {
			first = false
		} else {
			next = surveyFails
		}
		timer := time.NewTimer(next)
		select {
		case <-w.ctx.Done():
		case <-timer.C:
		case <-w.hub.gaps:
			pause(w.ctx, grace) // the listing may be behind, too
		}
		timer.Stop()
	}
}

// sweepAll lists all locks once, and reports whether it came to the end.
func (w *following) sweepAll(first bool) bool {
	share := rest
	if first {
		share = firstRest
	}
	began := time.Now()
	for cursor := ""; ; {
		at := time.Now()
		page, err := w.service.List(w.ctx, lockcore.ListRequest{Limit: surveyPage, Cursor: cursor})
		if err != nil {
			return false
		}
		took := time.Since(at)
		cursor = page.NextCursor
		w.hub.withBook(func(b *book) {
			now := time.Now()
			for _, lock := range page.Locks {
				b.see(lock, first, now)
			}
			if cursor == "" {
				b.swept(began, now)
			}
		})
		if cursor == "" {
			return true
		}
		pause(w.ctx, took*time.Duration(share))
	}
}
