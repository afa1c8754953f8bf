package sim

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// checker records every response to a client, and finds those that break a promise.
type checker struct {
	Result

	w       *world
	ledgers map[string]*ledger
	busy    time.Duration         // until when some client believes that it holds a lease, or keeps a place
	dark    map[int]time.Duration // by node set: since when no quorum of it has responded
	// underWay lists the calls that have not returned, in the order in which they began.
	underWay []*action
	vacant   map[string]vacancy // resources with a waiter and without a holder
}

// Violation is a broken promise.
type Violation struct {
	At    time.Duration
	Rule  string // name of the promise
	Story string
}

func (v *Violation) String() string { return fmt.Sprintf("at %s: %s: %s", v.At, v.Rule, v.Story) }

// Safety reports whether the promise is about safety rather than time.
func (v *Violation) Safety() bool {
	switch v.Rule {
	case "unique tokens", "ordered tokens", "superseded lease", "ended lease", "token of a lease", "exclusion", "reachable tokens", "broken lease", "slots", "slot of a key":
		return true
	}
	return false
}

// ledger records what was completed on one resource.
type ledger struct {
	ended   map[string]fencing.Token // by owner: token of a lease whose release succeeded, or whose extend was refused
	largest fencing.Token            // the largest token of the completed acquisitions
	owner   string                   // owner of the lease with that token
	tokens  map[fencing.Token]string // by token: the owner that uses it
	spans   []span
	// released is, by owner, the largest token for which its client has called Release, successful or not.
	// Under an idempotency key the next lease has the same owner.
	released map[string]fencing.Token
	since    map[string]time.Duration // by owner: when its lease was first requested
	blind    map[string]bool          // owners that got a vote from a node whose clock had jumped unseen
	broken   fencing.Token            // leases up to this token were broken
	mayBreak fencing.Token            // leases up to this token may have been broken: the break was requested
	breaking int                      // breaks with token 0 that are under way
	breakEnd time.Duration            // end of the last such break; negative if there was none
	busy     time.Duration            // until when some client believes that it holds the resource, or keeps a place
	lost     time.Duration            // until when a lock may remain for a client that got no response
	places   map[string]*keptPlace    // by owner: the place of its latest poll
	used     time.Duration            // when a client was last seen to hold or request it
	asks     int                      // number of acquires that have begun
	set      int                      // the node set on which it was requested; negative: not yet
}

// excused reports that the lease may overlap others. Either it was broken or may have been, or a clock had
// jumped that no server can have seen yet (rule 22). A break of a token excuses no later lease.
func (l *ledger) excused(s span) bool {
	return s.token <= l.mayBreak || l.breaking > 0 || l.since[s.owner] <= l.breakEnd || l.blind[s.owner]
}

// span is a time during which a client may believe that it holds the lease.
type span struct {
	owner       string
	token       fencing.Token
	from, until time.Duration
	locked      time.Duration // until when its lock may remain beyond that time
	value       string        // the owner's value on the nodes: a key has one under each secret of the cluster
}

// valueOf returns the ownership value of a resource in a lease id. A server derives the value when a request
// begins. It seals the id at the grant, possibly with a later secret.
func valueOf(lease, resource string) string {
	const head, times, size = 1 + node.KeyIDBytes + 16, 3, 20
	raw, err := base64.RawURLEncoding.DecodeString(lease)
	if err != nil || len(raw) < head {
		return ""
	}
	raw = raw[head:]
	number := func() (n uint64) {
		n, used := binary.Uvarint(raw)
		raw = raw[max(used, 0):]
		return n
	}
	for range times {
		number()
	}
	for len(raw) > size {
		value := raw[:size]
		raw = raw[size:]
		number() // the token
		name := number()
		if name > uint64(len(raw)) {
			return ""
		}
		if string(raw[:name]) == resource {
			return base64.RawURLEncoding.EncodeToString(value)
		}
		raw = raw[name:]
	}
	return ""
}

// meets reports whether the two times overlap.
func (s span) meets(o span) bool { return o.from < s.until && s.from < o.until }

// floor is the state of a resource's ledger when a call began.
type floor struct {
	ended  fencing.Token // the largest token of the owner's leases whose holder knows that they have ended
	token  fencing.Token
	owner  string
	broken fencing.Token

	believed span          // believed span of the lease that the call is about, or that its key has
	used     time.Duration // the time in ledger.used
	asks     int           // the number in ledger.asks, including this call
}

func newChecker(w *world) *checker {
	return &checker{w: w, ledgers: make(map[string]*ledger), vacant: make(map[string]vacancy), dark: make(map[int]time.Duration)}
}

