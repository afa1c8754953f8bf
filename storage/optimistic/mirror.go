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

// Mirror is this server's copy of all rows.
//
// Always true: the copy contains exactly the effects of the commits up to state.version. The Service applies
// the commits of other servers (Load, Apply); committed applies this server's own as soon as they succeed. It
// does not decide when to load again; Store does.
type Mirror struct {
	began    time.Time
	notify   func(*head)
	trusting bool // for tests: skip the check that the log contains the entries seen before

	mu      sync.RWMutex
	log     *rowlog.Log
	seen    rowlog.Entry // the newest entry that is known to have been committed
	state   state
	changed chan struct{} // closed when the state changes, and then replaced
}

// state is everything, except the rows, that a transaction depends on.
type state struct {
	loaded      bool
	version     int64 // the copy contains every change up to this version
	rawHead     string
	head        head
	headVersion int64
	claim       string
	claimed     int64  // the version at which the claim was set
	origin      string // of the last snapshot
	restored    bool
	lost        bool // commits may be lost, so a new life has to begin
	gap         bool // the log lacks entries that the head names, so a new life has to begin without rows
}

func newMirror(notify func(*head)) *Mirror {
	return &Mirror{began: time.Now(), notify: notify, log: rowlog.New(), changed: make(chan struct{})}
}

// now is the copy's clock: microseconds since it was made. It cannot be set.
func (m *Mirror) now() int64 { return time.Since(m.began).Microseconds() }

// Load replaces the copy by the result of read, and returns its version. If this server commits meanwhile, the
// result may lack that commit, and Load reads again.
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

// load takes a snapshot whose reading began when this server knew of commits up to the version known.
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

// lacks reports whether a snapshot lacks something that this server has seen of the same life. If another life
// has begun since, the rows seen before are no longer promised, unless the server that began it mistook the
// place for new.
func (m *Mirror) lacks(s *Snapshot, h *head, log *rowlog.Log) bool {
	switch {
	case m.trusting:
		return false
	case h.life != m.state.head.life:
		return m.state.replacedBy(h)
	}
	return m.state.lost || s.Version < m.state.version || s.HeadVersion < m.state.headVersion || log.Misses(m.seen, max(1, h.first))
}

// takeAll takes the entries that a head names. gap reports that some are missing.
func (m *Mirror) takeAll(entries []Entry, h *head) (gap bool, err error) {
	next := h.first
	for i := range entries {
		one := &entries[i]
		if one.Number < h.first || one.Number > h.last {
			continue // belongs to a head that was lost
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
		return len(entries) > 0, nil // existing entries had a head
	}
	return gap || next <= h.last || h.first <= h.last && m.seen.ID != h.entry, nil
}

// take applies an entry that is seen now.
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

// unload marks the copy as no longer up to date.
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

// replacedBy reports whether h is a head of another life that does not know what was seen here: the head is
// missing, or a server mistook the place for new.
func (s *state) replacedBy(h *head) bool {
	return (h.life == "" || h.young) && (s.lost || s.head.life != "")
}

// ailing reports that a new life has to begin.
func (s *state) ailing() bool { return s.head.life == "" || s.lost || s.gap }

// Apply applies the changes of one version. It skips this server's own commits, which are already in the copy.
func (m *Mirror) Apply(c *Change) error {
	news, err := m.apply(c)
	if news != nil {
		m.notify(news)
	}
	return err
}

var errBranch = errors.New("the log is not the continuation of what was read before")

// leadsTo reports whether next is the head of the commit directly after h, as far as the log shows: the entry
// that it adds was written after previous.
func (h *head) leadsTo(next *head, previous string) bool {
	switch {
	case h.life == "" || next.entry == "": // there was no log, or there is none any more
		return true
	case next.last == h.last:
		return next.entry == h.entry
	}
	return previous == h.entry
}

// apply returns the new head, or nil if it has not changed.
func (m *Mirror) apply(c *Change) (news *head, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.Claim != nil && c.Version >= m.state.claimed { // a later commit's response may have arrived first
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

// advance makes h the current head.
func (m *Mirror) advance(version int64, raw string, h head) {
	if h.life != m.state.head.life {
		m.state.lost, m.state.gap = m.state.replacedBy(&h), false
	}
	if m.state.rawHead == "" {
		m.log = rowlog.New() // the log of a deleted head ends with the next head
	}
	m.state.head, m.state.rawHead, m.state.headVersion = h, raw, version
}

// committed applies a commit of this server, unless the service has applied it already.
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
		m.state.headVersion = version // a later copy must not be older
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

// Newest returns the version of the copy's head, and the number of the last entry of its log.
func (m *Mirror) Newest() (version, last int64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.headVersion, m.state.head.last
}

// await waits until wanted returns true for the state, and returns the state.
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
		t.changes = t.Changes() // computed now, because it reads the copy
		m.carry(t)
	}
	return t, err
}

// tx is a run on the copy. Its rows end by a clock that cannot be set; Now returns the wall clock's time.
type tx struct {
	*overlay.Tx

	on    state
	began int64 // on the copy's clock
	wall  time.Time
	// cleans means that the run commits even if it changes nothing, because the log is too long.
	cleans bool
	// Set for a run that succeeded: its changes, the first entry that stays in the log, and the living rows of
	// the entries that are removed.
	changes overlay.Changes
	first   int64
	carried []rowlog.Row
}

func (t *tx) Now() time.Time { return t.wall }

// carry chooses the entries that the commit of t removes, and the rows that it has to write again.
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

// mostBytes bounds the size of an entry with carried rows.
const mostBytes = 700 << 10

// view presents the copy as overlay.Rows, in which everything is known.
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
