package optimistic

import (
	"context"
	"sync"
	"time"

	"github.com/google/btree"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
)

// Mirror is this server's copy of all rows. A Service keeps it up to date.
type Mirror struct {
	began    time.Time
	notify   func(*head)
	trusting bool // for tests: it does not look for what it has seen

	mu      sync.RWMutex
	rows    *btree.BTreeG[entry]
	log     []logged // in order
	bytes   int      // of the log
	live    int      // of the rows
	seen    logged   // the newest entry that is known to have been committed
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
	key string
	row overlay.Row
	in  uint64 // the entry of the log that has it
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

// Load replaces the copy.
func (m *Mirror) Load(s *Snapshot) error {
	h, err := decodeHead(s.Head)
	if err != nil {
		return err
	}
	fresh := Mirror{began: m.began, rows: newRows()}
	for _, one := range s.Log {
		if one.Number < h.first || one.Number > h.last {
			continue // of a head that was lost
		}
		if err := fresh.take(&one); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// Where another life has begun since, what this server has seen is not promised any more.
	lost := h.life == m.state.head.life && (m.state.lost || s.Version < m.state.version ||
		s.HeadVersion < m.state.headVersion || !m.trusting && fresh.misses(m.seen, max(1, h.first)))
	m.rows, m.log, m.bytes, m.live, m.seen = fresh.rows, fresh.log, fresh.bytes, fresh.live, fresh.seen
	m.state = state{
		loaded: true, version: s.Version, rawHead: s.Head, head: h, headVersion: s.HeadVersion, claim: s.Claim,
		origin: s.Origin, restored: s.Restored, lost: lost || s.Lost,
	}
	m.change()
	return nil
}

// take does what an entry says that is seen now.
func (m *Mirror) take(one *Entry) error {
	t, err := decodeEntry(one.Value)
	if err != nil {
		return err
	}
	now, rows := m.now(), make([]entry, len(t.put))
	for i := range t.put {
		rows[i] = entry{key: t.put[i].key, row: t.put[i].seen(now, one.Age)}
	}
	m.write(one.Number, t.commit, t.deleted, rows)
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
// the copy already.
func (m *Mirror) Apply(c *Change) error {
	news, err := m.apply(c)
	if news != nil {
		m.notify(news)
	}
	return err
}

// apply returns the head that is new, nil for none.
func (m *Mirror) apply(c *Change) (news *head, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.Version <= m.state.version {
		return nil, nil //nolint:nilnil // nothing is new
	}
	if c.Head != nil {
		h, err := decodeHead(*c.Head)
		if err != nil {
			return nil, err
		}
		m.advance(c.Version, *c.Head, h)
		news = &h
	}
	if c.Entry != nil {
		if err := m.take(c.Entry); err != nil {
			return news, err
		}
	}
	if c.Claim != nil {
		m.state.claim = *c.Claim
	}
	m.state.version = c.Version
	m.drop(m.state.head.first)
	m.change()
	return news, nil
}

// advance makes h the head.
func (m *Mirror) advance(version int64, raw string, h head) {
	if h.life != m.state.head.life {
		m.state.lost = false
	}
	m.state.head, m.state.rawHead, m.state.headVersion = h, raw, version
}

// committed applies what this server has committed, unless the service did already.
func (m *Mirror) committed(version int64, c *Commit, h head, deleted []string, put []overlay.Put) {
	if m.commit(version, c, h, deleted, put) {
		m.notify(&h)
	}
}

func (m *Mirror) commit(version int64, c *Commit, h head, deleted []string, put []overlay.Put) (news bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case version <= m.state.version:
		return false
	case !m.state.loaded:
		m.state.headVersion = version // the next copy must not be older
		if c.Value != nil {
			m.seen = logged{number: c.Number, commit: h.commit}
		}
		return false
	}
	m.advance(version, c.Head, h)
	m.state.version = version
	if c.Claim == m.state.claim {
		m.state.claim = ""
	}
	if c.Value != nil {
		rows := make([]entry, len(put))
		for i, p := range put {
			rows[i] = entry{key: p.Key, row: *p.Row}
		}
		m.write(c.Number, h.commit, deleted, rows)
	}
	m.drop(h.first)
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
	now := m.now()
	t = &tx{
		Tx: overlay.New(view{m.rows}, now, replica.Status{Incarnation: m.state.head.life}),
		on: m.state, began: now, wall: time.Now().Round(0),
	}
	if err = fn(t); err == nil {
		t.changes = t.Changes() // it reads the copy
		t.first, t.carried = m.carry(t)
	}
	return t, err
}

// tx is a run on the copy. Its rows end by a clock that cannot be set; Now is the wall
// clock.
type tx struct {
	*overlay.Tx

	on    state
	began int64 // by the copy's clock
	wall  time.Time
	// cleans has the run committed though it changes nothing, if the log is too long.
	cleans bool
	// of a run that did not fail: what it changed, the first entry that then stays in the
	// log, and the rows of those that go
	changes overlay.Changes
	first   uint64
	carried []overlay.Put
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
