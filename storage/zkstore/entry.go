package zkstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/fencelock/fencelock/storage/overlay"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// magic begins the data of head and of every entry. The number is that of the format.
const magic = "fencelock 1\n"

// header is in every entry, and in the znode clock, as it is from that entry on.
type header struct {
	incarnation string
	generation  int64  // 1 for the incarnation with which the path was made
	correction  int64  // of the leader's clock, in microseconds
	first       int64  // the oldest entry that there is
	last        int64  // this one
	id          string // random: tells this one, and each attempt to commit, from all others
}

func (h *header) name() string { return fmt.Sprintf("%s/%d", h.incarnation, h.generation) }

// message is for those who hear its topic now.
type message struct{ topic, text string }

// entry is a transaction in the log.
type entry struct {
	header
	previous string // the id of the entry before
	purge    bool
	deleted  []string
	puts     []rowlog.Row // their ends are in microseconds of the rows' time
	messages []message

	pieces int // how many znodes hold what follows the header; 0 if it is in the entry
}

var errForeign = errors.New("holds data that are not fencelock's: give the cluster its own path")

var errCorrupt = errors.New("an entry of the log cannot be read")

type writer struct{ raw []byte }

func (w *writer) number(n int64)   { w.raw = binary.AppendVarint(w.raw, n) }
func (w *writer) text(text string) { w.number(int64(len(text))); w.raw = append(w.raw, text...) }

func (h *header) write(w *writer) {
	w.raw = append(w.raw, magic...)
	w.text(h.incarnation)
	for _, n := range []int64{h.generation, h.correction, h.first, h.last} {
		w.number(n)
	}
	w.text(h.id)
}

func (h *header) encode() []byte {
	var w writer
	h.write(&w)
	return w.raw
}

// front is what an entry begins with; the body follows, there or in pieces.
func (e *entry) front() []byte {
	w := writer{raw: e.encode()}
	w.text(e.previous)
	w.number(int64(e.pieces))
	return w.raw
}

func (e *entry) body() []byte {
	var w writer
	flag := int64(0)
	if e.purge {
		flag = 1
	}
	w.number(flag)
	w.number(int64(len(e.deleted)))
	for _, key := range e.deleted {
		w.text(key)
	}
	w.number(int64(len(e.puts)))
	for _, p := range e.puts {
		w.text(p.Key)
		w.number(p.Ends)
		w.text(string(p.Value))
	}
	w.number(int64(len(e.messages)))
	for _, m := range e.messages {
		w.text(m.topic)
		w.text(m.text)
	}
	return w.raw
}

// reader reads what writer wrote. After a failure it reads zeros.
type reader struct {
	raw    []byte
	failed bool
}

func (r *reader) number() int64 {
	n, size := binary.Varint(r.raw)
	if size <= 0 {
		r.failed, r.raw = true, nil
		return 0
	}
	r.raw = r.raw[size:]
	return n
}

func (r *reader) bytes() []byte {
	n := r.number()
	if n < 0 || n > int64(len(r.raw)) {
		r.failed, r.raw = true, nil
		return nil
	}
	text := r.raw[:n:n]
	r.raw = r.raw[n:]
	return text
}

// count is the length of a list, each of whose parts takes at least a byte.
func (r *reader) count() int {
	n := r.number()
	if n < 0 || n > int64(len(r.raw)) {
		r.failed, r.raw = true, nil
		return 0
	}
	return int(n)
}

func (h *header) read(r *reader) error {
	text, found := strings.CutPrefix(string(r.raw[:min(len(r.raw), len(magic))]), magic)
	switch {
	case !found && strings.HasPrefix(text, "fencelock "):
		return errors.New("was written by another version of fencelock, with another format: use that one, or another path")
	case !found:
		return errForeign
	}
	r.raw = r.raw[len(magic):]
	*h = header{incarnation: string(r.bytes()), generation: r.number(), correction: r.number(), first: r.number(), last: r.number(), id: string(r.bytes())}
	if r.failed {
		return errCorrupt
	}
	return nil
}

func decodeHeader(raw []byte) (h header, err error) {
	err = h.read(&reader{raw: raw})
	return h, err
}

// decodeFront reads an entry, and its body if that is not in pieces.
func decodeFront(raw []byte) (*entry, error) {
	e, r := &entry{}, &reader{raw: raw}
	if err := e.read(r); err != nil {
		return nil, err
	}
	e.previous, e.pieces = string(r.bytes()), int(r.number())
	if r.failed {
		return nil, errCorrupt
	}
	if e.pieces > 0 {
		return e, nil
	}
	err := e.decodeBody(r.raw)
	return e, err
}

func (e *entry) decodeBody(raw []byte) error {
	r := &reader{raw: raw}
	e.purge = r.number() == 1
	e.deleted = make([]string, r.count())
	for i := range e.deleted {
		e.deleted[i] = string(r.bytes())
	}
	e.puts = make([]rowlog.Row, r.count())
	for i := range e.puts {
		e.puts[i] = rowlog.Row{Key: string(r.bytes()), Row: overlay.Row{Ends: r.number(), Value: r.bytes()}}
		if e.puts[i].Value == nil {
			e.puts[i].Value = []byte{}
		}
	}
	e.messages = make([]message, r.count())
	for i := range e.messages {
		e.messages[i] = message{topic: string(r.bytes()), text: string(r.bytes())}
	}
	if r.failed || len(r.raw) > 0 {
		return errCorrupt
	}
	return nil
}
