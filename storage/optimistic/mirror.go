package optimistic

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// Mirror is this server's copy of all rows. A Service keeps it up to date.
type Mirror struct {
	began    time.Time
	notify   func(*head)
	trusting bool // for tests: it does not look for what it has seen

	mu      sync.RWMutex
	log     *rowlog.Log
	seen    rowlog.Entry // the newest that is known to have been committed
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
	claimed     int64  // the version that the claim is of
	origin      string // of the last snapshot
	restored    bool
	lost        bool // commits may be lost: another life has to begin
	gap         bool // the log is without entries that the head names: the same, without rows
}

func newMirror(notify func(*head)) *Mirror {
	return &Mirror{began: time.Now(), notify: notify, log: rowlog.New(), changed: make(chan struct{})}
}

// now is the copy's clock: microseconds since it was made. It cannot be set.
func (m *Mirror) now() int64 { return time.Since(m.began).Microseconds() }

// Load replaces the copy by what read finds, and returns its version. If a commit of this
// server was answered meanwhile, that may be without it: then it is read again.
func (m *Mirror) Load(read func() (*Snapshot, error)) (version int64, err error) {
	for {
		m.mu.RLock()
		known := m.state.headVersion
		m.mu.RUnlock()
		s, err := read()
		if err != nil {
			return 0, err
		}
		if loaded, err := m.load(s, known); loaded || err != nil {
			return s.Version, err
		}
	}
}

// load takes what was read when this server knew of commits up to a version.
func (m *Mirror) load(s *Snapshot, known int64) (loaded bool, err error) {
	h, err := decodeHead(s.Head)
	if err != nil {
		return false, err
	}
	fresh := Mirror{began: m.began, log: rowlog.New()}
	gap, err := fresh.takeAll(s.Log, &h)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.headVersion != known {
		return false, nil
	}
	m.log, m.state = fresh.log, state{
		loaded: true, version: s.Version, rawHead: s.Head, head: h, headVersion: s.HeadVersion, claim: s.Claim, claimed: s.Version,
		origin: s.Origin, restored: s.Restored, gap: gap && !m.trusting, lost: s.Lost || m.lacks(s, &h, fresh.log),
	}
	m.seen = fresh.seen
	m.change()
	return true, nil
}

// lacks tells whether a snapshot is without what this server knows of the life. Where
// another life has begun since, what it has seen is no longer promised, unless that is of
// a server that took the place for new.
func (m *Mirror) lacks(s *Snapshot, h *head, log *rowlog.Log) bool {
	switch {
	case m.trusting:
		return false
	case h.life != m.state.head.life:
		return m.state.replacedBy(h)
	}
	return m.state.lost || s.Version < m.state.version || s.HeadVersion < m.state.headVersion || log.Misses(m.seen, max(1, h.first))
}

// takeAll takes the entries that a head names. Gap tells that some are not there.
func (m *Mirror) takeAll(entries []Entry, h *head) (gap bool, err error) {
	next := h.first
	for i := range entries {
		one := &entries[i]
		if one.Number < h.first || one.Number > h.last {
			continue // of a head that was lost
		}
		before := m.seen.ID
		t, err := decodeEntry(one.Value)
		if err != nil {
			return gap, err
		}
		gap = gap || one.Number != next || before != "" && t.previous != before
		next = one.Number + 1
		m.take(one, &t)
	}
	if h.life == "" {
		return len(entries) > 0, nil // what is there had a head
	}
	return gap || next <= h.last || h.first <= h.last && m.seen.ID != h.entry, nil
}

// take does what an entry says that is seen now.
func (m *Mirror) take(one *Entry, t *transaction) {
	now, rows := m.now(), make([]rowlog.Row, len(t.put))
	for i := range t.put {
		rows[i] = rowlog.Row{Key: t.put[i].key, Row: t.put[i].seen(now, one.Age)}
	}
	m.append(rowlog.Entry{Number: one.Number, ID: t.commit}, t.deleted, rows)
}

