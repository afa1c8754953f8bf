package replica

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Vote executes one operation. Each succeeds or fails separately. The caller checks the Deadline.
func (t *Txn) Vote(op *node.Op) node.Reply {
	if err := errors.Join(op.Validate(), storable(op)); err != nil {
		return node.Reply{Err: err}
	}
	switch op.Kind {
	case node.OpRelease, node.OpReleaseAfter, node.OpBreak, node.OpRetract:
		return t.withdraw(op)
	case node.OpDequeue:
		return t.dequeue(op)
	case node.OpForget:
		return t.forget(op)
	}
	if !t.open() {
		return t.behind()
	}
	if op.Kind == node.OpHeartbeat {
		return t.heartbeat(op)
	}
	if !t.mapped(op.Map) {
		return t.behind()
	}
	if op.Kind == node.OpRead {
		return t.lookAt(op)
	}
	if refusal, refused := t.outOfEpoch(op); refused {
		return refusal
	}
	if t.unreachable(op) {
		return unreachable()
	}
	switch op.Kind {
	case node.OpAcquire:
		return t.acquire(op)
	case node.OpConfirm:
		return t.confirm(op)
	case node.OpExtend:
		return t.extend(op)
	case node.OpEnqueue:
		t.enqueue(t.placed(op))
		return node.Reply{Outcome: node.Granted}
	}
	return node.Reply{Err: fmt.Errorf("operation of unknown kind %d", op.Kind)}
}

var errUnstorable = errors.New("the operation's names cannot be stored")

// storable refuses names of which no key can be made.
func storable(op *node.Op) error {
	const room = maxKeyBytes / 4
	fits := func(name string) bool { return name != "" && len(name) <= room }
	ticket := op.Ticket
	ok := len(ticket.ID)+len(ticket.Server)+len(ticket.Holder)+2 <= room && (ticket.ID == "" || ticket.Server != "")
	switch op.Kind {
	case node.OpAcquire, node.OpConfirm, node.OpExtend, node.OpRelease, node.OpReleaseAfter, node.OpRetract:
		ok = ok && fits(op.Resource) && fits(op.Owner)
	case node.OpHeartbeat:
		ok = ok && fits(ticket.Server)
	default:
		ok = ok && fits(op.Resource)
	}
	if !ok {
		return errUnstorable
	}
	return nil
}

func (t *Txn) behind() node.Reply {
	return node.Reply{Outcome: node.NotAdmitted, Epoch: t.rec.Epoch}
}

// outOfEpoch refuses operations unless the node is in the caller's own epoch (rule 8).
func (t *Txn) outOfEpoch(op *node.Op) (refusal node.Reply, refused bool) {
	switch {
	case t.weak(VotesInAnyEpoch), t.rec.Epoch == op.Epoch:
		return node.Reply{}, false
	case t.rec.Epoch > op.Epoch:
		return node.Reply{Outcome: node.StaleEpoch, Epoch: t.rec.Epoch}, true
	}
	return t.behind(), true
}

// unreachable reports that the operation carries a token that no cluster can have reached (rule 23).
func (t *Txn) unreachable(op *node.Op) bool {
	switch op.Kind {
	case node.OpConfirm, node.OpExtend, node.OpRelease, node.OpReleaseAfter, node.OpBreak:
		return !node.Reachable(op.Token, t.rec.HighWater, t.tx.Now()) && !t.weak(TakesAnyToken)
	}
	return false
}

func unreachable() node.Reply {
	return node.Reply{Err: node.ErrUnreachableToken, Sent: true}
}

// tooLong reports a TTL above the one in the record, which would break rule 13.
func (t *Txn) tooLong(ttl time.Duration) bool {
	return ttl.Milliseconds() > t.rec.MaxTTL && !t.weak(GrantsTooLong)
}

func whole(left time.Duration) time.Duration { return left.Truncate(time.Millisecond) }

func notHeld() node.Reply { return node.Reply{Outcome: node.NotHeld} }

