package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// client takes leases, uses, extends, forgets and releases them, one call at
// a time, at any server.
type client struct {
	w    *world
	id   int
	rng  *rand.Rand
	ops  int
	done bool // its last call has returned
	// keeping: until when it holds on to its lease, and only extends it.
	keeping time.Duration
	refused int     // how often in a row it found no quorum, or the resource held
	held    []*grip // what it believes to hold, or once held
	key     int     // its last idempotency key
	asked   int     // how many leases it has asked for without one
	calls   int     // how many acquires it has made
	retry   string  // an idempotency key whose answer it lost
	what    wanted  // and what it asked for
	quiet   bool    // makes no more calls
	giveUp  *action // an acquire under a key that it gave up, and is to cancel
}

// grip is a lease that a client knows.
type grip struct {
	id    string
	owner string // as the checker knows it
	parts []lockcore.LeasePart
	key   string // its idempotency key
	what  wanted // what it was asked for as
	torn  bool   // some part of several is lost: it is to be released
	over  bool   // released, or known to be lost
}

// action is one call of a client.
type action struct {
	client   *client
	server   *server
	epoch    int
	verb     string
	parts    []lockcore.LeasePart // what it is about, or the slots of which it may get one, by name; with tokens, if it is about a lease
	owner    string               // of the lease: all attempts under one idempotency key share it
	grip     *grip
	key      string // of an acquire
	what     wanted // by an acquire
	req      lockcore.AcquireRequest
	waits    bool          // it waits in a queue of its server
	until    time.Duration // then it waits no more
	ttl      time.Duration // asked for, by an extend
	call     func(context.Context, service) (lockcore.Lease, error)
	bound    time.Duration // it must have ended by then
	patience time.Duration // the client hangs up after it; 0: never
	began    time.Duration
	floors   []floor         // what had been completed when it began, part by part
	asksAs   map[string]bool // of an acquire: the owners as which its server asks the nodes for it
}

// names lists the resources, for the trace.
func (a *action) names() string { return strings.Join(resourcesOf(a.parts), "+") }

func resourcesOf(parts []lockcore.LeasePart) []string {
	names := make([]string, len(parts))
	for i, part := range parts {
		names[i] = part.Resource
	}
	return names
}

// dreamer is the client that may pause for as long as a lease lasts. The first
// ones, as many as the plan says, may keep their leases for long.
const dreamer = 2

// think schedules the client's next action.
func (c *client) think() {
	if c.keeping > c.w.now() {
		c.w.after(between(c.rng, c.w.plan.MaxTTL/8, c.w.plan.MaxTTL/3), c.act)
		return
	}
	c.w.after(between(c.rng, 0, c.pause()), c.act)
}

// pause is how long the client waits at most between two calls.
func (c *client) pause() time.Duration {
	p := &c.w.plan
	switch dice := c.rng.IntN(20); {
	case c.id == dreamer && chance(c.rng, p.Dream):
		return p.MaxTTL
	case c.refused > 0 && dice < 17 && !p.Eager: // nothing is to be had in a hurry
		return min(20*time.Millisecond<<min(c.refused, 10), max(60*time.Millisecond, p.MaxTTL/2))
	case dice == 0:
		return 60 * time.Millisecond
	}
	return max(p.Pause, min(4*p.Delay, 5*time.Millisecond))
}

// act begins a call, unless the client has done enough.
func (c *client) act() {
	s := c.w.servers[c.rng.IntN(len(c.w.servers))]
	if c.w.plan.Sticky {
		s = c.w.servers[c.id%len(c.w.servers)]
	}
	if c.w.plan.Slow && c.rng.IntN(2) == 0 {
		s = c.w.servers[0]
	}
	switch {
	case c.quiet:
		return
	case !s.alive():
		c.think()
		return
	case c.w.calm || c.ops >= c.w.plan.MaxOps:
		c.finish(s)
		return
	}
	c.ops++
	a := c.choose(s)
	c.begin(a)
}

// finish releases everything, and then makes no more calls.
func (c *client) finish(s *server) {
	for _, g := range c.held {
		if !g.over {
			g.over = true
			c.begin(c.release(s, g))
			return
		}
	}
	c.quiet = true
}