func (m *Mirror) append(e rowlog.Entry, deleted []string, put []rowlog.Row) {
	m.log.Append(e, deleted, put)
	m.seen = e
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

// replacedBy tells of a head of another life whether it does not know of what was seen here:
// there is none, or a server took the place for new.
func (s *state) replacedBy(h *head) bool {
	return (h.life == "" || h.young) && (s.lost || s.head.life != "")
}

// ailing tells that another life has to begin.
func (s *state) ailing() bool { return s.head.life == "" || s.lost || s.gap }

// Apply applies what one version changed. What this server has committed itself is in
// the copy already.
func (m *Mirror) Apply(c *Change) error {
	news, err := m.apply(c)
	if news != nil {
		m.notify(news)
	}
	return err
}

var errBranch = errors.New("the log is not the continuation of what was read before")

// leadsTo tells whether the next head is of a commit that came right after this one, as far
// as the log is concerned: what it adds was written after previous.
func (h *head) leadsTo(next *head, previous string) bool {
	switch {
	case h.life == "" || next.entry == "": // there was no log, or there is none any more
		return true
	case next.last == h.last:
		return next.entry == h.entry
	}
	return previous == h.entry
}

// apply returns the head that is new, nil for none.
func (m *Mirror) apply(c *Change) (news *head, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.Claim != nil && c.Version >= m.state.claimed { // the answer to a later commit may have come before
		m.state.claim, m.state.claimed = *c.Claim, c.Version
		m.change()
	}
	if c.Version <= m.state.version || c.Head == nil && c.Entry == nil && c.Removed == 0 {
		return nil, nil //nolint:nilnil // nothing is new
	}
	var t transaction
	if c.Entry != nil {
		if t, err = decodeEntry(c.Entry.Value); err != nil {
			return nil, err
		}
	}
	if c.Head != nil {
		h, err := decodeHead(*c.Head)
		if err != nil {
			return nil, err
		}
		if !m.trusting && !m.state.head.leadsTo(&h, t.previous) {
			return nil, errBranch
		}
		m.advance(c.Version, *c.Head, h)
		news = &h
	}
	if c.Entry != nil {
		m.take(c.Entry, &t)
	}
	m.state.version = c.Version
	m.state.gap = m.state.gap || c.Removed > 0 && c.Removed >= m.state.head.first
	m.log.Drop(m.state.head.first)
	m.change()
	return news, nil
}

// advance makes h the head.
func (m *Mirror) advance(version int64, raw string, h head) {
	if h.life != m.state.head.life {
		m.state.lost, m.state.gap = m.state.replacedBy(&h), false
	}
	if m.state.rawHead == "" {
		m.log = rowlog.New() // the log of a head that was deleted goes with the next
	}
	m.state.head, m.state.rawHead, m.state.headVersion = h, raw, version
}

// committed applies what this server has committed, unless the service did already.
func (m *Mirror) committed(version int64, c *Commit, h head, deleted []string, put []rowlog.Row) {
	if m.commit(version, c, h, deleted, put) {
		m.notify(&h)
	}
}

func (m *Mirror) commit(version int64, c *Commit, h head, deleted []string, put []rowlog.Row) (news bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := rowlog.Entry{Number: c.Number, ID: h.commit}
	switch {
	case version <= m.state.version:
		return false
	case !m.state.loaded, m.state.rawHead != c.Former:
		m.state.headVersion = version // the next copy must not be older
		if c.Value != nil {
			m.seen = e
		}
		return false
	}
	m.advance(version, c.Head, h)
	m.state.version = version
	if c.Claim != "" && c.Claim == m.state.claim {
		m.state.claim, m.state.claimed = "", version
	}
	if c.Value != nil {
		m.append(e, deleted, put)
	}
	m.log.Drop(h.first)
	m.change()
	return true
}

// Newest is the version of the head that the copy has, and the last entry of its log.
func (m *Mirror) Newest() (version, last int64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.headVersion, m.state.head.last
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
		Tx: overlay.New(view{m.log}, now, replica.Status{Incarnation: m.state.head.life}),
		on: m.state, began: now, wall: time.Now().Round(0),
	}
	if err = fn(t); err == nil {
		t.changes = t.Changes() // it reads the copy
		m.carry(t)
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
	first   int64
	carried []rowlog.Row
}

func (t *tx) Now() time.Time { return t.wall }

// carry finds what else the commit of t removes from the log, and puts.
func (m *Mirror) carry(t *tx) {
	t.first = t.on.head.first
	if t.changes.Purge {
		t.first = t.on.head.last + 1
		return
	}
	own := 0
	for _, put := range t.changes.Put {
		own += rowlog.Size(put.Key, put.Row.Value)
	}
	budget := min(rowlog.CarryBytes+2*own, mostBytes-own)
	removed, carried := m.log.Carry(budget, func(row rowlog.Row) bool {
		_, own := t.Writes[row.Key]
		return !own && row.Ends > t.began
	})
	if len(removed) > 0 {
		t.first, t.carried = removed[len(removed)-1].Number+1, carried
	}
}

// mostBytes is how large old entries may make one.
const mostBytes = 700 << 10

// view is the copy as overlay.Rows: all is known.
type view struct{ log *rowlog.Log }

func (v view) Get(key string) (*overlay.Row, bool) {
	row, there := v.log.Get(key)
	if !there {
		return nil, true
	}
	return &row.Row, true
}

func (v view) Next(at, to string) (key, bound string) {
	if key = v.log.Next(at); key >= to {
		key = ""
	}
	return key, to
}
