package redlock

import (
	"cmp"
	"encoding/json"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// ballot holds the replies of the nodes to one operation, and answers questions about them: whose lease a
// quorum holds, how many requests wait, whether enough nodes executed the operation. Acquires, extends,
// releases and reads all produce one.
//
// It has at most one reply per node, at the node's index. A node that has not replied has the zero Reply,
// which is Failed and names no owner. So counts need not check which nodes have replied, and a match must be
// false for the zero Reply. A ballot has no lock: its writer (round or acquisition) has one, and its readers
// have a copy.
type ballot struct {
	n, quorum int                         // number of nodes, and of nodes in a quorum
	replies   [quorum.MaxNodes]node.Reply // the replies of the first n nodes
	answered  nodeSet                     // nodes that have replied
	elapsed   time.Duration               // since before the first request was sent
	early     bool                        // it ended before its limit, perhaps without waiting for all nodes
	cause     error                       // the context's cause, if the caller left
	at        *[quorum.MaxNodes]time.Time // when each reply came; nil unless the attempt is traced
}

func newBallot(n int) ballot { return ballot{n: n, quorum: quorum.Of(n)} }

func (b *ballot) add(i int, reply node.Reply) {
	b.replies[i] = reply
	b.answered |= only(i)
}

// open returns the number of nodes that have not replied.
func (b *ballot) open() int { return b.n - bits.OnesCount8(uint8(b.answered)) }

// nodesWith returns the nodes for which match is true.
func (b *ballot) nodesWith(match func(i int) bool) (nodes nodeSet) {
	for i := range b.n {
		if match(i) {
			nodes |= only(i)
		}
	}
	return nodes
}

// countIf counts the replies for which match is true. match must be false for the zero Reply.
func (b *ballot) countIf(match func(*node.Reply) bool) (n int) {
	for i := range b.replies[:b.n] {
		if match(&b.replies[i]) {
			n++
		}
	}
	return n
}

// count counts the replies with an outcome other than Failed.
func (b *ballot) count(outcome node.Outcome) int {
	return b.countIf(func(r *node.Reply) bool { return r.Outcome == outcome })
}

// votes counts the nodes that voted on an acquire, for it or against it.
func (b *ballot) votes() int {
	return b.countIf(func(r *node.Reply) bool { return r.Outcome.Votes() })
}

// done reports whether node i is admitted and executed the operation.
func (b *ballot) done(i int) bool {
	return b.replies[i].Outcome.Done()
}

// usable counts the nodes that are admitted and executed the operation.
func (b *ballot) usable() int { return b.nodesWith(b.done).len() }

// grantDecided ends a round that needs a quorum of Granted.
func (b *ballot) grantDecided() bool {
	granted := b.count(node.Granted)
	return granted >= b.quorum || granted+b.open() < b.quorum
}

// releaseDecided ends a release: a quorum deleted the lock, or too few nodes can have held it.
func (b *ballot) releaseDecided() bool {
	return b.count(node.Granted) >= b.quorum || b.n-b.count(node.NotHeld) < b.quorum
}

// holderDecided ends a read: a quorum holds the same lease, or no lease can have a quorum.
func (b *ballot) holderDecided() bool {
	_, locks := b.leader()
	return b.readDecided(locks)
}

// readDecided ends a read of a lease that has found its lock on this many nodes.
func (b *ballot) readDecided(locks int) bool {
	return locks >= b.quorum || locks+b.open() < b.quorum && b.usable() >= b.quorum
}

// leader returns the owner that holds the lock on most nodes; "" if the lock is free on all.
func (b *ballot) leader() (owner string, locks int) {
	for i := range b.replies[:b.n] {
		candidate := b.replies[i].Owner
		n := b.countIf(func(r *node.Reply) bool { return r.Owner == candidate })
		if candidate != "" && n > locks {
			owner, locks = candidate, n
		}
	}
	return owner, locks
}

// waiting returns the length of the queue, as far as the nodes show it.
func (b *ballot) waiting() (n int) {
	for i := range b.replies[:b.n] {
		n = max(n, b.replies[i].Waiting)
	}
	return n
}

// tickets merges the queues of the nodes, each of which may have missed a ticket.
func (b *ballot) tickets() (tickets []node.Ticket) {
	seen := make(map[string]bool)
	for i := range b.replies[:b.n] {
		for _, t := range b.replies[i].Queue {
			if !seen[t.ID] {
				seen[t.ID] = true
				tickets = append(tickets, t)
			}
		}
	}
	slices.SortFunc(tickets, func(a, b node.Ticket) int {
		return cmp.Or(cmp.Compare(a.Arrival, b.Arrival), cmp.Compare(a.ID, b.ID))
	})
	return tickets
}

// holding describes one lease as the replies show it.
type holding struct {
	token     fencing.Token
	remaining time.Duration // on a quorum; on all nodes that replied, if they are fewer than a quorum
	ttl       time.Duration
	meta
}

// holdingOf describes the owner's lease. Its token is the grant that a quorum shares, or else the largest
// grant: the holder has confirmed that one, or is about to.
func (b *ballot) holdingOf(owner string) (h holding) {
	remaining := make([]time.Duration, 0, quorum.MaxNodes)
	shared := 0
	for i := range b.replies[:b.n] {
		r := &b.replies[i]
		if r.Owner != owner {
			continue
		}
		remaining = append(remaining, r.Remaining)
		h.ttl = max(h.ttl, r.TTL)
		same := b.countIf(func(other *node.Reply) bool { return other.Owner == owner && other.Grant == r.Grant })
		if same >= b.quorum && same > shared || shared < b.quorum && r.Grant > h.token {
			h.token, shared = r.Grant, same
		}
		if m := parseMeta(r.Meta); !m.acquired.IsZero() {
			h.meta = m
		}
	}
	h.remaining = max(0, quorum.KthLargest(remaining, min(b.quorum, len(remaining))))
	return h
}

// firstMeta returns the first description that a node returned.
func (b *ballot) firstMeta() meta {
	for i := range b.replies[:b.n] {
		if m := parseMeta(b.replies[i].Meta); !m.acquired.IsZero() {
			return m
		}
	}
	return meta{}
}

// largestGrant returns the largest grant of the owner that any node shows.
func (b *ballot) largestGrant(owner string) (grant fencing.Token) {
	for i := range b.replies[:b.n] {
		if r := &b.replies[i]; r.Owner == owner {
			grant = max(grant, r.Grant)
		}
	}
	return grant
}

// lockState describes the resource's actual or possible holder, and returns its owner.
func (b *ballot) lockState(resource string) (lockcore.LockState, string) {
	state := lockcore.LockState{Resource: resource, Waiting: b.waiting(), Waiters: b.waiters()}
	owner, locks := b.leader()
	if locks == 0 || locks+b.n-b.usable() < b.quorum {
		return state, ""
	}
	h := b.holdingOf(owner)
	state.Held, state.Holder, state.Token = true, h.holder, h.token
	state.Remaining, state.TTL, state.Metadata = h.remaining, h.ttl, h.metadata
	if !h.acquired.IsZero() {
		state.HeldFor = max(0, time.Since(h.acquired))
	}
	return state, owner
}

func (b *ballot) waiters() []lockcore.Waiter {
	tickets := b.tickets()
	waiters := make([]lockcore.Waiter, min(len(tickets), node.MaxShown))
	for i := range waiters {
		waiters[i] = lockcore.Waiter{Holder: tickets[i].Holder, WaitingFor: max(0, time.Since(time.UnixMicro(tickets[i].Arrival)))}
	}
	return waiters
}

// meta is the public description of a lock, which nodes keep together with the lock.
type meta struct {
	acquired time.Time // the granting server's wall clock; zero if unknown
	holder   string
	metadata json.RawMessage
}

// metaSeparator cannot occur in a holder label, which has no control characters.
const metaSeparator = "\x1f"

func (m meta) String() string {
	var digits [16]byte
	return string(strconv.AppendInt(digits[:0], m.acquired.UnixMilli(), 36)) + metaSeparator + m.holder + metaSeparator + string(m.metadata)
}

// parseMeta reads the result of String. Any other text gives an unknown meta. So does the empty text of a lock
// that an extend recreated (rule 5): meta is for display only.
func parseMeta(text string) (m meta) {
	millis, rest, ok := strings.Cut(text, metaSeparator)
	if !ok {
		return meta{}
	}
	if ms, err := strconv.ParseInt(millis, 36, 64); err == nil {
		m.acquired = time.UnixMilli(ms)
	}
	holder, rest, _ := strings.Cut(rest, metaSeparator)
	metadata, _, _ := strings.Cut(rest, metaSeparator) // a later version may add parts; JSON does not contain the separator
	m.holder = holder
	if json.Valid([]byte(metadata)) {
		m.metadata = json.RawMessage(metadata)
	}
	return m
}

// nodeSet is a set of nodes, one bit each. The operator |= adds nodes.
type nodeSet uint8

// only returns the set with only node i.
func only(i int) nodeSet { return 1 << i }

func (s nodeSet) has(i int) bool { return s&only(i) != 0 }

func (s nodeSet) len() int { return bits.OnesCount8(uint8(s)) }

// each calls f for every node of the set.
func (s nodeSet) each(f func(i int)) {
	for ; s != 0; s &= s - 1 {
		f(bits.TrailingZeros8(uint8(s)))
	}
}