// choose draws what to do.
func (c *client) choose(s *server) *action {
	const more, looks = 7, 4 // of a hundred: another acquire though it has a lease; a look
	g := c.current()
	dice := c.rng.IntN(100)
	switch {
	case c.giveUp != nil:
		return c.cancel(s, c.giveUp)
	case g != nil && g.torn:
		return c.release(s, g)
	case chance(c.rng, c.w.plan.Breaks):
		return c.breaks(s, c.w.names[c.rng.IntN(len(c.w.names))])
	case g != nil && c.keeping > c.w.now():
		return c.extend(s, g, c.w.plan.slower(s.id).own(c.w.plan.MaxTTL))
	case c.retry != "" && dice < 70:
		return c.acquire(s, c.what, c.retry)
	case len(c.held) > 0 && dice < c.w.plan.Old:
		return c.old(s)
	case g == nil || dice < c.w.plan.Old+more:
		return c.acquire(s, c.anything(), c.maybeKey())
	case dice < c.w.plan.Old+more+c.w.plan.Extend:
		return c.extend(s, g, c.ttl(s))
	case dice < c.w.plan.Old+more+c.w.plan.Extend+looks:
		return c.look(s, g)
	case !c.w.plan.Tidy && chance(c.rng, c.w.plan.Forget):
		g.over = true // forgotten: it ends by itself
		return c.acquire(s, c.anything(), c.maybeKey())
	}
	return c.release(s, g)
}

// current is the lease that the client works with.
func (c *client) current() *grip {
	for i := len(c.held) - 1; i >= 0 && i >= len(c.held)-3; i-- {
		if !c.held[i].over {
			return c.held[i]
		}
	}
	return nil
}

func (c *client) anyResource() string {
	return c.w.names[c.rng.IntN(c.w.plan.Resources)]
}

// wanted is what an acquire asks for.
type wanted struct {
	resources []string
	slots     int // one of so many of the one resource; 0: the resources themselves

	minHold, maxHold time.Duration // 0: none

	ttl    time.Duration // 0: not drawn yet
	holder string        // the label of the first call; "": not made yet
}

// several: it is of several resources at once.
func (w wanted) several() bool { return len(w.resources) > 1 }

// names lists, by name, what a lease may be of.
func (w wanted) names() []string {
	if w.slots > 0 {
		return lockcore.SlotNames(w.resources[0], w.slots)
	}
	return slices.Sorted(slices.Values(w.resources))
}

func (w wanted) String() string { return strings.Join(w.names(), "+") }

// anything draws what to ask for.
func (c *client) anything() wanted {
	p, what := &c.w.plan, c.anyOf()
	if p.MinHold {
		what.minHold = between(c.rng, lockcore.MinTTL, p.MaxTTL/2).Truncate(time.Millisecond)
	}
	if p.MaxHold {
		what.maxHold = between(c.rng, p.MaxTTL, 2*p.MaxTTL)
	}
	return what
}

// anyOf draws a resource, one of its slots, or several resources at once.
func (c *client) anyOf() wanted {
	p := &c.w.plan
	all := c.w.names[:p.Resources]
	if len(all) < lockcore.MinBundle || !chance(c.rng, p.Several) {
		one := wanted{resources: []string{c.anyResource()}}
		if p.Slots > 0 && c.rng.IntN(2) == 0 {
			if one.slots = p.Slots; c.rng.IntN(4) == 0 && !p.Mutant.counted {
				one.slots = 1 + c.rng.IntN(p.Slots)
			}
		}
		return one
	}
	const most = 4
	some := make([]string, lockcore.MinBundle+c.rng.IntN(min(most, len(all))-1))
	for i, k := range c.rng.Perm(len(all))[:len(some)] {
		some[i] = all[k]
	}
	return wanted{resources: some}
}

func (c *client) maybeKey() string {
	if !c.w.plan.Stubborn && c.rng.IntN(6) > 0 {
		return ""
	}
	if p := &c.w.plan; p.Twins {
		return fmt.Sprintf("clients%d key%d", (c.id+1)/2, c.w.now()/(p.MaxTTL/4))
	}
	c.key++
	return fmt.Sprintf("client%d key%d", c.id, c.key)
}

