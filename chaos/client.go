package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// mostWrites bounds the writes to one record, because a body is at most 64 KiB.
const mostWrites = 3000

// client performs guarded read-modify-writes until its round ends. Each appends a unique id to the record of a
// resource, under a lease and its token.
type client struct {
	stand   *Stand
	history *history
	gate    *gate
	id      int
	round   int
	random  *rand.Rand
	writes  int
	wishes  int
}

// chance is true with the probability given in percent.
func (c *client) chance(percent int) bool { return c.random.IntN(100) < percent }

// between draws a duration.
func (c *client) between(low, high time.Duration) time.Duration {
	return low + time.Duration(c.random.Int64N(int64(high-low)+1))
}

// run works until ctx ends.
func (c *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		c.cycle(ctx)
		c.pause(ctx, c.between(c.stand.config.Think/2, c.stand.config.Think*3/2))
	}
}

// pause waits for d, and then for as long as the clients are frozen.
func (c *client) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	c.gate.pass(ctx)
}

// cycle takes a lease, writes under it, and gives it back.
func (c *client) cycle(ctx context.Context) {
	lease := c.acquire(ctx)
	if lease == nil {
		return
	}
	c.gate.pass(ctx)
	if strings.HasPrefix(lease.Resource, slotted) {
		c.linger(ctx, lease)
	} else {
		c.work(ctx, lease)
	}
	c.gate.pass(ctx)
	c.leave(ctx, lease)
}

// leave releases the lease, or crashes, and then the lease expires.
func (c *client) leave(ctx context.Context, lease *op) {
	if c.chance(4) {
		died := c.about(lease)
		died.Kind, died.Sent, died.Done = opDied, c.stand.now(), c.stand.now()
		c.history.add(died)
		return
	}
	c.repeat(ctx, func(ctx context.Context) *op {
		o := c.about(lease)
		o.lost = c.losesAnswer()
		c.stand.release(ctx, c.history, o)
		return o
	})
}

// leaving is a context for what a client still does after its round has ended.
func (c *client) leaving(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

// about returns an operation on a lease that the client has.
func (c *client) about(lease *op) *op {
	o := lease.again()
	o.Server = c.server()
	return o
}

func (c *client) server() int { return c.random.IntN(len(c.stand.servers)) }

// work is the critical section: one or two read-modify-writes. If a client does not know whether a write took
// effect, it does not start another under the same token, because the second could overtake the first.
func (c *client) work(ctx context.Context, lease *op) {
	rounds := 1
	if c.chance(20) {
		rounds = 2
	}
	for range rounds {
		if c.chance(1) {
			c.oversleep(ctx, lease)
		}
		value, ok := c.read(ctx, lease)
		if !ok || strings.Count(value, " ") > mostWrites {
			return
		}
		c.linger(ctx, lease)
		if !c.write(ctx, lease, value) || ctx.Err() != nil {
			return
		}
	}
}

// linger is what happens between reading and writing: mostly nothing, sometimes
// an extension, sometimes a pause that outlives the lease.
func (c *client) linger(ctx context.Context, lease *op) {
	pauses := 3
	if c.stand.config.sabotage.skipClaim {
		pauses = 50 // more often, because a failure then needs two pauses in a row
	}
	switch {
	case c.chance(pauses):
		c.oversleep(ctx, lease)
	case c.chance(12):
		ttl := c.between(200*time.Millisecond, c.stand.config.MaxTTL)
		c.repeat(ctx, func(ctx context.Context) *op {
			o := c.about(lease)
			o.lost = c.losesAnswer()
			c.stand.extend(ctx, c.history, o, ttl)
			return o
		})
	}
	c.gate.pass(ctx)
}

// oversleep pauses past the lease's end, as a stopped process does.
func (c *client) oversleep(ctx context.Context, lease *op) {
	left := lease.Sent + lease.Validity - c.stand.now()
	c.pause(ctx, max(left, 0)+c.between(0, 300*time.Millisecond))
}

// read claims and reads. It tries again if the response was lost.
func (c *client) read(ctx context.Context, lease *op) (value string, ok bool) {
	for range 3 {
		o := c.about(lease)
		if c.stand.config.sabotage.skipClaim {
			value = c.stand.peek(ctx, o)
		} else {
			value = c.stand.claim(ctx, c.history, o)
		}
		if o.ok() || !o.open() || ctx.Err() != nil {
			return value, o.ok()
		}
	}
	return "", false
}

// write appends an id. settled is true if every request sent for it got a response.
func (c *client) write(ctx context.Context, lease *op, value string) (settled bool) {
	c.writes++
	id := fmt.Sprintf("%x.%x", c.id, c.writes)
	appended := strings.TrimSpace(value + " " + id)
	settled = true
	for range 3 {
		open, ok := c.putOnce(ctx, lease, id, appended)
		settled = settled && !open
		if ok || !open || ctx.Err() != nil {
			return settled && ok
		}
		c.gate.pass(ctx)
	}
	return false
}

// putOnce sends one write, sometimes twice at once.
func (c *client) putOnce(ctx context.Context, lease *op, id, value string) (open, ok bool) {
	o := c.about(lease)
	o.ID = id
	twice := c.chance(10)
	twin := *o
	twin.Server = c.server()
	var both sync.WaitGroup
	if twice {
		both.Go(func() { c.stand.put(ctx, c.history, &twin, value) })
	}
	c.stand.put(ctx, c.history, o, value)
	both.Wait()
	if c.stand.config.sabotage.ignoreStale && o.stale() {
		o.Status = 200
	}
	return o.open() || twice && twin.open(), o.ok() || twice && twin.ok()
}

// gate holds clients back while they are frozen.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // nil while it is open
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open = make(chan struct{})
	}
}

func (g *gate) lift() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open != nil {
		close(g.open)
		g.open = nil
	}
}

// pass waits while the gate is shut.
func (g *gate) pass(ctx context.Context) {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	if open == nil {
		return
	}
	select {
	case <-open:
	case <-ctx.Done():
	}
}
