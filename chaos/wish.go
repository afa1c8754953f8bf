package chaos

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// wish is one acquisition that a client wants: of one resource, of several, or of a slot. All its attempts
// send the same body. Its label is the public holder, so that a lock shows its owner.
type wish struct {
	label     string
	key       string // "" for none
	resources []string
	slots     int           // the number of slots of the one resource from which it wants one; 0 for none
	ttl       time.Duration // the requested TTL
	wait      time.Duration
	poll      bool // it waits in polls of pollFor
	minHold   time.Duration
	tries     int // number of attempts sent
}

// pollFor is the wait of a poll. It is a second because Prefer counts in seconds.
const pollFor = time.Second

// slots is the number of slots of the resource that has slots.
const slots = 2

// slotted is a resource with slots that no client takes as a whole.
const slotted = "chaos/slots"

// slotNames are the names of its slots.
func slotNames() (names []string) {
	for i := range slots {
		names = append(names, fmt.Sprintf("%s#slot%d", slotted, i+1))
	}
	return names
}

// names are the resources whose locks may be taken for it.
func (w *wish) names() []string {
	if w.slots > 0 {
		return slotNames()
	}
	return w.resources
}

// body is the body of POST /locks and of POST /cancel.
func (w *wish) body(wait time.Duration) string {
	r := wire.AcquireRequest{TTLMS: milliseconds(w.ttl), Holder: w.label, Slots: w.slots}
	if r.Resource = w.resources[0]; len(w.resources) > 1 {
		r.Resource, r.Resources = "", w.resources
	}
	if wait > 0 {
		r.WaitMS = milliseconds(wait)
	}
	if w.minHold > 0 {
		r.MinHoldMS = milliseconds(w.minHold)
	}
	return marshal(r)
}

// wish draws what the client wants next.
func (c *client) wish() *wish {
	config := c.stand.config
	c.wishes++
	w := &wish{
		label:     fmt.Sprintf("client-%d-%d-%d", c.id, c.round, c.wishes),
		resources: []string{c.stand.resource(c.random.IntN(config.Resources))},
		ttl:       c.between(200*time.Millisecond, config.MaxTTL),
	}
	switch {
	case c.chance(12) && config.Resources > 1:
		for _, i := range c.random.Perm(config.Resources)[:min(config.Resources, 2+c.random.IntN(2))] {
			w.resources = append(w.resources, c.stand.resource(i))
		}
		slices.Sort(w.resources)
		w.resources = slices.Compact(w.resources)
	case c.chance(10):
		w.resources, w.slots = []string{slotted}, slots
	}
	if c.chance(45) {
		w.key = fmt.Sprintf("key-%d-%d-%x", config.Seed, c.id, c.random.Uint64())
	}
	if c.chance(45) {
		w.wait = c.between(50*time.Millisecond, 2*time.Second)
	}
	if w.key != "" && w.wait > 0 && c.chance(35) {
		w.poll, w.wait = true, c.between(pollFor+100*time.Millisecond, 3*pollFor)
	}
	if c.chance(8) {
		w.minHold = c.between(50*time.Millisecond, 200*time.Millisecond)
	}
	return w
}

// mostTries bounds the attempts of one wish whose responses are lost.
const mostTries = 4

// acquire requests a lease as docs/how-to/write-a-client.md says. It uses a key, and repeats a request without
// a response at any server. Polls follow one another until the wait is over. A client that gives up in doubt
// sends a cancel. acquire returns nil without a lease.
func (c *client) acquire(ctx context.Context) *op {
	w := c.wish()
	until, doubt := c.stand.now()+w.wait, false
	for again := true; again && w.tries < mostTries; c.gate.pass(ctx) {
		o := c.ask(ctx, w, max(until-c.stand.now(), 0))
		if o.ok() {
			return o
		}
		doubt = doubt || o.open() || o.Poll // a poll leaves its place in the queue
		again = w.key != "" && !c.stand.config.sabotage.abandon && (o.open() || o.Poll && o.Status == http.StatusConflict) && ctx.Err() == nil && !c.chance(20)
	}
	if w.key != "" && doubt && !c.stand.config.sabotage.abandon {
		c.giveUp(ctx, w)
	}
	return nil
}

// ask sends one attempt, with faults on its way: it is delivered twice, its response is lost, or its caller
// hangs up. Of two responses, the one with the larger tokens counts.
func (c *client) ask(ctx context.Context, w *wish, wait time.Duration) *op {
	w.tries++
	if c.chance(4) {
		short, cancel := context.WithTimeout(ctx, c.between(0, max(wait, 30*time.Millisecond)))
		defer cancel()
		ctx = short
	}
	o := &op{Client: c.id, Server: c.server(), Key: w.key, Label: w.label, lost: c.losesAnswer()}
	if w.key == "" || !c.chance(15) {
		c.stand.acquire(ctx, c.history, o, w, wait)
		return o
	}
	twin := *o
	twin.Server = c.server()
	var both sync.WaitGroup
	both.Go(func() { c.stand.acquire(ctx, c.history, &twin, w, wait) })
	c.stand.acquire(ctx, c.history, o, w, wait)
	both.Wait()
	if twin.ok() && twin.newer(o) {
		return &twin
	}
	if twin.open() && !o.ok() {
		o.Status = 0
	}
	return o
}

// losesAnswer decides that the response to the next request is lost, although the request takes effect.
func (c *client) losesAnswer() bool { return c.chance(c.stand.config.sabotage.lost()) }

// giveUp ends what a request in doubt may have left. Sometimes the client dies first.
func (c *client) giveUp(ctx context.Context, w *wish) {
	if c.chance(10) {
		c.history.add(&op{Client: c.id, Kind: opDied, Names: w.names(), Label: w.label, Sent: c.stand.now(), Done: c.stand.now()})
		return
	}
	c.repeat(ctx, func(ctx context.Context) *op {
		o := &op{Client: c.id, Server: c.server(), Key: w.key, Label: w.label, lost: c.losesAnswer()}
		c.stand.cancel(ctx, c.history, o, w)
		return o
	})
}

// repeat repeats a call, at any server, until it gets a response, even after its round has ended. Sometimes
// the client hangs up.
func (c *client) repeat(ctx context.Context, send func(context.Context) *op) {
	ctx = c.leaving(ctx)
	for range mostTries {
		if !c.hangingUp(ctx, send).open() {
			return
		}
		c.gate.pass(ctx)
	}
}

func (c *client) hangingUp(ctx context.Context, send func(context.Context) *op) *op {
	if c.chance(5) {
		short, cancel := context.WithTimeout(ctx, c.between(0, 10*time.Millisecond))
		defer cancel()
		ctx = short
	}
	return send(ctx)
}
