package lockcore

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// Lease returns a lease as it stands, its validity counted from now. Errors:
// ErrMalformedLeaseID, ErrNotHeld, *QuorumError.
func (l *Locker) Lease(ctx context.Context, lease string) (Lease, error) {
	parts, err := openLease(ctx, lease)
	if err != nil {
		return Lease{}, err
	}
	leases, err := l.eachPart(parts, func(l *Locker, id leaseID) (Lease, error) { return l.leaseNow(ctx, id) })
	if err != nil {
		return Lease{}, err
	}
	return together(parts, leases), nil
}

func (l *Locker) leaseNow(ctx context.Context, id leaseID) (Lease, error) {
	// A lock of this lease with a grant above the token is not this grant of
	// it (rule 3): it does not count, here as in an extend.
	owned := func(b *ballot) (n int) {
		for i := range b.replies[:b.n] {
			r := &b.replies[i]
			if b.answered.has(i) && r.Outcome == Granted && r.Owner == id.value && r.Grant <= id.token {
				n++
			}
		}
		return n
	}
	b := runPoll(ctx, l.nodes, Op{Kind: OpRead, Resource: id.resource}, l.cfg.NodeTimeout, func(b *ballot) bool {
		n := owned(b)
		return n >= b.quorum || n+b.silent < b.quorum && b.heard() >= b.quorum
	})
	l.learnFrom(b.replies[:b.n])
	held := owned(&b)
	if held+b.n-b.heard() < b.quorum {
		return Lease{}, ErrNotHeld
	}
	state := b.stateOf(id.value)
	left := validity(state.remaining, state.ttl, b.elapsed)
	switch {
	case held < b.quorum:
		return Lease{}, l.quorumError(id.resource, &b)
	case left <= 0:
		return Lease{}, ErrNotHeld
	}
	return l.leaseOf(id, state.meta, state.ttl, left), nil
}

// Inspect returns what anyone may know of a resource. A resource counts as
// held when a quorum holds the same lease, or may hold it as far as the nodes
// that answered show. Errors: *FieldError, *QuorumError.
func (l *Locker) Inspect(ctx context.Context, resource string) (LockState, error) {
	b, err := l.look(ctx, resource, (*ballot).holderDecided)
	if err != nil {
		return LockState{}, err
	}
	state, _ := b.lockState(resource)
	return state, nil
}

// lockState describes the resource's holder, if there is or may be one, and
// names its owner.
func (b *ballot) lockState(resource string) (LockState, string) {
	state := LockState{Resource: resource, Waiting: b.waiting(), Waiters: b.waiters()}
	owner, votes := b.leader()
	if votes == 0 || votes+b.n-b.heard() < b.quorum {
		return state, ""
	}
	s := b.stateOf(owner)
	state.Held, state.Holder, state.Token = true, s.holder, s.token
	state.Remaining, state.TTL, state.Metadata = s.remaining, s.ttl, s.metadata
	if !s.acquired.IsZero() {
		state.HeldFor = max(0, time.Since(s.acquired))
	}
	return state, owner
}

func (b *ballot) waiters() []Waiter {
	line := b.line()
	waiters := make([]Waiter, min(len(line), MostShown))
	for i := range waiters {
		waiters[i] = Waiter{Holder: line[i].Holder, WaitingFor: max(0, time.Since(time.UnixMicro(line[i].Arrival)))}
	}
	return waiters
}

// holderDecided: a quorum holds one lease, or no lease can have one any more.
func (b *ballot) holderDecided() bool {
	_, votes := b.leader()
	return votes >= b.quorum || votes+b.silent < b.quorum && b.heard() >= b.quorum
}

func (l *Locker) look(ctx context.Context, resource string, enough func(*ballot) bool) (ballot, error) {
	if err := ValidateResource(resource); err != nil {
		return ballot{}, err
	}
	b := runPoll(ctx, l.nodes, Op{Kind: OpRead, Resource: resource}, l.cfg.NodeTimeout, enough)
	l.learnFrom(b.replies[:b.n])
	if b.heard() < b.quorum {
		err := l.quorumError(resource, &b)
		return b, err
	}
	return b, nil
}

// Break ends whatever lease there is on a resource, and stray votes with it.
// The next token is still higher. Errors: *FieldError, ErrNotHeld when the
// resource is free, *QuorumError.
func (l *Locker) Break(ctx context.Context, resource string) error {
	b, err := l.look(ctx, resource, func(*ballot) bool { return false })
	if err != nil {
		return err
	}
	result := ErrNotHeld
	done := make(map[string]bool, MaxNodes)
	for i := range b.replies[:b.n] {
		owner := b.replies[i].Owner
		if owner == "" || done[owner] {
			continue
		}
		done[owner] = true
		if err := l.release(ctx, resource, owner, b.largestGrant(owner)); result != nil && !errors.Is(err, ErrNotHeld) {
			result = err
		}
	}
	return result
}

