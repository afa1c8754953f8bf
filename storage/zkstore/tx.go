package zkstore

import (
	"slices"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// tx is one run of a transaction over the mirror. Rows that it puts count from high, the
// end of the span in which now is, and rows have gone at low, its beginning: so none goes
// early.
type tx struct {
	*overlay.Tx
	m         *mirror
	low, high int64

	messages []message // besides the wakes
	gone     []string  // rows whose time has passed, to be removed
	cleans   bool      // it is written even if it changes nothing
}

func newTx(m *mirror, low, high int64) *tx {
	t := &tx{m: m, low: low, high: high}
	t.Tx = overlay.New(rows{t}, high, replica.Status{Incarnation: m.name()})
	return t
}

// rows is t as what an overlay reads from.
type rows struct{ t *tx }

// Get is of overlay.Rows. A row of which it is not certain whether its time has passed
// counts as if it had a little left.
func (r rows) Get(key string) (*overlay.Row, bool) {
	row, there := r.t.m.Get(key)
	if !there {
		return nil, true
	}
	if row.Ends > r.t.low {
		row.Ends = max(row.Ends, r.t.high+time.Microsecond.Microseconds())
	}
	return &row.Row, true
}

// Next is of overlay.Rows: all is known.
func (r rows) Next(at, to string) (key, bound string) {
	if key = r.t.m.Next(at); key >= to {
		key = ""
	}
	return key, to
}

// entry is what the transaction leaves; nil if it changes nothing.
func (t *tx) entry() *entry {
	c := t.Changes()
	if c.Nothing() && !t.cleans && len(t.messages) == 0 {
		return nil
	}
	e := &entry{purge: c.Purge, deleted: slices.Concat(c.Deleted, t.Ended(), t.gone), messages: t.messages}
	for _, p := range c.Put {
		e.puts = append(e.puts, rowlog.Row{Key: p.Key, Row: *p.Row})
	}
	for _, wake := range c.Wakes {
		e.messages = append(e.messages, encodeWake(wake))
	}
	return e
}