// old does something with a lease of long ago, as a stale client does.
func (c *client) old(s *server) *action {
	g := c.held[c.rng.IntN(len(c.held))]
	switch dice := c.rng.IntN(3); {
	case dice == 0:
		return c.look(s, g)
	case dice == 1, c.w.plan.Tidy && g.over: // an extend may leave a vote to its TTL, which no client retracts then
		return c.release(s, g)
	}
	return c.extend(s, g, c.ttl(s))
}

func (c *client) ttl(s *server) time.Duration { return c.w.plan.slower(s.id).own(c.anyTTL()) }

func (c *client) anyTTL() time.Duration {
	most := c.w.plan.MaxTTL
	if c.rng.IntN(2) == 0 {
		most /= 4
	}
	return max(lockcore.MinTTL, time.Duration(c.rng.Int64N(int64(most)))).Truncate(time.Millisecond)
}

// limit is how long the server waits for a round.
func (c *client) limit(s *server) time.Duration {
	return c.w.plan.slower(s.id).own(c.w.plan.NodeTimeout)
}

// keysLimit is how long a server may look for a secret that it does not know (rule 24).
func (c *client) keysLimit(s *server) time.Duration {
	const timeouts = 4
	downAfter := cmp.Or(c.w.plan.slower(s.id).own(c.w.plan.Options.DownAfter), timeouts*c.limit(s))
	return c.w.plan.Watch + max(downAfter, c.w.plan.Watch)
}

// drawn completes what a request asks for; a repeat under a key asks for the same.
func (c *client) drawn(s *server, what wanted, key string) wanted {
	if what.holder != "" {
		return what
	}
	c.calls++
	what.holder = fmt.Sprintf("c%d/%d", c.id, c.calls)
	switch p := &c.w.plan; {
	case what.ttl > 0:
	case p.Twins: // both ask for the same
		what.holder, what.ttl = strings.ReplaceAll(key, " ", "/"), p.MaxTTL/2
	case key != "": // whichever server it goes to
		what.ttl = c.anyTTL()
	default:
		what.ttl = c.ttl(s)
	}
	what.ttl = max(what.ttl, what.minHold)
	return what
}

func (c *client) acquire(s *server, what wanted, key string) *action {
	what = c.drawn(s, what, key)
	req := lockcore.AcquireRequest{
		TTL: what.ttl, MinHold: what.minHold, MaxHold: what.maxHold, Metadata: c.w.plan.Metadata,
		Holder: what.holder, IdempotencyKey: key, Slots: what.slots,
	}
	if what.several() {
		req.Resources = what.resources
	} else {
		req.Resource = what.resources[0]
	}
	if c.w.plan.Queues && !c.w.calm && c.rng.IntN(2) == 0 && s.mayWait(what) {
		req.Wait = between(c.rng, time.Millisecond, c.w.plan.longestWait())
	}
	if poll := cmp.Or(c.w.plan.Options.Poll, time.Duration(1+c.rng.IntN(2))*time.Second); c.w.plan.Polls && key != "" && poll < req.Wait {
		req.Poll = poll
	}
	a := &action{
		verb: "acquire", owner: key, key: key, what: what, req: req, server: s, waits: req.Wait > 0, until: c.w.now() + req.Wait,
		call: func(ctx context.Context, l service) (lockcore.Lease, error) { return l.Acquire(ctx, req) },
	}
	if key == "" {
		c.asked++
		a.owner = fmt.Sprintf("client%d lease%d", c.id, c.asked)
	}
	for _, resource := range what.names() {
		a.parts = append(a.parts, lockcore.LeasePart{Resource: resource})
	}
	const tries = 8
	round := 2 * c.limit(s)
	a.bound = time.Duration(len(a.parts))*(tries*(round+50*time.Millisecond)+c.w.plan.crowd(tries, round)) + req.Wait
	switch {
	case what.several(): // and the parts are extended at the end
		a.bound += tries * c.limit(s)
	case what.slots > 0: // and it looks at them up to three times
		a.bound = 3*a.bound + 3*c.limit(s)
	}
	if hangUp := cmp.Or(c.w.plan.HangUp, 0.1); chance(c.rng, hangUp) {
		a.patience = between(c.rng, 0, 4*c.w.plan.Delay+req.Wait/2)
	}
	c.retry, c.what = key, what
	return a
}