func (t *Txn) acquire(op *node.Op) node.Reply {
	if t.tooLong(op.TTL) {
		return t.behind()
	}
	op = t.placed(op)
	l, left := t.lock(op.Resource)
	if left > 0 && l.owner != op.Owner {
		t.enqueue(op)
		return t.held(op.Resource, &l, left)
	}
	if op.Attempt != "" {
		if scope, used := t.scope(op.Owner); used && scope != op.Scope && !t.weak(IgnoresScope) {
			return node.Reply{Outcome: node.OtherResource}
		}
	}
	if left > 0 && (!t.weak(QueuesOwners) || !t.overtakes(op)) {
		return t.again(op, l, left)
	}
	if t.overtakes(op) {
		t.enqueue(op)
		return node.Reply{Outcome: node.Queued}
	}
	last := t.unlockedCounter(op.Resource)
	if last >= fencing.MaxToken {
		return node.Reply{Outcome: node.Exhausted}
	}
	t.grant(op, last+1)
	return node.Reply{Outcome: node.Granted, Grant: last + 1, Remaining: op.TTL}
}

func (t *Txn) grant(op *node.Op, grant fencing.Token) {
	t.count(op.Resource, grant)
	t.setLock(op.Resource, lock{ttl: op.TTL, grant: grant, owner: op.Owner, attempts: op.Attempt, meta: op.Meta}, op.TTL)
	if op.Attempt != "" {
		t.tx.Put(ScopeKey(op.Owner), []byte(op.Scope), op.TTL)
	}
	if op.Ticket.ID != "" {
		t.queue(op.Resource).remove(op.Ticket)
	}
}

// again handles an acquire that finds its own lock.
func (t *Txn) again(op *node.Op, l lock, left time.Duration) node.Reply {
	if all := withAttempt(l.attempts, op.Attempt); all != l.attempts {
		l.attempts = all
		t.setLock(op.Resource, l, left)
	}
	return node.Reply{
		Outcome: node.Granted, Existing: true, Grant: l.grant, Remaining: whole(left), TTL: l.ttl, Meta: l.meta,
	}
}

// withAttempt adds an attempt to those that got a lock.
func withAttempt(attempts, attempt string) string {
	known := strings.Split(attempts, ",")
	switch {
	case attempts == "" || attempts == shared || slices.Contains(known, attempt):
		return attempts
	case attempt == "" || len(known) >= node.MaxAttempts:
		return shared
	}
	return attempts + "," + attempt
}

// foundSince reports whether another attempt has found the lock after this one and may have received the
// present grant. If the node does not know all attempts, it returns false.
func (l *lock) foundSince(attempt string) bool {
	return attempt != "" && l.keyed() && l.attempts != shared && l.attempts != attempt && !strings.HasSuffix(l.attempts, ","+attempt)
}

func (t *Txn) held(resource string, l *lock, left time.Duration) node.Reply {
	return node.Reply{
		Outcome: node.Held, Grant: l.grant, Remaining: whole(left), TTL: l.ttl,
		Waiting: t.queue(resource).length(), Owner: l.owner, Meta: l.meta,
	}
}

// overtakes reports whether a living ticket precedes this acquire (any ticket, if the acquire has none). The
// server of the first ticket is notified, since the lock is free.
func (t *Txn) overtakes(op *node.Op) bool {
	queue := t.queue(op.Resource)
	first, found := queue.first()
	if !found || nameOf(first) == nameOf(op.Ticket) || op.Ticket.ID != "" && !before(first, op.Ticket) {
		return false
	}
	queue.notify(first)
	return true
}

// owned returns the lock if it belongs to the operation's lease (rules 2 and 3).
func (t *Txn) owned(op *node.Op, anyGrant Weakness) (l lock, left time.Duration) {
	l, left = t.lock(op.Resource)
	if l.owner != op.Owner || l.grant > op.Token && !t.weak(anyGrant) {
		return l, 0
	}
	return l, left
}

func (t *Txn) confirm(op *node.Op) node.Reply {
	l, left := t.owned(op, ConfirmsAnyGrant)
	if left == 0 && !t.weak(ConfirmsForAnyOwner) || l.foundSince(op.Attempt) && !t.weak(ConfirmsFoundLocks) {
		return notHeld()
	}
	if last, _ := t.counter(op.Resource); last < op.Token {
		t.count(op.Resource, op.Token)
	}
	if left > 0 && l.grant != op.Token { // so that a retry and a reader see the token
		l.grant = op.Token
		t.setLock(op.Resource, l, left)
	}
	return node.Reply{Outcome: node.Granted, Grant: op.Token, Remaining: whole(left)}
}

