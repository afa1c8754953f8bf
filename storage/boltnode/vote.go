package boltnode

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// vote does one operation. Each stands or falls alone.
func (t *txn) vote(op *lockcore.Op) lockcore.Reply {
	if late(op) {
		return lockcore.Reply{Err: errTooLate}
	}
	if err := cmp.Or(op.Validate(), storable(op)); err != nil {
		return lockcore.Reply{Err: err}
	}
	switch op.Kind {
	case lockcore.OpAcquire, lockcore.OpConfirm, lockcore.OpExtend, lockcore.OpEnqueue:
		return t.gated(op)
	case lockcore.OpRelease:
		return t.evenShut(t.release(op))
	case lockcore.OpRetract:
		return t.evenShut(t.retract(op))
	case lockcore.OpDequeue:
		return t.dequeue(op)
	case lockcore.OpHeartbeat:
		return t.heartbeat(op)
	case lockcore.OpRead:
		return t.read(op)
	}
	return lockcore.Reply{Err: fmt.Errorf("operation of unknown kind %d", op.Kind)}
}

var errUnstorable = errors.New("the operation's names cannot be stored")

// storable refuses what would spoil the transaction for all the others.
func storable(op *lockcore.Op) error {
	names := []string{op.Resource}
	switch op.Kind {
	case lockcore.OpAcquire, lockcore.OpConfirm, lockcore.OpExtend, lockcore.OpRelease, lockcore.OpRetract:
		names = append(names, op.Owner)
	case lockcore.OpHeartbeat:
		names = []string{op.Ticket.Server}
	}
	const room = bbolt.MaxKeySize / 2
	for _, name := range names {
		if name == "" || len(name) > room {
			return errUnstorable
		}
	}
	if len(nameOf(op.Ticket)) > room || op.Ticket.ID != "" && op.Ticket.Server == "" {
		return errUnstorable
	}
	return nil
}

// open is the gate (rule 6), but for the caller's view.
func (t *txn) open() bool {
	return t.st.admitted() && t.st.cluster() == *t.node.cluster.Load()
}

func (t *txn) behind() lockcore.Reply {
	return lockcore.Reply{Outcome: lockcore.NotAdmitted, View: t.st.View}
}

// gated does what only a node in the caller's own view may do.
func (t *txn) gated(op *lockcore.Op) lockcore.Reply {
	switch {
	case !t.open() || t.st.View < op.View:
		return t.behind()
	case t.st.View > op.View:
		return lockcore.Reply{Outcome: lockcore.StaleView, View: t.st.View}
	}
	switch op.Kind {
	case lockcore.OpAcquire:
		return t.acquire(op)
	case lockcore.OpConfirm:
		return t.confirm(op)
	case lockcore.OpExtend:
		return t.extend(op)
	}
	t.enqueue(op)
	return lockcore.Reply{Outcome: lockcore.Granted}
}

// tooLong: a TTL that the record does not know of would spoil rule 13.
func (t *txn) tooLong(ttl time.Duration) bool { return ttl.Milliseconds() > t.st.MaxTTL }

func whole(left time.Duration) time.Duration { return left.Truncate(time.Millisecond) }

func notHeld() lockcore.Reply { return lockcore.Reply{Outcome: lockcore.NotHeld} }

func (t *txn) acquire(op *lockcore.Op) lockcore.Reply {
	if t.tooLong(op.TTL) {
		return t.behind()
	}
	l, left := t.lock(op.Resource)
	if left > 0 && l.owner != op.Owner {
		t.enqueue(op)
		return t.held(op.Resource, l, left)
	}
	if scope, used := t.scope(op.Owner); op.Attempt != "" && used && scope != op.Scope {
		return lockcore.Reply{Outcome: lockcore.OtherResource}
	}
	if left > 0 {
		return t.again(op, l, left)
	}
	if t.overtakes(op) {
		t.enqueue(op)
		return lockcore.Reply{Outcome: lockcore.Queued}
	}
	last, _ := t.counter(op.Resource)
	if last >= fencing.MaxToken {
		return lockcore.Reply{Outcome: lockcore.Exhausted}
	}
	t.grant(op, last+1)
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: last + 1, Remaining: op.TTL}
}

