package nodetest

import (
	"fmt"
	"strings"

	"github.com/fencelock/fencelock/lockcore/node"
)

// operation is the kind of operation of a verb, and the words that follow it.
type operation struct {
	kind  node.OpKind
	words []string
}

var operations = map[string]operation{
	"acquire":       {node.OpAcquire, []string{"resource", "owner"}},
	"confirm":       {node.OpConfirm, []string{"resource", "owner", "token"}},
	"extend":        {node.OpExtend, []string{"resource", "owner", "token"}},
	"release":       {node.OpRelease, []string{"resource", "owner", "token"}},
	"release-after": {node.OpReleaseAfter, []string{"resource", "owner", "token"}},
	"break":         {node.OpBreak, []string{"resource", "token"}},
	"retract":       {node.OpRetract, []string{"resource", "owner"}},
	"read":          {node.OpRead, []string{"resource"}},
	"enqueue":       {node.OpEnqueue, []string{"resource", "ticket"}},
	"dequeue":       {node.OpDequeue, []string{"resource", "ticket"}},
	"forget":        {node.OpForget, []string{"resource", "ticket"}},
	"heartbeat":     {node.OpHeartbeat, []string{"server"}},
}

// op returns the operation of a line. Defaults are a TTL of a minute, the usual metadata and, with an attempt,
// the resource as the scope.
func (s *suite) op(l line) (op node.Op) {
	s.Helper()
	form := operations[l.verb]
	op = node.Op{Kind: form.kind, Epoch: s.epoch}
	switch op.Kind {
	case node.OpAcquire, node.OpExtend, node.OpHeartbeat:
		op.TTL = longTTL
	}
	if len(l.words) != len(form.words) {
		s.Fatalf("%s needs %s", l.verb, strings.Join(form.words, ", "))
	}
	for i, word := range form.words {
		s.must(s.set(&op, word, l.words[i]))
	}
	if op.Kind == node.OpAcquire {
		op.Meta = usual(op.Owner)
	}
	if op.Kind == node.OpAcquire && l.pairs["try"] != "" {
		op.Scope = op.Resource
	}
	for key, value := range l.pairs {
		s.must(s.set(&op, key, value))
	}
	return op
}

func (s *suite) set(op *node.Op, field, value string) (err error) {
	switch field {
	case "resource":
		op.Resource = value
	case "owner":
		op.Owner = value
	case "token":
		op.Token, err = s.token(value)
	case "above":
		op.Above, err = s.token(value)
	case "for":
		op.TTL, err = s.time(value)
	case "meta":
		op.Meta = value
	case "try":
		op.Attempt = value
	case "scope":
		op.Scope = value
	case "ticket":
		op.Ticket, err = s.ticket(value)
	case "server":
		op.Ticket.Server = value
	case "epoch":
		op.Epoch, err = s.parseEpoch(value)
	case "map":
		op.Map = value
	case "id":
		op.Ticket.ID = value
	default:
		err = fmt.Errorf("an operation has no %q", field)
	}
	return err
}

// ticket returns a ticket that the command "ticket" made.
func (s *suite) ticket(name string) (node.Ticket, error) {
	t, ok := s.tickets[name]
	if !ok {
		return t, fmt.Errorf("there is no ticket %q", name)
	}
	return t, nil
}