func (t *Txn) extend(op *node.Op) node.Reply {
	if t.tooLong(op.TTL) {
		return t.behind()
	}
	l, left := t.owned(op, ExtendsAnyGrant)
	if left == 0 {
		return t.recreate(op)
	}
	t.touchCounter(op.Resource)
	news := t.countOn(&l, op)
	if left < op.TTL || t.weak(ShortensLocks) { // an extend never shortens: it may be an old one that comes late
		left, l.ttl, news = op.TTL, op.TTL, true
		if scope, used := t.scope(op.Owner); used && l.keyed() {
			t.tx.Put(ScopeKey(op.Owner), []byte(scope), left)
		}
	}
	if news {
		t.setLock(op.Resource, l, left)
	}
	return node.Reply{Outcome: node.Granted, Grant: l.grant, Remaining: whole(left), Meta: l.meta}
}

// countOn records that a lease relies on the lock, so that none of these may remove it: a break of an earlier
// lease (rule 28) or, under an idempotency key, another attempt that fails, or a late release of the previous
// lease (rule 3). It reports whether the record is new.
func (t *Txn) countOn(l *lock, op *node.Op) (news bool) {
	if t.weak(CountsUnnoted) {
		return false
	}
	grant, attempts := max(l.grant, op.Token), l.attempts
	if l.keyed() {
		attempts = withAttempt(attempts, op.Attempt)
	}
	news = l.grant != grant || l.attempts != attempts
	l.grant, l.attempts = grant, attempts
	return news
}

// recreate implements rule 5: it creates the lock only if no other lease can have held the resource in
// between. If another's lock exists, it raises the counter above the token, because that lock may be removed,
// and then this one must not be recreated.
func (t *Txn) recreate(op *node.Op) node.Reply {
	if _, left := t.lock(op.Resource); left > 0 {
		if !t.weak(RefusesForNow) {
			t.pass(op)
		}
		return notHeld()
	}
	if last := t.unlockedCounter(op.Resource); last > op.Token && !t.weak(RevivesAnyLock) {
		return notHeld()
	}
	t.touchCounter(op.Resource)
	l := lock{ttl: op.TTL, grant: op.Token, owner: op.Owner, attempts: shared} // the node cannot know whether the lease has a key
	t.setLock(op.Resource, l, op.TTL)
	return node.Reply{Outcome: node.Granted, Recreated: true, Grant: op.Token, Remaining: op.TTL}
}

// withdraw releases, breaks or retracts. This is safe on any node, so it is executed even if the gate is shut,
// but then it does not count as a reply.
func (t *Txn) withdraw(op *node.Op) node.Reply {
	if t.open() && t.unreachable(op) {
		return unreachable()
	}
	if op.Kind == node.OpRetract {
		if reply := t.retract(op); t.open() {
			return reply
		}
		return t.behind()
	}
	refusal, refused := t.uncounted(op)
	if refused && refusal.Outcome == node.StaleEpoch { // the caller starts again
		return refusal
	}
	end := t.release
	if op.Kind == node.OpBreak {
		end = t.breakUpTo
	}
	if reply := end(op); !refused {
		return reply
	}
	return refusal
}

// uncounted returns the reply to a release that does not count. A node in a smaller epoch may have missed a
// bootstrap (rule 8), and a node with another map may no longer have the resource (rule 30).
func (t *Txn) uncounted(op *node.Op) (refusal node.Reply, refused bool) {
	switch {
	case !t.mapped(op.Map) && (!t.open() || !t.weak(ReleasesInAnyMap)):
		return t.behind(), true
	case t.weak(ReleasesInAnyEpoch):
		return node.Reply{}, false
	}
	return t.outOfEpoch(op)
}