func (t *txn) grant(op *lockcore.Op, grant fencing.Token) {
	t.count(op.Resource, grant)
	t.setLock(op.Resource, lock{
		end: t.after(op.TTL, op.TTL), grant: grant, owner: op.Owner, note: op.Attempt, meta: op.Meta,
	})
	if op.Attempt != "" {
		t.setScope(op.Owner, op.Scope, op.TTL)
	}
	if op.Ticket.ID != "" {
		t.line(op.Resource).leave(op.Ticket)
	}
}

// again is an acquire that finds its own lock.
func (t *txn) again(op *lockcore.Op, l lock, left time.Duration) lockcore.Reply {
	if all := noted(l.note, op.Attempt); all != l.note {
		l.note = all
		t.setLock(op.Resource, l)
	}
	return lockcore.Reply{
		Outcome: lockcore.Granted, Existing: true, Grant: l.grant, Remaining: whole(left), TTL: l.ttl, Meta: l.meta,
	}
}

// noted is the note of a lock that this attempt was told of, too.
func noted(note, attempt string) string {
	attempts := strings.Split(note, ",")
	switch {
	case note == "" || note == shared || slices.Contains(attempts, attempt):
		return note
	case attempt == "" || len(attempts) >= lockcore.MostAttempts:
		return shared
	}
	return note + "," + attempt
}

func (t *txn) held(resource string, l lock, left time.Duration) lockcore.Reply {
	return lockcore.Reply{
		Outcome: lockcore.Held, Grant: l.grant, Remaining: whole(left), TTL: l.ttl,
		Waiting: t.line(resource).count(), Owner: l.owner, Meta: l.meta,
	}
}

func (t *txn) enqueue(op *lockcore.Op) {
	if op.Ticket.ID != "" {
		t.line(op.Resource).stand(op.Ticket)
	}
}

// overtakes reports whether somebody living stands in line before this acquire
// (one without a ticket: anybody). The first is told, since the lock is free.
func (t *txn) overtakes(op *lockcore.Op) bool {
	waiting := t.line(op.Resource)
	first, found := waiting.first()
	if !found || op.Ticket.ID != "" && (nameOf(first) == nameOf(op.Ticket) || before(op.Ticket, first)) {
		return false
	}
	waiting.tell(first)
	return true
}

// owned gives the lock if it is the operation's own (rules 2 and 3).
func (t *txn) owned(op *lockcore.Op) (l lock, left time.Duration) {
	l, left = t.lock(op.Resource)
	if l.owner != op.Owner || l.grant > op.Token {
		return l, 0
	}
	return l, left
}

func (t *txn) confirm(op *lockcore.Op) lockcore.Reply {
	l, left := t.owned(op)
	if left == 0 {
		return notHeld()
	}
	if last, _ := t.counter(op.Resource); last < op.Token {
		t.count(op.Resource, op.Token)
	}
	if l.grant < op.Token { // so that a retry and a reader see the token
		l.grant = op.Token
		t.setLock(op.Resource, l)
	}
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: op.Token, Remaining: whole(left)}
}

func (t *txn) extend(op *lockcore.Op) lockcore.Reply {
	if t.tooLong(op.TTL) {
		return t.behind()
	}
	l, left := t.owned(op)
	if left == 0 {
		return t.recreate(op)
	}
	t.touchCounter(op.Resource)
	if left < op.TTL { // an extend never shortens: it may be an old one, late
		left, l.end = op.TTL, t.after(op.TTL, op.TTL)
		t.setLock(op.Resource, l)
		if scope, used := t.scope(op.Owner); used && l.note != "" {
			t.setScope(op.Owner, scope, op.TTL)
		}
	}
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: l.grant, Remaining: whole(left), Meta: l.meta}
}

