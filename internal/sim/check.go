package sim

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// checker keeps what every client was told, and finds what must not be.
type checker struct {
	w            *world
	ledgers      map[string]*ledger
	violation    *Violation
	acquisitions int
	extensions   int
	calls        int
}

// Violation is a broken promise.
type Violation struct {
	At    time.Duration
	Rule  string // which promise
	Story string
}

func (v *Violation) String() string { return fmt.Sprintf("at %s: %s: %s", v.At, v.Rule, v.Story) }

// Safety reports whether the promise is one about safety, not about time.
func (v *Violation) Safety() bool {
	switch v.Rule {
	case "unique tokens", "ordered tokens", "superseded lease", "token of a lease", "exclusion", "reachable tokens":
		return true
	}
	return false
}

// ledger is what was completed on one resource.
type ledger struct {
	largest fencing.Token            // of the completed acquisitions
	owner   string                   // whose that is
	tokens  map[fencing.Token]string // by whom each is used
	spans   []span
	// released: up to which token its client has called Release, with whatever
	// success. Under an idempotency key the next lease has the same owner.
	released map[string]fencing.Token
}

// span is a time during which a client may believe that it holds the lease.
type span struct {
	owner       string
	token       fencing.Token
	from, until time.Duration
}

// floor is what had been completed when a call began.
type floor struct {
	token fencing.Token
	owner string
}

func newChecker(w *world) *checker { return &checker{w: w, ledgers: make(map[string]*ledger)} }

func (c *checker) failed() bool { return c.violation != nil }

func (c *checker) violatef(rule, format string, args ...any) {
	if c.violation == nil {
		c.violation = &Violation{At: c.w.now(), Rule: rule, Story: fmt.Sprintf(format, args...)}
		c.w.logf("VIOLATION %s", c.violation)
	}
}

func (c *checker) ledger(resource string) *ledger {
	l := c.ledgers[resource]
	if l == nil {
		l = &ledger{tokens: make(map[fencing.Token]string), released: make(map[string]fencing.Token)}
		c.ledgers[resource] = l
	}
	return l
}

// begins notes what had been completed before a call.
func (c *checker) begins(a *action) floor {
	l := c.ledger(a.resource)
	switch a.verb {
	case "release": // from here on the client holds nothing
		owner, token := ownerOf(a.grip.id), fencing.Token(a.grip.token)
		l.released[owner] = max(l.released[owner], token)
		l.shorten(owner, token, c.w.now())
	case "extend": // from here on it holds the lease for the new time, if that is shorter
		const drift = 100
		l.shorten(ownerOf(a.grip.id), fencing.Token(a.grip.token), c.w.now()+a.ttl-a.ttl/drift-2*time.Millisecond)
	}
	return floor{token: l.largest, owner: l.owner}
}

// shorten ends what the owner believes of leases up to the token at the time, at the latest.
func (l *ledger) shorten(owner string, token fencing.Token, until time.Duration) {
	for i := range l.spans {
		if l.spans[i].owner == owner && l.spans[i].token <= token {
			l.spans[i].until = min(l.spans[i].until, until)
		}
	}
}

// ends checks an answer.
func (c *checker) ends(d *completion) {
	c.calls++
	if took := d.at - d.began; took > d.bound+d.grace() {
		c.violatef("bounds", "%s took %s, longer than %s", d.verb, took, d.bound)
	}
	if d.err != nil {
		c.checkError(d)
		return
	}
	switch d.verb {
	case "acquire":
		c.acquired(d)
	case "extend":
		c.extensions++
		c.kept(d)
	case "look":
		c.kept(d)
	}
}

// grace is for pauses, during which a server does not count.
func (d *completion) grace() time.Duration { return 5 * time.Millisecond }

// checkError refuses errors that no call may give.
func (c *checker) checkError(d *completion) {
	if errors.Is(d.err, lockcore.ErrNotHeld) && d.grip != nil { // from here on its client knows
		c.ledger(d.resource).shorten(ownerOf(d.grip.id), fencing.Token(d.grip.token), d.at)
	}
	for _, known := range []error{
		lockcore.ErrHeld, lockcore.ErrNoQuorum, lockcore.ErrNotHeld, lockcore.ErrWaitTimeout, lockcore.ErrStopping,
		context.Canceled,
	} {
		if errors.Is(d.err, known) {
			return
		}
	}
	c.violatef("errors", "%s: %v", d.verb, d.err)
}

// acquired checks the order of tokens, that none is shared, and exclusion.
func (c *checker) acquired(d *completion) {
	l, owner, token := c.ledger(d.resource), ownerOf(d.lease.ID), d.lease.Token
	c.acquisitions++
	switch used := l.tokens[token]; {
	case used != "" && used != owner:
		c.violatef("unique tokens", "token %d of %s was given twice", token, d.resource)
	case token < d.floor.token || token == d.floor.token && owner != d.floor.owner:
		c.violatef("ordered tokens", "token %d of %s was given after %d had been", token, d.resource, d.floor.token)
	case used != "" && !d.lease.Existing:
		c.violatef("unique tokens", "token %d of %s was given anew", token, d.resource)
	}
	if most := lockcore.FloorAt(c.w.began.Add(c.w.now() + time.Minute)); token > most {
		c.violatef("reachable tokens", "token %d of %s is above %d", token, d.resource, most)
	}
	l.tokens[token] = owner
	if token > l.largest {
		l.largest, l.owner = token, owner
	}
	c.believe(d, l)
}

// kept checks that a lease which is said to go on was not superseded before it
// was asked.
func (c *checker) kept(d *completion) {
	if d.lease.Token < d.floor.token {
		c.violatef("superseded lease", "%s with token %d of %s succeeded after token %d had been given",
			d.verb, d.lease.Token, d.resource, d.floor.token)
	}
	if d.lease.Token != fencing.Token(d.grip.token) {
		c.violatef("token of a lease", "%s changed the token %d to %d", d.verb, d.grip.token, d.lease.Token)
	}
	c.believe(d, c.ledger(d.resource))
}

// believe notes the time for which the client was told that it holds the
// lease, and checks that nobody else was told so.
func (c *checker) believe(d *completion, l *ledger) {
	valid := d.lease.Validity
	if c.w.plan.Mutant.trusting {
		valid = d.lease.TTL
	}
	s := span{owner: ownerOf(d.lease.ID), token: d.lease.Token, from: d.at, until: d.at + valid}
	if d.lease.Validity <= 0 {
		c.violatef("validity", "%s gave a validity of %s", d.verb, d.lease.Validity)
	}
	if !c.w.plan.timed() {
		return
	}
	if s.token <= l.released[s.owner] {
		return // who has asked to give it back does not believe any more that it holds it
	}
	for _, o := range l.spans {
		if o.owner != s.owner && o.from < s.until && s.from < o.until {
			c.violatef("exclusion", "%s is held with token %d from %s until %s, and with token %d from %s until %s",
				d.resource, o.token, o.from, o.until, s.token, s.from, s.until)
		}
	}
	const kept = 64
	l.spans = append(l.spans[max(0, len(l.spans)-kept):], s)
}

// ownerOf is the ownership value inside a lease id: all attempts of one
// idempotency key share it.
func ownerOf(id string) string {
	raw, err := base64.RawURLEncoding.DecodeString(id)
	const version, key, tag, secret = 1, 4, 16, 20
	if err != nil || len(raw) < version+key+tag {
		return id
	}
	rest := raw[version+key+tag:]
	_, acquired := binary.Uvarint(rest) // the time comes first
	if acquired <= 0 || len(rest) < acquired+secret {
		return id
	}
	return string(rest[acquired : acquired+secret])
}