// release ends a lease. It raises the counter above the token whatever it finds, because the vote of another
// lease may be retracted. Under an idempotency key the next lease has the same owner; its lock stays, because
// it was granted above the token (rule 3).
func (t *Txn) release(op *node.Op) node.Reply {
	l, left := t.lock(op.Resource)
	later := l.keyed() && l.grant > op.Token && !t.weak(ReleasesAnyGrant)
	own := left > 0 && l.owner == op.Owner && !later
	if own || !t.passesNot(left) {
		t.pass(op)
	}
	switch {
	case !own:
		return notHeld()
	case op.Kind == node.OpReleaseAfter && op.TTL > 0:
		return t.keepTaken(op, l, min(op.TTL, left))
	}
	return t.free(op, &l)
}

// breakUpTo ends every lease up to the token, of any owner, and raises the counter above the token whatever it
// finds. A lock that was granted above the token belongs to a later lease and stays (rule 28).
func (t *Txn) breakUpTo(op *node.Op) node.Reply {
	l, left := t.lock(op.Resource)
	ends := left > 0 && (l.grant <= op.Token || t.weak(BreaksAnyGrant))
	if ends || !t.passesNot(left) {
		t.pass(op)
	}
	if !ends {
		return notHeld()
	}
	return t.free(op, &l)
}

// passesNot reports the weaknesses that leave the counter unchanged if an operation deletes no lock.
func (t *Txn) passesNot(left time.Duration) bool {
	return left == 0 && t.weak(PassesOnlyLocks) || left > 0 && t.weak(PassesNoOthers)
}

// keepTaken ends a lease but keeps its lock, which from now on belongs to no lease (rule 27).
func (t *Txn) keepTaken(op *node.Op, l lock, left time.Duration) node.Reply {
	if l.keyed() {
		t.tx.Delete(ScopeKey(l.owner))
	}
	l.attempts = ""
	if !t.weak(KeepsOwner) {
		l.owner = node.NoLease(l.owner)
	}
	t.setLock(op.Resource, l, left)
	if !t.weak(KeepsSilently) {
		t.queue(op.Resource).notifyFirst() // the lock now ends earlier than the server of the first ticket knows
	}
	return node.Reply{Outcome: node.Granted, Grant: l.grant, Remaining: whole(left)}
}

// retract retracts the vote of one attempt, and deletes the lock with the last attempt that may rely on it.
// Without an idempotency key, the only attempt is "".
func (t *Txn) retract(op *node.Op) node.Reply {
	l, left := t.lock(op.Resource)
	if left == 0 || l.owner != op.Owner || l.grant <= op.Above && !t.weak(RetractsAnyGrant) {
		return notHeld()
	}
	attempts := strings.Split(l.attempts, ",")
	others := slices.DeleteFunc(slices.Clone(attempts), func(a string) bool { return a == op.Attempt })
	switch {
	case len(others) == len(attempts):
		return notHeld()
	case len(others) == 0, t.weak(RetractsAnyAttempt):
		return t.free(op, &l)
	}
	l.attempts = strings.Join(others, ",")
	t.setLock(op.Resource, l, left)
	return notHeld()
}

// free deletes the lock and notifies the first ticket's server, unless that server acquires the lock directly
// after the release.
func (t *Txn) free(op *node.Op, l *lock) node.Reply {
	t.tx.Delete(LockKey(op.Resource))
	if l.keyed() {
		t.tx.Delete(ScopeKey(l.owner))
	}
	if first, found := t.queue(op.Resource).first(); found && (op.Kind != node.OpRelease || first.Server != op.Ticket.Server) {
		t.queue(op.Resource).notify(first)
	}
	return node.Reply{Outcome: node.Granted, Grant: l.grant}
}

// pass raises the counter above the token of a lease that was released or refused, so that no later extend
// recreates its lock (rule 5).
func (t *Txn) pass(op *node.Op) {
	if _, refused := t.uncounted(op); refused || t.weak(ReleasesOnlyLocks) {
		return
	}
	if last, _ := t.counter(op.Resource); last <= op.Token {
		t.count(op.Resource, min(op.Token+1, fencing.MaxToken))
	}
}

func (t *Txn) lookAt(op *node.Op) node.Reply {
	reply := notHeld()
	if l, left := t.lock(op.Resource); left > 0 {
		reply = t.held(op.Resource, &l, left)
		reply.Outcome = node.Granted
	}
	queue := t.queue(op.Resource)
	reply.Waiting, reply.Queue = queue.length(), queue.list(node.MaxShown)
	return reply
}