// about begins an action on a lease.
func (g *grip) about(verb string, s *server) *action {
	return &action{verb: verb, parts: g.parts, owner: g.owner, grip: g, server: s}
}

func (c *client) extend(s *server, g *grip, ttl time.Duration) *action {
	const tries = 8
	a := g.about("extend", s)
	a.ttl, a.bound = ttl, tries*c.limit(s)
	a.call = func(ctx context.Context, l service) (lockcore.Lease, error) { return l.Extend(ctx, g.id, ttl) }
	return a
}

func (c *client) look(s *server, g *grip) *action {
	a := g.about("look", s)
	a.bound = c.limit(s)
	a.call = func(ctx context.Context, l service) (lockcore.Lease, error) { return l.Lease(ctx, g.id) }
	return a
}

func (c *client) release(s *server, g *grip) *action {
	a := g.about("release", s)
	a.bound = 2 * c.limit(s)
	a.call = func(ctx context.Context, l service) (lockcore.Lease, error) {
		return lockcore.Lease{}, l.Release(ctx, g.id)
	}
	return a
}

// cancel ends whatever a request under a key has got that nobody waits for any more.
func (c *client) cancel(s *server, request *action) *action {
	const rounds = 3 // the secret, a look, the release
	a := &action{verb: "cancel", owner: request.owner, parts: request.parts, server: s, bound: rounds * 2 * c.limit(s)}
	req := request.req
	req.TTL, req.MinHold, req.MaxHold, req.Wait, req.Poll = 0, 0, 0, 0, 0 // another server may allow others, and they do not matter
	a.call = func(ctx context.Context, l service) (lockcore.Lease, error) {
		_, err := l.Cancel(ctx, req)
		return lockcore.Lease{}, err
	}
	return a
}

// breaks is what an operator does: it ends the last lease that it has heard of, or the one
// that it has broken before, or (token 0) whatever lease there is.
func (c *client) breaks(s *server, resource string) *action {
	const rounds = 4 // a look, the counters, the counting past the token, the break
	l := c.w.check.ledger(resource)
	token := []fencing.Token{0, l.largest, l.largest, l.mayBreak}[c.rng.IntN(4)]
	return &action{
		verb: "break", parts: []lockcore.LeasePart{{Resource: resource, Token: token}}, server: s,
		bound: rounds * c.limit(s),
		call: func(ctx context.Context, l service) (lockcore.Lease, error) {
			return lockcore.Lease{}, l.Break(ctx, resource, token)
		},
	}
}

// begin makes the call, in a goroutine of its own as every server does.
func (c *client) begin(a *action) {
	w := c.w
	a.client, a.epoch, a.began = c, a.server.epoch, w.now()
	a.floors = w.check.begins(a)
	a.asksAs = make(map[string]bool)
	if a.waits {
		a.server.waiting(a.what)
	}
	w.trace.text(a.verb)
	if w.trace.keep {
		w.logf("client %d begins %s %s at server %d", c.id, a.verb, a.names(), a.server.id+1)
	}
	ctx, cancel := context.WithCancel(a.server.ctx)
	if a.patience > 0 {
		w.after(a.patience, cancel)
	}
	locker, caller := a.server.locker, w.caller()
	w.underWay++
	caller <- func() {
		defer cancel()
		lease, err := a.call(ctx, locker)
		w.post(&completion{action: a, caller: caller, lease: lease, err: err, at: w.clock()})
	}
}

// caller returns a goroutine that makes no call at the moment: one that was
// used before has a stack that need not grow.
func (w *world) caller() chan<- func() {
	if last := len(w.callers) - 1; last >= 0 {
		caller := w.callers[last]
		w.callers = w.callers[:last]
		return caller
	}
	calls := make(chan func(), 1)
	w.calling.Go(func() {
		for call := range calls {
			call()
		}
	})
	return calls
}

