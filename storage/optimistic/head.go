package optimistic

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// head is the key that every commit replaces.
type head struct {
	life    string   // the incarnation
	young   bool     // the life began with nothing, where nothing can have been lost
	origin  string   // Snapshot.Origin when the life began
	first   int64    // entry of the log
	last    int64    // the log is empty if it is before the first
	commit  string   // random, so that no two heads are equal
	entry   string   // the commit that wrote the last entry; "" if the log is empty since the life began
	turns   []string // the servers that take turns: the first commits next
	wakes   []replica.Wake
	wakeAll bool // there were too many
}

const (
	headFormat   = 4
	maxWakeBytes = 64 << 10
)

// encode makes the head's value.
func (h *head) encode() string {
	raw := []byte{headFormat, flag(h.young), flag(h.wakeAll)}
	raw = binary.AppendUvarint(binary.AppendUvarint(raw, uint64(h.first)), uint64(h.last))
	for _, text := range []string{h.life, h.origin, h.commit, h.entry} {
		raw = appendText(raw, text)
	}
	raw = binary.AppendUvarint(raw, uint64(len(h.turns)))
	for _, server := range h.turns {
		raw = appendText(raw, server)
	}
	for _, w := range h.wakes {
		for _, text := range []string{w.Resource, w.Ticket.ID, w.Ticket.Server, w.Ticket.Holder} {
			raw = appendText(raw, text)
		}
	}
	return string(raw)
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func appendText(raw []byte, text string) []byte {
	return append(binary.AppendUvarint(raw, uint64(len(text))), text...)
}

var errHead = errors.New("the head cannot be read")

// decodeHead reads a head; "" is one that there is not.
func decodeHead(raw string) (h head, err error) {
	if raw == "" {
		return h, nil
	}
	if raw[0] != headFormat {
		return h, fmt.Errorf("%w: it was written by another version of fencelock: this one reads format %d", errHead, headFormat)
	}
	if len(raw) < 3 {
		return h, errHead
	}
	d := decoder{rest: raw[3:]}
	h = head{young: raw[1] == 1, wakeAll: raw[2] == 1, first: int64(d.number()), last: int64(d.number()), life: d.text(), origin: d.text(), commit: d.text(), entry: d.text()}
	for range d.number() {
		if d.failed {
			break
		}
		h.turns = append(h.turns, d.text())
	}
	for d.rest != "" {
		h.wakes = append(h.wakes, replica.Wake{
			Resource: d.text(), Ticket: node.Ticket{ID: d.text(), Server: d.text(), Holder: d.text()},
		})
	}
	if d.failed {
		return head{}, errHead
	}
	return h, nil
}

// Head is what a service may need to know of a head. It is the zero Head where there is none.
type Head struct {
	Life   string
	Origin string // what Snapshot.Origin was when the life began
	Commit string // differs for any two heads
	// First and Last are the bounds of the log, which is empty if the last is before the first.
	First, Last int64
	Shared      bool // servers take turns
}

// ReadHead reads a head.
func ReadHead(raw string) (Head, error) {
	h, err := decodeHead(raw)
	return Head{Life: h.life, Origin: h.origin, Commit: h.commit, First: h.first, Last: h.last, Shared: len(h.turns) > 0}, err
}

// turn is the server that commits next; "" for any.
func (h *head) turn() string {
	if len(h.turns) == 0 {
		return ""
	}
	return h.turns[0]
}

// wake sets what listeners are told of.
func (h *head) wake(wakes []replica.Wake) {
	size := 0
	for _, w := range wakes {
		size += len(w.Resource) + len(w.Ticket.ID) + len(w.Ticket.Server) + len(w.Ticket.Holder)
	}
	h.wakes, h.wakeAll = wakes, false
	if size > maxWakeBytes {
		h.wakes, h.wakeAll = nil, true
	}
}

// decoder reads what a value holds, part by part.
type decoder struct {
	rest   string
	failed bool // a part was not there: it and what follows are zero
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint([]byte(d.rest[:min(len(d.rest), binary.MaxVarintLen64)]))
	if size <= 0 {
		d.failed, d.rest = true, ""
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

func (d *decoder) text() string {
	size := d.number()
	if size > uint64(len(d.rest)) {
		d.failed, d.rest = true, ""
		return ""
	}
	text := d.rest[:size]
	d.rest = d.rest[size:]
	return text
}
