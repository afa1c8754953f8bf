package optimistic

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/fencelock/fencelock/storage/overlay"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// transaction is what an entry of the log holds.
type transaction struct {
	commit   string // that wrote it
	previous string // that wrote the entry before; "" if there was none since the life began
	deleted  []string
	put      []rowOf
}

// rowOf is a row of an entry. Left is its time to live when the entry was written, 0 for good.
type rowOf struct {
	key   string
	value []byte
	left  time.Duration
}

// encode makes the entry's value: the keys that were deleted, and the rows that were put,
// each with its time to live in microseconds.
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

// left are rows of an entry that is written now.
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

// seen is the row as one that is seen now. A row lasts from then for what is left of it:
// that is not before its time.
func (r *rowOf) seen(now int64, age time.Duration) overlay.Row {
	row := overlay.Row{Value: r.value, Ends: overlay.ForGood}
	if r.left > 0 {
		row.Ends = now + max(0, (r.left-age).Microseconds()+1)
	}
	return row
}