// completion is a call that has returned on its server.
type completion struct {
	*action
	caller chan<- func()
	lease  lockcore.Lease
	err    error
	at     time.Duration
}

func (d *completion) rank() rank {
	return rank{server: d.server.id, kind: kindOf("done"), n: int64(d.client.id)}
}

// accept hands the answer to the client, if its server lives to send it.
func (d *completion) accept(w *world) {
	w.callers = append(w.callers, d.caller)
	w.underWay--
	w.check.returned(d)
	if d.waits && d.epoch == d.server.epoch {
		d.server.waiters--
	}
	d.deliver(w)
}

func (d *completion) deliver(w *world) {
	if d.epoch != d.server.epoch {
		d.client.think() // no answer: it took effect or it did not
		return
	}
	if held := d.server.pausedUntil - w.now(); held > 0 {
		w.after(held, func() { d.deliver(w) })
		return
	}
	w.check.ends(d)
	w.trace.text(d.verb)
	for _, part := range partsOf(&d.lease) {
		w.trace.number(int64(part.Token))
	}
	if w.trace.keep {
		w.logf("client %d ends %s %s: %v validity %s %v", d.client.id, d.verb, d.names(), partsOf(&d.lease), d.lease.Validity, d.err)
	}
	d.client.done = true
	d.client.learn(d)
	d.client.think()
}

// learn is what the client makes of the answer.
func (c *client) learn(d *completion) {
	if errors.Is(d.err, lockcore.ErrNoQuorum) || errors.Is(d.err, lockcore.ErrHeld) || errors.Is(d.err, lockcore.ErrTooManyWaiters) {
		c.refused++
	} else {
		c.refused = 0
	}
	notHeld := errors.Is(d.err, lockcore.ErrNotHeld)
	switch {
	case d.verb == "cancel":
		if d.err == nil {
			c.giveUp = nil
		}
	case d.verb == "acquire" && d.key != "" && errors.Is(d.err, context.Canceled) && c.w.plan.Cancels > 0 && chance(c.rng, c.w.plan.Cancels):
		c.giveUp, c.retry = d.action, ""
		for _, g := range c.held {
			g.over = g.over || g.key == d.key
		}
	case d.verb == "acquire" && d.err == nil:
		c.granted(d)
	case d.polled(): // and it comes again
	case d.verb == "acquire" && !c.w.plan.Stubborn && c.rng.IntN(2) == 0:
		c.retry = ""
	case d.verb == "break":
	case d.verb == "look" && notHeld && len(d.parts) > 1:
		d.grip.torn = !d.grip.over // the other parts are to be released; an extend ends them by itself
	case d.verb == "release", notHeld, errors.Is(d.err, lockcore.ErrMaxHold):
		doubts := d.verb == "extend" && chance(c.rng, c.w.plan.Doubts)
		d.grip.over = d.grip.over || d.err == nil || notHeld && !doubts
		c.retry = ""
		// A key may be used again once the lease was surely released.
		if d.verb == "release" && d.err == nil && d.grip.key != "" && chance(c.rng, c.w.plan.Reuse) {
			c.retry, c.what = d.grip.key, d.grip.what
		}
	}
}

// polled: a request was answered before its wait was over.
func (d *completion) polled() bool {
	return d.req.Poll > 0 && errors.Is(d.err, lockcore.ErrWaitTimeout)
}

// granted takes a lease, which some clients keep.
func (c *client) granted(d *completion) {
	c.held = append(c.held, &grip{id: d.lease.ID, owner: d.owner, parts: partsOf(&d.lease), key: d.key, what: d.what})
	if c.id <= c.w.plan.Keepers && chance(c.rng, c.w.plan.Keep) {
		c.keeping = c.w.now() + between(c.rng, c.w.plan.MaxTTL, 8*c.w.plan.MaxTTL)
	}
	if c.rng.IntN(4) > 0 { // else its answer got lost on the way, and it asks again
		c.retry = ""
	}
}
