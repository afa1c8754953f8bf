package optimistic

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// head is the decoded head: the key to which every commit gives a new value.
type head struct {
	life    string   // the incarnation
	young   bool     // the life began empty, at a place where nothing can have been lost
	origin  string   // Snapshot.Origin when the life began
	first   int64    // number of the log's first entry
	last    int64    // number of its last; the log is empty if last < first
	commit  string   // random, so that no two heads are equal
	entry   string   // the commit that wrote the last entry; "" if this life has written none
	turns   []string // the servers that take turns; turns[0] commits next
	wakes   []replica.Wake
	wakeAll bool // the wakes were too many to list
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

// decodeHead reads a head; "" stands for a missing head.
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

// Head is the part of a head that a service may need. A missing head gives the zero Head.
type Head struct {
	Life   string
	Origin string // Snapshot.Origin when the life began
	Commit string // random: no two heads have the same
	// First and Last bound the log, which is empty if Last < First.
	First, Last int64
	Shared      bool // servers take turns
}

// ReadHead reads a head.
func ReadHead(raw string) (Head, error) {
	h, err := decodeHead(raw)
	return Head{Life: h.life, Origin: h.origin, Commit: h.commit, First: h.first, Last: h.last, Shared: len(h.turns) > 0}, err
}

// turn returns the server that commits next; "" if any may.
func (h *head) turn() string {
	if len(h.turns) == 0 {
		return ""
	}
	return h.turns[0]
}

// wake sets the wakes, about which listeners are notified.
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

// decoder reads the parts of a value one by one.
type decoder struct {
	rest   string
	failed bool // a part was missing: it and all later parts read as zero
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
