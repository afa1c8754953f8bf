package optimistic

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/google/btree"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
)

// Mirror is this server's copy of all rows. A Service keeps it up to date.
type Mirror struct {
	began  time.Time
	notify func(*head)

	mu      sync.RWMutex
	rows    *btree.BTreeG[entry]
	state   state
	changed chan struct{} // is closed when the state changes
}

// state is what a transaction runs on, but for the rows.
type state struct {
	loaded      bool
	version     int64 // every change up to this is in the copy
	rawHead     string
	head        head
	headVersion int64
	claim       string
	origin      string // of the last snapshot
	restored    bool
	lost        bool // commits may be lost: another life has to begin
}

// entry is a row of the copy.
type entry struct {
	key     string
	row     overlay.Row
	version int64 // that wrote it
}

func newMirror(notify func(*head)) *Mirror {
	return &Mirror{began: time.Now(), notify: notify, rows: newRows(), changed: make(chan struct{})}
}

func newRows() *btree.BTreeG[entry] {
	const degree = 32
	return btree.NewG(degree, func(a, b entry) bool { return a.key < b.key })
}

// now is the copy's clock: microseconds since it was made. It cannot be set.
func (m *Mirror) now() int64 { return time.Since(m.began).Microseconds() }

// encodeRow is a row as a service keeps it: its time to live in microseconds (0 for
// good) and its value.
func encodeRow(value []byte, ttl time.Duration) []byte {
	raw := make([]byte, 0, binary.MaxVarintLen64+len(value))
	return append(binary.AppendUvarint(raw, uint64(ttl.Microseconds())), value...)
}

var errRow = errors.New("a row cannot be read")

// entry makes a row of the copy, as it is seen now.
func (m *Mirror) entry(r Row, version int64) (entry, error) {
	micros, size := binary.Uvarint(r.Value)
	if size <= 0 {
		return entry{}, errRow
	}
	e := entry{key: r.Key, row: overlay.Row{Value: r.Value[size:], Ends: overlay.ForGood}, version: version}
	if micros > 0 {
		left := int64(micros)
		if r.Left > 0 {
			left = min(left, r.Left.Microseconds()+1)
		}
		e.row.Ends = m.now() + left
	}
	return e, nil
}

// Load replaces the copy.
func (m *Mirror) Load(s *Snapshot) error {
	h, err := decodeHead(s.Head)
	if err != nil {
		return err
	}
	rows := newRows()
	for _, r := range s.Rows {
		e, err := m.entry(r, s.Version)
		if err != nil {
			return err
		}
		rows.ReplaceOrInsert(e)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	wentBack := s.Version < m.state.version || s.HeadVersion < m.state.headVersion
	m.rows = rows
	m.state = state{
		loaded: true, version: s.Version, rawHead: s.Head, head: h, headVersion: s.HeadVersion, claim: s.Claim,
		origin: s.Origin, restored: s.Restored, lost: m.state.lost || s.Lost || wentBack,
	}
	m.change()
	return nil
}

// unload says that the copy is no longer kept up to date.
func (m *Mirror) unload() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.loaded = false
	m.change()
}

func (m *Mirror) change() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Apply applies what one version changed. What this server has committed itself is in
// the copy already. It may remove rows that expired before that commit.
func (m *Mirror) Apply(c *Change) error {
	var news head
	if c.Head != nil {
		var err error
		if news, err = decodeHead(*c.Head); err != nil {
			return err
		}
	}
	fresh, err := m.apply(c, news)
	if fresh && c.Head != nil {
		m.notify(&news)
	}
	return err
}

// apply tells whether the change was new. News is its head, if it has one.
func (m *Mirror) apply(c *Change, news head) (fresh bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.Version <= m.state.version {
		m.remove(c)
		return false, nil
	}
	if c.Head != nil {
		m.advance(c.Version, *c.Head, news)
	}
	if c.Claim != nil {
		m.state.claim = *c.Claim
	}
	m.state.version = c.Version
	m.remove(c)
	for _, r := range c.Put {
		if r.Generation != m.state.head.generation {
			continue
		}
		e, err := m.entry(r, c.Version)
		if err != nil {
			return true, err
		}
		m.rows.ReplaceOrInsert(e)
	}
	m.change()
	return true, nil
}

func (m *Mirror) remove(c *Change) {
	for _, r := range c.Deleted {
		old, there := m.rows.Get(entry{key: r.Key})
		if there && old.version < c.Version && r.Generation == m.state.head.generation {
			m.rows.Delete(old)
		}
	}
}

// advance makes h the head.
func (m *Mirror) advance(version int64, raw string, h head) {
	if h.generation != m.state.head.generation {
		m.rows = newRows()
	}
	if h.life != m.state.head.life {
		m.state.lost = false
	}
	m.state.head, m.state.rawHead, m.state.headVersion = h, raw, version
}

// committed applies what this server has committed, unless the service did already.
func (m *Mirror) committed(version int64, c *Commit, h head, put []overlay.Put) {
	if m.commit(version, c, h, put) {
		m.notify(&h)
	}
}

func (m *Mirror) commit(version int64, c *Commit, h head, put []overlay.Put) (news bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case version <= m.state.version:
		return false
	case !m.state.loaded:
		m.state.headVersion = version // the next copy must not be older
		return false
	}
	m.advance(version, c.Head, h)
	m.state.version = version
	if c.Claim == m.state.claim {
		m.state.claim = ""
	}
	for _, key := range c.Delete {
		m.rows.Delete(entry{key: key})
	}
	for _, p := range put {
		m.rows.ReplaceOrInsert(entry{key: p.Key, row: *p.Row, version: version})
	}
	m.change()
	return true
}

// await waits until the state is as wanted, and returns it.
func (m *Mirror) await(ctx context.Context, wanted func(*state) bool) (state, error) {
	for {
		m.mu.RLock()
		now, changed := m.state, m.changed
		m.mu.RUnlock()
		if wanted(&now) {
			return now, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return now, ctx.Err()
		}
	}
}

// run runs fn on the copy.
func (m *Mirror) run(fn func(replica.Tx) error) (t *tx, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	t = &tx{
		Tx: overlay.New(view{m.rows}, m.now(), replica.Status{Incarnation: m.state.head.life}),
		on: m.state, at: time.Now(), wall: time.Now().Round(0),
	}
	if err = fn(t); err == nil {
		t.changes = t.Changes() // it reads the copy
	}
	return t, err
}

// tx is a run on the copy. Its rows end by a clock that cannot be set; Now is the wall
// clock.
type tx struct {
	*overlay.Tx

	on       state
	at, wall time.Time
	changes  overlay.Changes // of a run that did not fail
}

func (t *tx) Now() time.Time { return t.wall }

// view is the copy as overlay.Rows: all is known.
type view struct{ rows *btree.BTreeG[entry] }

func (v view) Get(key string) (*overlay.Row, bool) {
	e, there := v.rows.Get(entry{key: key})
	if !there {
		return nil, true
	}
	return &e.row, true
}

func (v view) Next(at, to string) (key, bound string) {
	v.rows.AscendRange(entry{key: at}, entry{key: to}, func(e entry) bool {
		key = e.key
		return false
	})
	return key, to
}