func (c *checker) failed() bool { return c.Violation != nil }

func (c *checker) violatef(rule, format string, args ...any) {
	if c.Violation == nil {
		c.Violation = &Violation{At: c.w.now(), Rule: rule, Story: fmt.Sprintf(format, args...)}
		c.w.logf("VIOLATION %s", c.Violation)
	}
}

func (c *checker) ledger(resource string) *ledger {
	l := c.ledgers[resource]
	if l == nil {
		l = &ledger{
			tokens: make(map[fencing.Token]string), released: make(map[string]fencing.Token), ended: make(map[string]fencing.Token),
			since: make(map[string]time.Duration), places: make(map[string]*keptPlace), blind: make(map[string]bool), breakEnd: -1, set: -1,
		}
		c.ledgers[resource] = l
	}
	return l
}

// begins records, part by part, what had been completed before a call.
func (c *checker) begins(a *action) (floors []floor) {
	c.underWay = append(c.underWay, a)
	for _, part := range a.parts {
		l := c.ledger(part.Resource)
		f := floor{token: l.largest, owner: l.owner, broken: l.broken, ended: l.ended[a.owner], believed: l.newest(a.owner, part, c.w.now()), used: max(l.used, l.keptUntil())}
		switch a.verb {
		case "acquire":
			l.asks++
			l.used = max(l.used, c.w.now())
			if a.waits && !a.what.several() {
				l.needsNoPlace(a.owner, c.w.now())
			}
			if _, again := l.since[a.owner]; !again {
				l.since[a.owner] = c.w.now()
			}
		case "break":
			l.mayBreak = max(l.mayBreak, part.Token)
			if part.Token == 0 {
				l.breaking++
			}
		case "release": // from here on the client holds nothing
			l.released[a.owner] = max(l.released[a.owner], part.Token)
			l.shorten(a.owner, part.Token, c.w.now())
		case "cancel": // likewise; a twin whose response is still on its way holds nothing either
			l.released[a.owner] = fencing.MaxToken
			l.shorten(a.owner, fencing.MaxToken, c.w.now())
		case "extend": // from here on it holds the lease for the new time, if that is shorter
			const drift = 100
			l.outlasts(a.owner, c.w.plan.MaxTTL/50)
			l.shorten(a.owner, part.Token, c.w.now()+a.ttl-a.ttl/drift-2*time.Millisecond)
		}
		f.asks = l.asks
		floors = append(floors, f)
	}
	return floors
}

// asked records the owner that a request names to a node. The request's label shows the client.
func (c *checker) asked(op *node.Op) {
	const label = 1
	for _, a := range c.underWay {
		if parts := strings.Split(op.Meta, "\x1f"); len(parts) > label && parts[label] == a.req.Holder {
			a.asksAs[op.Owner] = true
		}
	}
}

// end records that the holder knows that the lease has ended.
func (l *ledger) end(owner string, token fencing.Token) {
	l.ended[owner] = max(l.ended[owner], token)
}

// shorten limits the time for which the owner believes in leases up to the token.
func (l *ledger) shorten(owner string, token fencing.Token, until time.Duration) {
	for i := range l.spans {
		if l.spans[i].owner == owner && l.spans[i].token <= token {
			l.spans[i].until = min(l.spans[i].until, until)
		}
	}
}

// answered reports that the call got a final response, so that none of its locks may remain.
func (d *completion) answered() bool {
	switch {
	case d.epoch != d.server.epoch:
		return false
	case d.verb == "acquire":
		return d.key == "" || !errors.Is(d.err, context.Canceled)
	}
	return d.err == nil || errors.Is(d.err, lockcore.ErrNotHeld) || errors.Is(d.err, lockcore.ErrOtherLease)
}

// returned handles a call that has ended, whether or not its response arrives.
func (c *checker) returned(d *completion) {
	c.underWay = slices.DeleteFunc(c.underWay, func(a *action) bool { return a == d.action })
	if !d.answered() {
		c.excuse(d.action, c.w.plan.MaxTTL)
	}
	c.keepsPlace(d)
	if d.verb == "break" && d.parts[0].Token == 0 {
		l := c.ledger(d.parts[0].Resource)
		l.breaking--
		l.breakEnd = d.at
	}
}