// largestGrant is above every vote of the owner that a node shows.
func (b *ballot) largestGrant(owner string) (grant fencing.Token) {
	for i := range b.replies[:b.n] {
		if r := &b.replies[i]; b.answered.has(i) && r.Owner == owner {
			grant = max(grant, r.Grant)
		}
	}
	return grant
}

// MaxPage is the most locks on a page of List.
const MaxPage = 1000

// listBudget bounds how long one page searches through a node that holds few
// locks among many counters; the page is then short, and its cursor goes on.
const listBudget = 250 * time.Millisecond

// List returns locks whose resource begins with prefix, about limit (1 to
// MaxPage) of them, in the nodes' own order. It asks R nodes one after the
// other, since each held lock stands on at least one of them; a lock that
// moves meanwhile may be missed or shown twice. Errors: *FieldError, *QuorumError.
func (l *Locker) List(ctx context.Context, prefix string, limit int, cursor string) (LockPage, error) {
	at, err := parseListCursor(cursor, ReadersOf(len(l.nodes)))
	if err != nil {
		return LockPage{}, err
	}
	if err := validateText("prefix", prefix, 0); err != nil {
		return LockPage{}, err
	}
	if limit < 1 || limit > MaxPage {
		return LockPage{}, &FieldError{Field: "limit", Reason: fmt.Sprintf("must be 1 to %d", MaxPage)}
	}
	readers, err := l.readers()
	if err != nil {
		return LockPage{}, err
	}
	page := LockPage{Locks: []LockState{}}
	for began := time.Now(); len(page.Locks) < limit && time.Since(began) < listBudget; {
		found, next, err := readers[at.reader].Scan(ctx, prefix, at.node, limit-len(page.Locks))
		if err != nil {
			return LockPage{}, l.unreadable(readers[at.reader], err)
		}
		page.Locks = append(page.Locks, l.inspectAll(ctx, found, readers[:at.reader])...)
		if at = at.next(next); at.reader == len(readers) {
			return page, nil
		}
	}
	page.NextCursor = at.String()
	return page, nil
}

// readers returns the first R nodes that may vote.
func (l *Locker) readers() (readers []Node, err error) {
	status := l.members.status()
	for i, n := range l.nodes {
		if status.Nodes[i].State == NodeVoting && len(readers) < ReadersOf(len(l.nodes)) {
			readers = append(readers, n)
		}
	}
	if len(readers) < ReadersOf(len(l.nodes)) {
		b := ballot{n: len(l.nodes), quorum: l.quorum}
		for i := range status.Nodes {
			b.answered |= only(i)
			b.replies[i] = Reply{Outcome: Failed, Err: fmt.Errorf("%s %s", status.Nodes[i].State, status.Nodes[i].Reason)}
		}
		return nil, l.quorumError("", &b)
	}
	return readers, nil
}

func (l *Locker) unreadable(n Node, err error) error {
	return &QuorumError{
		Quorum: l.quorum, Nodes: []NodeOutcome{{Node: n.Name(), Reason: err.Error()}}, RetryAfter: time.Second,
	}
}

// inspectAll looks at the resources side by side and keeps those that are held
// and were not already found on an earlier reader.
func (l *Locker) inspectAll(ctx context.Context, resources []string, earlier []Node) []LockState {
	states := make([]LockState, len(resources))
	var wg sync.WaitGroup
	for i, resource := range resources {
		wg.Go(func() {
			b, err := l.look(ctx, resource, func(*ballot) bool { return false })
			if state, owner := b.lockState(resource); err == nil && !l.stands(&b, owner, earlier) {
				states[i] = state
			}
		})
	}
	wg.Wait()
	held := states[:0]
	for _, s := range states {
		if s.Held {
			held = append(held, s)
		}
	}
	return held
}

// stands reports whether one of the nodes has a lock of the owner.
func (l *Locker) stands(b *ballot, owner string, nodes []Node) bool {
	for i, n := range l.nodes {
		for _, e := range nodes {
			if n == e && b.answered.has(i) && b.replies[i].Owner == owner {
				return true
			}
		}
	}
	return false
}

// listCursor is a place in a listing: which reader, and that reader's own cursor.
type listCursor struct {
	reader int
	node   string
}

func (c listCursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.Itoa(c.reader) + " " + c.node))
}

func (c listCursor) next(node string) listCursor {
	if node == "" {
		return listCursor{reader: c.reader + 1}
	}
	return listCursor{reader: c.reader, node: node}
}

func parseListCursor(text string, readers int) (c listCursor, err error) {
	if text == "" {
		return c, nil
	}
	bad := &FieldError{Field: "cursor", Reason: "must be the next_cursor of an earlier page"}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return c, bad
	}
	reader, node, ok := strings.Cut(string(raw), " ")
	c.node = node
	if c.reader, err = strconv.Atoi(reader); err != nil || !ok || c.reader < 0 || c.reader >= readers {
		return c, bad
	}
	return c, nil
}
