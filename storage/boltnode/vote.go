package boltnode

import (
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
	if err := storable(op); err != nil {
		return lockcore.Reply{Err: err}
	}
	switch op.Kind {
	case lockcore.OpAcquire, lockcore.OpConfirm, lockcore.OpExtend, lockcore.OpHold, lockcore.OpStand:
		return t.gated(op)
	case lockcore.OpRelease:
		return t.takeBack(op)
	case lockcore.OpLeave:
		return t.leave(op)
	case lockcore.OpKeep:
		return t.keep(op)
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
	case lockcore.OpAcquire, lockcore.OpConfirm, lockcore.OpExtend, lockcore.OpRelease, lockcore.OpHold:
		names = append(names, op.Lease)
	case lockcore.OpKeep:
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
	case lockcore.OpHold:
		return t.hold(op)
	}
	t.stand(op)
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
	if left > 0 && l.lease != op.Lease {
		t.stand(op)
		return t.held(op.Resource, l, left)
	}
	if scope, used := t.scope(op.Lease); op.Attempt != "" && used && scope != op.Scope {
		return lockcore.Reply{Outcome: lockcore.OtherResource}
	}
	if left > 0 {
		return t.again(op, l, left)
	}
	if t.overtakes(op) {
		t.stand(op)
		return lockcore.Reply{Outcome: lockcore.Queued}
	}
	last, _ := t.counter(op.Resource)
	if last >= fencing.MaxToken {
		return lockcore.Reply{Outcome: lockcore.Exhausted}
	}
	t.grant(op, last+1)
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: last + 1, Remaining: op.TTL, Holds: 1}
}

func (t *txn) grant(op *lockcore.Op, grant fencing.Token) {
	t.count(op.Resource, grant)
	t.setLock(op.Resource, lock{
		end: t.after(op.TTL, op.TTL), grant: grant, lease: op.Lease, note: op.Attempt, holds: lockcore.OwnHold, meta: op.Meta,
	})
	if op.Attempt != "" {
		t.setScope(op.Lease, op.Scope, op.TTL)
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
		Waiting: t.line(resource).count(), Lease: l.lease, Meta: l.meta,
	}
}

func (t *txn) stand(op *lockcore.Op) {
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
	if l.lease != op.Lease || l.grant > op.Token {
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
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: op.Token, Remaining: whole(left), Holds: 1}
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
		if scope, used := t.scope(op.Lease); used && l.note != "" {
			t.setScope(op.Lease, scope, op.TTL)
		}
	}
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: l.grant, Remaining: whole(left), Holds: 1, Meta: l.meta}
}

// recreate is rule 5: only while nobody can have come in between.
func (t *txn) recreate(op *lockcore.Op) lockcore.Reply {
	l, left := t.lock(op.Resource)
	last, present := t.counter(op.Resource)
	if left > 0 || last > op.Token {
		return notHeld()
	}
	t.touchCounter(op.Resource)
	t.setLock(op.Resource, lock{ // of a key or not, nobody knows
		end: t.after(op.TTL, op.TTL), grant: op.Token, lease: op.Lease, note: shared,
		holds: l.remembered(op.Lease, present && last == op.Token),
	})
	return lockcore.Reply{Outcome: lockcore.Granted, Recreated: true, Grant: op.Token, Remaining: op.TTL}
}

// remembered is what holds a lease had when its lock ended: unknown, where it was
// not seen, or not with this token.
func (l lock) remembered(lease string, seen bool) string {
	switch {
	case l.lease == lease && l.holds != lockcore.OwnHold:
		return l.holds
	case seen:
		return lockcore.OwnHold
	}
	return lockcore.UnknownHolds
}

// touchCounter starts a counter's time to live anew.
func (t *txn) touchCounter(resource string) {
	if value, present := t.counter(resource); present {
		t.count(resource, value)
	}
}

func (t *txn) hold(op *lockcore.Op) lockcore.Reply {
	l, left := t.owned(op)
	if left == 0 {
		return notHeld()
	}
	holds := strings.Split(l.holds, ",")
	if !slices.Contains(holds, op.Hold) {
		if len(holds) >= lockcore.MostHolds {
			return lockcore.Reply{Err: lockcore.ErrMostHolds, Sent: true}
		}
		holds = append(holds, op.Hold)
		l.holds = strings.Join(holds, ",")
		t.setLock(op.Resource, l)
	}
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: l.grant, Remaining: whole(left), Holds: len(holds), Meta: l.meta}
}

// takeBack releases. That is sound on any node and in any view, so it is done
// even where the gate is shut; but then it does not count as an answer.
func (t *txn) takeBack(op *lockcore.Op) lockcore.Reply {
	reply := t.release(op)
	if !t.open() {
		return t.behind()
	}
	return reply
}

func (t *txn) release(op *lockcore.Op) lockcore.Reply {
	l, left := t.lock(op.Resource)
	if left == 0 {
		t.pass(op)
		return notHeld()
	}
	if l.lease != op.Lease {
		return notHeld()
	}
	if spares(op, l) {
		return notHeld()
	}
	holds := strings.Split(l.holds, ",")
	unsure := slices.Contains(holds, lockcore.UnknownHolds)
	if op.Hold != "" && !slices.Contains(holds, op.Hold) && !unsure {
		return lockcore.Reply{Outcome: lockcore.NotHeld, Holds: len(holds)}
	}
	if op.Attempt != "" && !t.strikeOut(op, l) {
		return notHeld()
	}
	if op.Hold != "" && (unsure || len(holds) > 1) {
		return t.dropHold(op, l, left, holds)
	}
	t.remove(t.locks, op.Resource)
	t.pass(op)
	if l.note != "" {
		t.remove(t.keys, l.lease)
	}
	t.line(op.Resource).tellFirst()
	return lockcore.Reply{Outcome: lockcore.Granted, Grant: l.grant}
}

// spares: a release with a token leaves a later lease under the same key alone; one
// with an attempt as well is for what was granted above the token.
func spares(op *lockcore.Op, l lock) bool {
	switch {
	case op.Token == 0:
		return false
	case op.Attempt != "":
		return l.grant <= op.Token
	}
	return l.note != "" && l.grant > op.Token
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

// pass takes the counter past the token of a lease that was given back, so that
// no late extend brings it to life again (rule 5).
func (t *txn) pass(op *lockcore.Op) {
	if op.Token == 0 || op.Attempt != "" || !t.open() {
		return
	}
	if last, _ := t.counter(op.Resource); last <= op.Token {
		t.count(op.Resource, op.Token+1)
	}
}

func (t *txn) dropHold(op *lockcore.Op, l lock, left time.Duration, holds []string) lockcore.Reply {
	rest := slices.DeleteFunc(holds, func(hold string) bool { return hold == op.Hold })
	l.holds = strings.Join(rest, ",")
	t.setLock(op.Resource, l)
	return lockcore.Reply{
		Outcome: lockcore.Granted, Grant: l.grant, Remaining: whole(left),
		Holds: len(rest), Unsure: slices.Contains(rest, lockcore.UnknownHolds),
	}
}

// leave takes a ticket off the line; if it was its turn, the next is told.
func (t *txn) leave(op *lockcore.Op) lockcore.Reply {
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

func (t *txn) keep(op *lockcore.Op) lockcore.Reply {
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