// ends checks a response.
func (c *checker) ends(d *completion) {
	c.Calls++
	if took := d.at - d.began; took > d.bound+d.grace() {
		c.violatef("bounds", "%s took %s, longer than %s", d.verb, took, d.bound)
	}
	c.lasts(d)
	c.finds(d)
	c.keepsOut(d)
	if d.err != nil {
		c.checkError(d)
		return
	}
	switch d.verb {
	case "acquire":
		c.Acquisitions++
		for _, part := range partsOf(&d.lease) {
			c.acquired(d, part)
		}
	case "extend":
		c.Extensions++
		c.kept(d)
	case "look":
		c.kept(d)
	case "release":
		for _, part := range d.parts {
			c.ledger(part.Resource).end(d.owner, part.Token)
		}
	case "break": // the leases that were granted before the break was requested have ended, up to its token
		l, upTo := c.ledger(d.parts[0].Resource), d.floors[0].token
		if token := d.parts[0].Token; token > 0 {
			upTo = token
		}
		l.broken = max(l.broken, upTo)
	}
}

// lingers is how long the place of a poll is kept.
const lingers = 2 * time.Second

// grace is extra time for pauses, during which a server does not count time.
func (d *completion) grace() time.Duration {
	if d.client.w.plan.Maps != nil { // it waits for a resource that moves, part by part
		return time.Duration(max(1, len(d.parts))) * 12 * time.Second
	}
	return 5*time.Millisecond + d.client.keysLimit(d.server)
}

// checkError reports errors that no call may return.
func (c *checker) checkError(d *completion) {
	if errors.Is(d.err, lockcore.ErrNotHeld) && d.grip != nil { // from now on its client knows that the lease has ended
		for _, part := range d.parts {
			c.ledger(part.Resource).shorten(d.owner, part.Token, d.at)
			c.ledger(part.Resource).unlocked(d.owner, part.Token)
		}
		if d.verb == "extend" && len(d.parts) == 1 {
			c.ledger(d.parts[0].Resource).end(d.owner, d.parts[0].Token)
		}
	}
	if d.waits && d.key != "" && errors.Is(d.err, context.Canceled) { // the request may be repeated, and no other request passes it
		c.busy = max(c.busy, d.at+lingers)
		for _, part := range d.parts {
			c.ledger(part.Resource).busy = c.busy
		}
	}
	if c.w.plan.Perfect && d.verb == "acquire" {
		c.checkService(d)
	}
	if !c.w.plan.mayEnd(d) {
		c.violatef("errors", "%s: %v", d.verb, d.err)
	}
}

// mayEnd reports whether the call may return its error.
func (p *Plan) mayEnd(d *completion) bool {
	switch {
	case errors.Is(d.err, lockcore.ErrMaxHold):
		return p.MaxHold && d.verb == "extend"
	case errors.Is(d.err, lockcore.ErrIdempotencyMismatch):
		return p.Twins // the other twin uses the key for another request
	}
	return slices.ContainsFunc([]error{
		lockcore.ErrHeld, lockcore.ErrOtherLease, lockcore.ErrNoQuorum, lockcore.ErrNotHeld, lockcore.ErrWaitTimeout, lockcore.ErrStopping,
		context.Canceled,
	}, func(known error) bool { return errors.Is(d.err, known) })
}

// checkService: if messages are delivered as they should be, a node set with a sound quorum responds, except
// for moments, and no client waits while no client holds anything.
func (c *checker) checkService(d *completion) {
	const moment = 500 * time.Millisecond
	var refused *lockcore.QuorumError
	if errors.As(d.err, &refused) && refused.Cause == nil {
		set := c.ledger(refused.Resource).set
		since, dark := c.dark[set]
		switch {
		case set < 0 || !c.w.sound(set, d.began):
			delete(c.dark, set)
		case !dark:
			c.dark[set] = d.began
		case d.began-since > moment:
			c.violatef("service", "%s finds no quorum since %s, and most of its nodes are sound: %v", refused.Resource, since, d.err)
		}
	}
	idle := d.at - max(d.began, c.busyWith(d))
	if errors.Is(d.err, lockcore.ErrWaitTimeout) && idle > c.w.plan.MaxTTL+4*moment {
		c.violatef("stuck", "a client waited for %v, which no client held for the last %s", d.what, idle)
	}
}

// busyWith returns until when clients held what the call waited for. That is all slots. It is any resource at
// all if some clients take several resources and keep one while they wait for another.
func (c *checker) busyWith(d *completion) time.Duration {
	if c.w.plan.Several > 0 {
		return c.busy
	}
	busy := c.busy
	for _, part := range d.parts {
		busy = min(busy, c.ledger(part.Resource).busy)
	}
	return busy
}

