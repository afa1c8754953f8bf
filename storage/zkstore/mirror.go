package zkstore

import "github.com/fencelock/fencelock/storage/rowlog"

// mirror is what the log says, up to its last entry.
type mirror struct {
	header
	*rowlog.Log
}

func newMirror(h header) *mirror { return &mirror{header: h, Log: rowlog.New()} }

// apply does what the next entry says.
func (m *mirror) apply(e *entry) {
	if e.purge {
		m.Purge()
	}
	m.Append(rowlog.Entry{Number: e.last, ID: e.id, Pieces: e.pieces}, e.deleted, e.puts)
	m.header = e.header
	m.Drop(m.first)
}