// recreate is rule 5: only while nobody can have come in between.
func (t *txn) recreate(op *lockcore.Op) lockcore.Reply {
	_, left := t.lock(op.Resource)
	if last, _ := t.counter(op.Resource); left > 0 || last > op.Token {
		return notHeld()
	}
	t.touchCounter(op.Resource)
	t.setLock(op.Resource, lock{ // of a key or not, nobody knows
		end: t.after(op.TTL, op.TTL), grant: op.Token, owner: op.Owner, note: shared,
	})
	return lockcore.Reply{Outcome: lockcore.Granted, Recreated: true, Grant: op.Token, Remaining: op.TTL}
}

// touchCounter starts a counter's time to live anew.
func (t *txn) touchCounter(resource string) {
	if value, present := t.counter(resource); present {
		t.count(resource, value)
	}
}

// evenShut: a release and a retraction are sound on any node and in any view, so
// they are done even where the gate is shut; but then they are no answer.
func (t *txn) evenShut(reply lockcore.Reply) lockcore.Reply {
	if !t.open() {
		return t.behind()
	}
	return reply
}

// release ends a lease for good.
func (t *txn) release(op *lockcore.Op) lockcore.Reply {
	l, left := t.lock(op.Resource)
	switch {
	case left == 0:
		t.pass(op)
		return notHeld()
	case l.owner != op.Owner, l.note != "" && l.grant > op.Token:
		return notHeld()
	}
	t.pass(op)
	return t.unlock(op.Resource, l)
}

// pass takes the counter past the token of a lease that was released, so that
// no late extend brings it to life again (rule 5).
func (t *txn) pass(op *lockcore.Op) {
	if !t.open() {
		return
	}
	if last, _ := t.counter(op.Resource); last <= op.Token {
		t.count(op.Resource, min(op.Token+1, fencing.MaxToken))
	}
}

// retract takes back the vote of one attempt.
func (t *txn) retract(op *lockcore.Op) lockcore.Reply {
	l, left := t.lock(op.Resource)
	if left == 0 || l.owner != op.Owner || l.grant <= op.Above {
		return notHeld()
	}
	if l.note != op.Attempt && !t.strikeOut(op, l) {
		return notHeld()
	}
	return t.unlock(op.Resource, l)
}

// strikeOut takes the operation's attempt off the lock's note, and reports
// whether it was the last: no other can count on the lock.
func (t *txn) strikeOut(op *lockcore.Op, l lock) bool {
	attempts := strings.Split(l.note, ",")
	rest := slices.DeleteFunc(attempts, func(a string) bool { return a == op.Attempt })
	if note := strings.Join(rest, ","); note != l.note && note != "" {
		l.note = note
		t.setLock(op.Resource, l)
	}
	return len(rest) == 0
}

// unlock deletes a lock, and notifies the first in the queue.
func (t *txn) unlock(resource string, l lock) lockcore.Reply {
	t.remove(t.locks, resource)
	if l.note != "" {
		t.remove(t.keys, l.owner)
	}
	t.line(resource).tellFirst()
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: l.grant}
}

// dequeue takes a ticket off the queue; if it was its turn, the next is told.
func (t *txn) dequeue(op *lockcore.Op) lockcore.Reply {
	l := t.line(op.Resource)
	first := l.list(1)
	l.leave(op.Ticket)
	if len(first) > 0 && nameOf(first[0]) == nameOf(op.Ticket) {
		if _, left := t.lock(op.Resource); left == 0 {
			l.tellFirst()
		}
	}
	return lockcore.Reply{Outcome: lockcore.Granted}
}

func (t *txn) heartbeat(op *lockcore.Op) lockcore.Reply {
	if !t.open() {
		return t.behind()
	}
	alive := t.alive(op.Ticket.Server)
	t.keepAlive(op.Ticket.Server, op.TTL)
	return lockcore.Reply{Outcome: lockcore.Granted, Existing: alive}
}

func (t *txn) read(op *lockcore.Op) lockcore.Reply {
	if !t.open() {
		return t.behind()
	}
	reply := notHeld()
	if l, left := t.lock(op.Resource); left > 0 {
		reply = t.held(op.Resource, l, left)
		reply.Outcome = lockcore.Granted
	}
	waiting := t.line(op.Resource)
	reply.Waiting, reply.Line = waiting.count(), waiting.list(lockcore.MostShown)
	return reply
}
