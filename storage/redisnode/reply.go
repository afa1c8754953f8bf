package redisnode

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// parseAnswer reads vote.lua's reply to one operation. A number is a grant with the requested TTL. Other
// replies are a string, or for a read an array of the string and the queue.
func parseAnswer(u *unpacker, op *node.Op) node.Reply {
	if grant, ok := u.number(); ok {
		return grantFor(op, grant)
	}
	if !u.isArray() {
		return parseReply(u.str())
	}
	parts := u.array()
	reply := parseReply(u.str())
	if reply.Outcome == node.Held { // a read reports whether the resource is locked
		reply.Outcome = node.Granted
	}
	waiting, err := strconv.Atoi(u.str())
	for at := 2; at+1 < parts && !u.bad; at += 2 {
		ticket := parseTicket(u.str())
		if arrival, err := strconv.ParseFloat(u.str(), 64); err == nil {
			ticket.Arrival = int64(arrival)
			reply.Queue = append(reply.Queue, ticket)
		}
	}
	if u.bad || err != nil {
		return unreadable("")
	}
	reply.Waiting = waiting
	return reply
}

// grantFor is the reply to a release, or to an acquire that got its full TTL.
func grantFor(op *node.Op, grant int64) node.Reply {
	if grant < 0 || grant > int64(fencing.MaxToken) {
		return unreadable("")
	}
	r := node.Reply{Outcome: node.Granted, Grant: fencing.Token(grant)}
	switch op.Kind {
	case node.OpAcquire:
		r.Remaining = op.TTL
	case node.OpRelease:
	default:
		return unreadable("")
	}
	return r
}

// parseTicket reads a member of a queue: "id server holder".
func parseTicket(member string) (t node.Ticket) {
	id, rest, _ := strings.Cut(member, " ")
	t.ID = id
	t.Server, t.Holder, _ = strings.Cut(rest, " ")
	return t
}

// parseReply reads one string of the reply; vote.lua describes its forms.
func parseReply(text string) node.Reply {
	if text == "" {
		return unreadable(text)
	}
	f := fields{rest: strings.TrimPrefix(text[1:], " ")}
	var r node.Reply
	switch text[0] {
	case 'G':
		r = node.Reply{Outcome: node.Granted, Grant: f.token(), Remaining: f.millis(), Meta: f.tail()}
	case 'E':
		r = node.Reply{Outcome: node.Granted, Existing: true, Grant: f.token(), Remaining: f.millis(), TTL: f.millis(), Meta: f.tail()}
	case 'C':
		r = node.Reply{Outcome: node.Granted, Recreated: true, Grant: f.token(), Remaining: f.millis()}
	case 'H':
		r = node.Reply{Outcome: node.Held, Grant: f.token(), Remaining: f.millis(), TTL: f.millis(), Waiting: int(f.number()), Owner: f.word(), Meta: f.tail()}
	case 'W':
		r = node.Reply{Outcome: node.Queued}
	case 'N':
		r = node.Reply{Outcome: node.NotHeld}
	case 'O':
		r = node.Reply{Outcome: node.OtherResource}
	case 'Q':
		r = node.Reply{Outcome: node.Exhausted}
	case 'S':
		r = node.Reply{Outcome: node.StaleEpoch, Epoch: node.Epoch(f.number())}
	case 'X':
		r = node.Reply{Outcome: node.NotAdmitted, Epoch: node.Epoch(f.number())}
	case 'T':
		r = node.Reply{Err: node.ErrUnreachableToken, Sent: true}
	case '!':
		r = node.Reply{Err: fmt.Errorf("the node refused the operation: %s", f.rest), Sent: true}
	default:
		f.bad = true
	}
	if f.bad {
		return unreadable(text)
	}
	return r
}

func unreadable(text string) node.Reply {
	const shown = 1 // only the first byte is shown: the text may contain an owner
	return node.Reply{Err: fmt.Errorf("the node sent a reply that cannot be read: %.*q…", shown, text), Sent: true}
}

// fields reads blank-separated fields from the front of a text.
type fields struct {
	rest string
	bad  bool
}

func (f *fields) word() string {
	word := f.optional()
	f.bad = f.bad || word == ""
	return word
}

// optional reads a field that may be empty.
func (f *fields) optional() (word string) {
	word, f.rest, _ = strings.Cut(f.rest, " ")
	return word
}

// number reads a number that the node can store exactly.
func (f *fields) number() int64 {
	n, ok := exact(f.word())
	f.bad = f.bad || !ok
	return n
}

func (f *fields) tail() string          { return f.rest } // a call, so that Go evaluates it after the fields before it
func (f *fields) token() fencing.Token  { return fencing.Token(f.number()) }
func (f *fields) millis() time.Duration { return inMillis(f.number()) }

// inMillis converts milliseconds to a duration. It limits the value to between 0 and a year, whatever a broken
// node sends.
func inMillis(n int64) time.Duration {
	const year = 365 * 24 * time.Hour
	return time.Duration(min(max(n, 0), year.Milliseconds())) * time.Millisecond
}

// millis formats a duration in milliseconds, the unit of the scripts.
func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// exact parses a number that a script sends: 0 to fencing.MaxToken.
func exact(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > int64(fencing.MaxToken) {
		return 0, false
	}
	return n, true
}
