package redisnode

import (
	"fmt"
	"strconv"

	"github.com/fencelock/fencelock/lockcore/node"
)

// op writes an operation in the form that vote.lua reads.
func (p *packer) op(op *node.Op) {
	switch op.Kind {
	case node.OpAcquire:
		p.acquire(op)
	case node.OpConfirm:
		p.owned("c", op)
		p.strs(op.Attempt)
	case node.OpExtend:
		p.owned("e", op)
		p.int(op.TTL.Milliseconds())
		p.strs(op.Attempt)
	case node.OpRelease:
		p.release(op)
	case node.OpReleaseAfter:
		p.owned("k", op)
		p.int(op.TTL.Milliseconds())
	case node.OpBreak:
		p.of("b", op)
		p.number(int64(op.Token))
	case node.OpRetract:
		p.of("t", op)
		p.strs(op.Owner, op.Attempt)
		p.number(int64(op.Above))
	case node.OpRead:
		p.of("g", op)
	case node.OpEnqueue:
		p.of("n", op)
		p.ticket(op.Ticket)
	case node.OpDequeue:
		p.of("d", op)
		p.strs(op.Ticket.ID, op.Ticket.Server, op.Ticket.Holder, flag(op.Ticket.Keyed))
	case node.OpForget:
		p.of("f", op)
		p.strs(op.Ticket.ID, op.Ticket.Server, op.Ticket.Holder)
	case node.OpHeartbeat:
		p.strs("h", op.Ticket.Server)
		p.int(op.TTL.Milliseconds())
	default:
		panic(fmt.Sprintf("redisnode: operation of unknown kind %d", op.Kind))
	}
}

// of writes the kind and the key of the lock.
func (p *packer) of(kind string, op *node.Op) {
	p.str(kind)
	p.joined("l:", op.Resource)
}

// owned writes an operation that has an owner and its token.
func (p *packer) owned(kind string, op *node.Op) {
	p.of(kind, op)
	p.str(op.Owner)
	p.number(int64(op.Token))
}

// acquire writes an acquire without a ticket. It writes the lock's whole record except the grant, so that the
// script only has to prepend the grant.
func (p *packer) acquire(op *node.Op) {
	var digits [20]byte
	ttl := string(strconv.AppendInt(digits[:0], op.TTL.Milliseconds(), 10))
	if op.Ticket.ID != "" {
		p.of("w", op)
		p.strs(op.Owner, ttl, op.Attempt, op.Scope, op.Meta)
		p.ticket(op.Ticket)
		return
	}
	kind := "a"
	if op.Attempt != "" {
		kind = "i"
	}
	p.of(kind, op)
	p.str(ttl)
	p.joined(" ", op.Owner, " ", op.Attempt, " ", ttl, " ", op.Meta)
	if op.Attempt != "" {
		p.joined("i:", op.Owner)
		p.str(op.Scope)
	}
}

// release writes the expected beginning of the lock's record, which nearly always matches.
func (p *packer) release(op *node.Op) {
	var digits [20]byte
	p.of("r", op)
	p.number(int64(op.Token))
	p.joined(string(strconv.AppendInt(digits[:0], int64(op.Token), 10)), " ", op.Owner, " ")
	p.str(op.Ticket.Server)
}

func (p *packer) ticket(t node.Ticket) {
	p.strs(t.ID, t.Server)
	p.int(t.Arrival)
	p.strs(t.Holder, flag(t.Keyed))
}

func flag(set bool) string {
	if set {
		return "1"
	}
	return ""
}
