package lockcore

import (
	"context"
	"time"
)

// release does what op, a release, says on every node.
func (l *Locker) release(ctx context.Context, op Op) error {
	op.Kind = OpRelease
	p := startPoll(l.nodes, op, l.cfg.NodeTimeout, (*ballot).releaseDecided, func(b *ballot, i int, reply Reply) {
		l.afterRelease(op, b, i, reply)
	})
	l.line.freed(op.Resource)
	b := p.wait(ctx)
	for i := range l.nodes {
		if b.answered[i] { // the others' answers are still to come
			l.afterRelease(op, &b, i, b.replies[i])
		}
	}
	released, never := b.count(Granted), b.count(NotHeld)
	switch {
	case released >= b.quorum:
	case len(l.nodes)-never < b.quorum:
		return ErrNotHeld // so few nodes can have held it that it was no lease
	case released+never < b.quorum || released == 0:
		return l.quorumError(op.Resource, &b)
	}
	switch {
	case op.Hold == OwnHold && b.unheld():
		l.releaseWhole(ctx, op)
	case !b.ended():
		return nil
	}
	if l.cfg.Released != nil && op.Hold != "" {
		l.cfg.Released(op.Resource, op.Token)
	}
	return nil
}

// releaseWhole ends a lease whose last holds nobody knows of, after its acquirer's own.
func (l *Locker) releaseWhole(ctx context.Context, op Op) {
	op.Hold = ""
	b := runPoll(ctx, l.nodes, op, l.cfg.NodeTimeout, func(*ballot) bool { return false })
	for i := range l.nodes {
		if b.replies[i].Outcome == Failed {
			l.clean.release(i, op, time.Now().Add(l.cfg.MaxTTL), 0)
		}
	}
}

// afterRelease goes on in the background, where the release met node i in a state
// in which it is not done. Once a quorum has ended the lease it is ended on every
// node, whatever holds that one knows. Before, a named hold is left alone: it may
// be added again, and nothing may then take it off.
func (l *Locker) afterRelease(op Op, b *ballot, i int, reply Reply) {
	doubts := 0
	switch {
	case b.ended():
		op.Hold, doubts = "", 1
	case op.Hold != "" && op.Hold != OwnHold:
		return
	}
	switch reply.Outcome {
	case Failed: // never sent, too: the lock is older than the call
		l.clean.release(i, op, time.Now().Add(l.cfg.MaxTTL), doubts)
	case NotAdmitted: // it may be about to be given the lock, as others had it a moment ago (rule 21)
		l.clean.releaseLater(i, op, time.Now().Add(rejoinTime))
	case NotHeld: // an acquire that another server sent may be on its way to it yet
		if doubts > 0 && b.gone() > 0 {
			l.clean.releaseLater(i, op, time.Now().Add(rejoinTime))
		}
	case Granted:
		if doubts > 0 && reply.Holds > 0 {
			l.clean.release(i, op, time.Now().Add(l.cfg.MaxTTL), 0)
		}
	}
}

// ended: so many nodes do not hold the lease that the others are no quorum.
func (b *ballot) ended() bool {
	gone, absent := b.gone(), 0
	for i := range b.replies[:b.n] {
		if r := &b.replies[i]; b.answered[i] && r.Outcome == NotHeld && r.Holds == 0 {
			absent++
		}
	}
	return gone+absent > b.n-b.quorum
}

// gone is on how many nodes the release ended the lease.
func (b *ballot) gone() (n int) {
	for i := range b.replies[:b.n] {
		if b.answered[i] && b.replies[i].Outcome == Granted && b.replies[i].Holds == 0 {
			n++
		}
	}
	return n
}

// holds is how many holds of the lease a node knows of at most, and unsure
// whether there is one that may have had more.
func (b *ballot) holds() (n int, unsure bool) {
	for i := range b.replies[:b.n] {
		r := &b.replies[i]
		if !b.answered[i] || r.Outcome != Granted && r.Outcome != NotHeld { // who had no such hold may have others
			continue
		}
		known := r.Holds
		if r.Unsure {
			known, unsure = known-1, true
		}
		n = max(n, known)
	}
	return n, unsure
}

// unheld: every node that votes says that it knows of no hold any more, though too
// few of them have known of all. A node that is silent may know better.
func (b *ballot) unheld() bool {
	n, unsure := b.holds()
	return unsure && n == 0 && !b.ended() && b.heard()+b.count(NotAdmitted) == b.n
}

// releaseDecided: a quorum gave it up, or too few can ever have held it, or too
// many know of other holds. Where only some do, or do not know of all, the others
// are waited for.
func (b *ballot) releaseDecided() bool {
	if b.n-b.count(NotHeld) < b.quorum {
		return true
	}
	n, unsure := b.holds()
	mayEnd := b.gone()+b.count(NotHeld)+b.silent > b.n-b.quorum
	return b.count(Granted) >= b.quorum && (b.ended() || !mayEnd && (!unsure || n > 0))
}