// acquired checks the order of a resource's tokens, that no two leases share one, and exclusion.
func (c *checker) acquired(d *completion, part lockcore.LeasePart) {
	i := slices.IndexFunc(d.parts, func(asked lockcore.LeasePart) bool { return asked.Resource == part.Resource })
	if i < 0 {
		c.violatef("errors", "%s was asked for and %s given", d.what, part.Resource)
		return
	}
	l, token, floor := c.ledger(part.Resource), part.Token, d.floors[i]
	delete(c.dark, l.set)
	l.needsNoPlace(d.owner, d.at)
	c.overtakes(d, part.Resource)
	again := !d.lease.Existing && !d.what.several() && !c.w.plan.Twins // a lease of several may contain parts that existed before, and twins may share a lease
	switch used := l.tokens[token]; {
	case c.w.plan.Mutant.counted: // its leases have no slots
	case used != "" && used != d.owner:
		c.violatef("unique tokens", "token %d of %s was given twice", token, part.Resource)
	case token < floor.token || token == floor.token && d.owner != floor.owner:
		c.violatef("ordered tokens", "token %d of %s was given after %d had been", token, part.Resource, floor.token)
	case used != "" && again:
		c.violatef("unique tokens", "token %d of %s was given again", token, part.Resource)
	}
	if most := node.FloorAt(c.w.began.Add(c.w.now() + time.Minute)); token > most {
		c.violatef("reachable tokens", "token %d of %s is above %d", token, part.Resource, most)
	}
	l.tokens[token] = d.owner
	if token > l.largest {
		l.largest, l.owner = token, d.owner
	}
	if c.w.blindDuring(l.set, d.began, d.at) {
		l.blind[d.owner] = true
	}
	c.believe(d, part, floor)
}

// kept checks that a lease that the service reports as held was not superseded before the request was sent.
func (c *checker) kept(d *completion) {
	for i, part := range partsOf(&d.lease) {
		if part.Token < d.floors[i].token && !c.w.plan.Mutant.counted {
			c.violatef("superseded lease", "%s with token %d of %s succeeded after token %d had been given",
				d.verb, part.Token, part.Resource, d.floors[i].token)
		}
		if part.Token <= d.floors[i].ended {
			c.violatef("ended lease", "%s of %s with token %d succeeded after its holder was told that the lease has ended", d.verb, part.Resource, part.Token)
		}
		if part != d.parts[i] {
			c.violatef("token of a lease", "%s changed %v to %v", d.verb, d.parts[i], part)
		}
		c.believe(d, part, d.floors[i])
	}
}

// brokenPart reports whether another part of the lease may have been broken. A lease of several ends with any
// part, and its holder learns so only later.
func (c *checker) brokenPart(s span) bool {
	for _, l := range c.ledgers {
		if slices.ContainsFunc(l.spans, func(part span) bool {
			return part.owner == s.owner && part.meets(s) && l.excused(part)
		}) {
			return true
		}
	}
	return false
}

// believe records the time for which the client may believe that it holds the lease, and checks that no other
// client may believe so at the same time.
func (c *checker) believe(d *completion, part lockcore.LeasePart, floor floor) {
	valid := d.lease.Validity
	if c.w.plan.Mutant.trusting {
		valid = d.lease.TTL
	}
	l, s := c.ledger(part.Resource), span{owner: d.owner, token: part.Token, from: d.at, until: d.at + valid, value: valueOf(d.lease.ID, part.Resource)}
	c.busy, l.busy = max(c.busy, s.until), max(l.busy, s.until)
	if d.lease.Validity <= 0 {
		c.violatef("validity", "%s gave a validity of %s", d.verb, d.lease.Validity)
	}
	if s.token <= floor.broken {
		c.violatef("broken lease", "%s of %s with token %d succeeded after it had been broken", d.verb, part.Resource, s.token)
	}
	if !c.w.plan.timed() {
		return
	}
	if s.token <= l.released[s.owner] {
		return // a client that has requested the release no longer believes that it holds the lease
	}
	c.believeSlot(part.Resource, s)
	for _, o := range l.spans {
		if o.meets(s) && o.owner != s.owner && !l.excused(o) && !l.excused(s) && !c.brokenPart(o) && !c.brokenPart(s) && !c.w.plan.Mutant.counted {
			c.violatef("exclusion", "%s is held with token %d from %s until %s, and with token %d from %s until %s",
				part.Resource, o.token, o.from, o.until, s.token, s.from, s.until)
		}
	}
	const kept = 64
	l.spans = append(l.spans[max(0, len(l.spans)-kept):], s)
}

// partsOf lists the resources of a lease.
func partsOf(lease *lockcore.Lease) []lockcore.LeasePart {
	if lease.Parts != nil {
		return lease.Parts
	}
	return []lockcore.LeasePart{{Resource: lease.Resource, Token: lease.Token}}
}
