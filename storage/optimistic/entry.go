package optimistic

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/fencelock/fencelock/storage/overlay"
)

// rowOf is a row of an entry. Left is its time to live when the entry was written, 0 for good.
type rowOf struct {
	key   string
	value []byte
	left  time.Duration
}

// encodeEntry makes an entry's value: the commit that wrote it, the keys that it deleted,
// and the rows that it put, each with its time to live in microseconds.
func encodeEntry(commit string, deleted []string, rows []rowOf) []byte {
	raw := binary.AppendUvarint(appendText(nil, commit), uint64(len(deleted)))
	for _, key := range deleted {
		raw = appendText(raw, key)
	}
	for _, row := range rows {
		raw = appendText(raw, row.key)
		raw = binary.AppendUvarint(raw, uint64(row.left.Microseconds()))
		raw = append(binary.AppendUvarint(raw, uint64(len(row.value))), row.value...)
	}
	return raw
}

// left are rows of an entry that is written now.
func (m *Mirror) left(put []overlay.Put) []rowOf {
	now, rows := m.now(), make([]rowOf, len(put))
	for i, p := range put {
		rows[i] = rowOf{key: p.Key, value: p.Row.Value}
		if p.Row.Ends != overlay.ForGood {
			rows[i].left = time.Duration(max(p.Row.Ends-now, 1)) * time.Microsecond
		}
	}
	return rows
}

var errEntry = errors.New("an entry of the log cannot be read")

func decodeEntry(raw []byte) (commit string, deleted []string, rows []rowOf, err error) {
	d := decoder{rest: string(raw)}
	commit = d.text()
	for n := d.number(); n > 0 && !d.failed; n-- {
		deleted = append(deleted, d.text())
	}
	for d.rest != "" {
		key, micros := d.text(), d.number()
		if micros > math.MaxInt64/1000 {
			return "", nil, nil, errEntry
		}
		rows = append(rows, rowOf{key: key, left: time.Duration(micros) * time.Microsecond, value: []byte(d.text())})
	}
	if d.failed {
		return "", nil, nil, errEntry
	}
	return commit, deleted, rows, nil
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
