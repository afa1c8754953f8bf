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

// client takes leases and uses, extends, forgets and releases them. It makes one call at a time, at any
// server.
type client struct {
	w    *world
	id   int
	rng  *rand.Rand
	ops  int
	done bool // its last call has returned
	// keeping is until when it keeps its lease and only extends it.
	keeping time.Duration
	refused int     // times in a row that it found no quorum, or the resource held
	held    []*grip // leases that it believes to hold, or held earlier
	key     int     // its last idempotency key
	asked   int     // number of leases that it has requested without a key
	calls   int     // number of its acquires
	retry   string  // an idempotency key whose response it lost
	what    wanted  // the request with that key
	quiet   bool    // makes no more calls
	giveUp  *action // an acquire under a key that it gave up and is going to cancel
}

// grip is a lease that a client knows.
type grip struct {
	id    string
	owner string // the owner as the checker knows it
	parts []lockcore.LeasePart
	key   string // its idempotency key
	what  wanted // the request that it came from
	torn  bool   // a part of several is lost, so it is to be released
	over  bool   // released, or known to be lost
}

// action is one call of a client.
type action struct {
	client   *client
	server   *server
	epoch    int
	verb     string
	parts    []lockcore.LeasePart // the resources that the call concerns, or the slots of which it may get one, sorted by name; with tokens if it concerns a lease
	owner    string               // owner of the lease: all attempts under one idempotency key share it
	grip     *grip
	key      string // the idempotency key of an acquire
	what     wanted // what an acquire requests
	req      lockcore.Request
	waits    bool          // it waits in its server's queue
	until    time.Duration // end of that wait
	ttl      time.Duration // requested by an extend
	call     func(context.Context, service) (lockcore.Lease, error)
	bound    time.Duration // the call must end by then
	patience time.Duration // after this time the client hangs up; 0: never
	began    time.Duration
	floors   []floor         // the ledgers when it began, part by part
	asksAs   map[string]bool // for an acquire: the owners that its server names to the nodes
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

// dreamer is the number of the client that may pause for as long as a lease lasts. The first plan.Keepers
// clients may keep their leases for long.
const dreamer = 2

// think schedules the client's next action.
func (c *client) think() {
	if c.keeping > c.w.now() {
		c.w.after(between(c.rng, c.w.plan.MaxTTL/8, c.w.plan.MaxTTL/3), c.act)
		return
	}
	c.w.after(between(c.rng, 0, c.pause()), c.act)
}

// pause is the maximum time between two calls of the client.
func (c *client) pause() time.Duration {
	p := &c.w.plan
	switch dice := c.rng.IntN(20); {
	case c.id == dreamer && chance(c.rng, p.Dream):
		return p.MaxTTL
	case c.refused > 0 && dice < 17 && !p.Eager: // a client waits longer after each refusal
		return min(20*time.Millisecond<<min(c.refused, 10), max(60*time.Millisecond, p.MaxTTL/2))
	case dice == 0, c.w.plan.Returns && c.retry != "":
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

// choose draws the next action.
func (c *client) choose(s *server) *action {
	const more, looks = 7, 4 // percent: of acquires by a client that has a lease, and of looks
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
	case c.retry != "" && (dice < 70 || c.w.plan.Returns):
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
		g.over = true // forgotten: the lease expires
		return c.acquire(s, c.anything(), c.maybeKey())
	}
	return c.release(s, g)
}

// current is the lease on which the client works.
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

// wanted describes the request of an acquire.
type wanted struct {
	resources []string
	slots     int // one of this many slots of the one resource; 0: no slots

	minHold, maxHold time.Duration // 0: none

	ttl    time.Duration // 0: not drawn yet
	holder string        // the label of the first call; "": not made yet
}

// several reports that it is for several resources at once.
func (w wanted) several() bool { return len(w.resources) > 1 }

// names lists, by name, the resources of which the lease may consist.
func (w wanted) names() []string {
	if w.slots > 0 {
		return lockcore.SlotNames(w.resources[0], w.slots)
	}
	return slices.Sorted(slices.Values(w.resources))
}

func (w wanted) String() string { return strings.Join(w.names(), "+") }

// anything draws a request.
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
	rarely := 6
	if c.w.plan.Returns { // then half of the requests have a key
		rarely = 2
	}
	if !c.w.plan.Stubborn && c.rng.IntN(rarely) > 0 {
		return ""
	}
	if p := &c.w.plan; p.Twins {
		return fmt.Sprintf("clients%d key%d", (c.id+1)/2, c.w.now()/(p.MaxTTL/4))
	}
	c.key++
	return fmt.Sprintf("client%d key%d", c.id, c.key)
}

// old uses a lease from long ago, as a stale client does.
func (c *client) old(s *server) *action {
	g := c.held[c.rng.IntN(len(c.held))]
	switch dice := c.rng.IntN(3); {
	case dice == 0:
		return c.look(s, g)
	case dice == 1, c.w.plan.Tidy && g.over: // an extend of a lease that is over may leave a vote that no client retracts, and that stays for its TTL
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

// drawn completes a request. A repetition under a key has the same parameters.
func (c *client) drawn(s *server, what wanted, key string) wanted {
	if what.holder != "" {
		return what
	}
	c.calls++
	what.holder = fmt.Sprintf("c%d/%d", c.id, c.calls)
	switch p := &c.w.plan; {
	case what.ttl > 0:
	case p.Twins: // both twins request the same
		what.holder, what.ttl = strings.ReplaceAll(key, " ", "/"), p.MaxTTL/2
	case key != "": // the TTL does not depend on the server, because the repetition may use another one
		what.ttl = c.anyTTL()
	default:
		what.ttl = c.ttl(s)
	}
	what.ttl = max(what.ttl, what.minHold)
	return what
}

func (c *client) acquire(s *server, what wanted, key string) *action {
	what = c.drawn(s, what, key)
	req := lockcore.Request{
		TTL: what.ttl, MinHold: what.minHold, MaxHold: what.maxHold, Metadata: c.w.plan.Metadata,
		Holder: what.holder, IdempotencyKey: key, Slots: what.slots,
	}
	if what.several() {
		req.Resources = what.resources
	} else {
		req.Resource = what.resources[0]
	}
	if c.w.plan.Queues && !c.w.calm && (c.rng.IntN(2) == 0 || c.w.plan.Returns && key != "") && s.mayWait(what) {
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
	case what.several(): // the parts are also extended at the end
		a.bound += tries * c.limit(s)
	case what.slots > 0: // the slots are also read, up to three times
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

// cancel ends everything that a request under a key got and that its client no longer wants.
func (c *client) cancel(s *server, request *action) *action {
	const rounds = 3 // the secret, a look, the release
	a := &action{verb: "cancel", owner: request.owner, parts: request.parts, server: s, bound: rounds * 2 * c.limit(s)}
	req := request.req
	req.TTL, req.MinHold, req.MaxHold, req.Wait, req.Poll = 0, 0, 0, 0, 0 // another server may have other bounds, and a cancel does not use these fields
	a.call = func(ctx context.Context, l service) (lockcore.Lease, error) {
		_, err := l.Cancel(ctx, req)
		return lockcore.Lease{}, err
	}
	return a
}

// breaks is a break by an operator. It ends the last lease that the operator has heard of, the one that it
// broke before, or (token 0) any lease of the resource.
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

// caller returns a goroutine that makes no call at the moment. A goroutine that was used before has a stack
// that need not grow.
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

// accept delivers the response to the client. It is lost if the server dies before that.
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
		d.client.think() // no response: the call took effect or it did not
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

// learn updates the client's knowledge from the response.
func (c *client) learn(d *completion) {
	if errors.Is(d.err, lockcore.ErrNoQuorum) || errors.Is(d.err, lockcore.ErrHeld) {
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
	case d.polled(): // the client repeats the request
	case d.verb == "acquire" && !c.w.plan.Stubborn && c.rng.IntN(2) == 0:
		c.retry = ""
	case d.verb == "break":
	case d.verb == "look" && notHeld && len(d.parts) > 1:
		d.grip.torn = !d.grip.over // the other parts are to be released; an extend would release them as well
	case d.verb == "release", notHeld, errors.Is(d.err, lockcore.ErrMaxHold):
		doubts := d.verb == "extend" && chance(c.rng, c.w.plan.Doubts)
		d.grip.over = d.grip.over || d.err == nil || notHeld && !doubts
		c.retry = ""
		// A key may be used again after the lease was certainly released.
		if d.verb == "release" && d.err == nil && d.grip.key != "" && chance(c.rng, c.w.plan.Reuse) {
			c.retry, c.what = d.grip.key, d.grip.what
		}
	}
}

// polled reports that a request got its response before its wait was over.
func (d *completion) polled() bool {
	return d.req.Poll > 0 && errors.Is(d.err, lockcore.ErrWaitTimeout)
}

// granted takes a lease, which some clients keep for long.
func (c *client) granted(d *completion) {
	c.held = append(c.held, &grip{id: d.lease.ID, owner: d.owner, parts: partsOf(&d.lease), key: d.key, what: d.what})
	if c.id <= c.w.plan.Keepers && chance(c.rng, c.w.plan.Keep) {
		c.keeping = c.w.now() + between(c.rng, c.w.plan.MaxTTL, 8*c.w.plan.MaxTTL)
	}
	if c.rng.IntN(4) > 0 { // otherwise the response was lost on the way, and the client repeats the request
		c.retry = ""
	}
}
