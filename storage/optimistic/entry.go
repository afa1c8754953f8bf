package optimistic

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/fencelock/fencelock/storage/overlay"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// transaction is the content of a log entry.
type transaction struct {
	commit   string // the commit that wrote it
	previous string // the commit that wrote the previous entry; "" for the first entry of a life
	deleted  []string
	put      []rowOf
}

// rowOf is a row of an entry. Left is its remaining time to live when the entry was written, 0 if it never
// ends.
type rowOf struct {
	key   string
	value []byte
	left  time.Duration
}

// encode makes the entry's value: the deleted keys, and the put rows, each with its time to live in
// microseconds.
func (t *transaction) encode() []byte {
	raw := appendText(appendText(nil, t.commit), t.previous)
	raw = binary.AppendUvarint(raw, uint64(len(t.deleted)))
	for _, key := range t.deleted {
		raw = appendText(raw, key)
	}
	for _, row := range t.put {
		raw = appendText(raw, row.key)
		raw = binary.AppendUvarint(raw, uint64(row.left.Microseconds()))
		raw = append(binary.AppendUvarint(raw, uint64(len(row.value))), row.value...)
	}
	return raw
}

// left returns the rows of an entry that is written now, with their remaining times.
func (m *Mirror) left(put []rowlog.Row) []rowOf {
	now, rows := m.now(), make([]rowOf, len(put))
	for i, row := range put {
		rows[i] = rowOf{key: row.Key, value: row.Value}
		if row.Ends != overlay.ForGood {
			rows[i].left = time.Duration(max(row.Ends-now, 1)) * time.Microsecond
		}
	}
	return rows
}

var errEntry = errors.New("an entry of the log cannot be read")

func decodeEntry(raw []byte) (t transaction, err error) {
	d := decoder{rest: string(raw)}
	t.commit, t.previous = d.text(), d.text()
	for n := d.number(); n > 0 && !d.failed; n-- {
		t.deleted = append(t.deleted, d.text())
	}
	for d.rest != "" {
		key, micros := d.text(), d.number()
		d.failed = d.failed || micros > math.MaxInt64/1000
		t.put = append(t.put, rowOf{key: key, left: time.Duration(micros) * time.Microsecond, value: []byte(d.text())})
	}
	if d.failed {
		return transaction{}, errEntry
	}
	return t, nil
}

// seen converts a row that is seen now. The row ends after its remaining time from now, minus its age, so it
// never ends early.
func (r *rowOf) seen(now int64, age time.Duration) overlay.Row {
	row := overlay.Row{Value: r.value, Ends: overlay.ForGood}
	if r.left > 0 {
		row.Ends = now + max(0, (r.left-age).Microseconds()+1)
	}
	return row
}
