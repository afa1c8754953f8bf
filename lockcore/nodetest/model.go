package nodetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// ModelOptions tune a Model. The zero value of a field takes its default.
type ModelOptions struct {
	Name       string           // default "model"
	Now        func() time.Time // default time.Now, so that it works in testing/synctest
	CounterTTL time.Duration    // default 24h
	Page       int              // locks of a page of Survey and Scan; default 100
	Weak       Weakness         // rules that it does not keep; default none
}

// Model is a node as a state machine in memory, deliberately simple: maps, one
// mutex, and a clock that is asked whether something has ended. It does what
// an independent Redis does, and its faults can be had for the asking. All
// methods may be called from any goroutine; none of them waits, but for Wakes.
type Model struct {
	opts ModelOptions

	mu          sync.Mutex
	offset      time.Duration // how far its clock is off
	cluster     lockcore.Cluster
	lives       int // incarnations so far
	replica     bool
	data        data
	subscribers []*subscriber // in order, so that a simulation repeats
}

var _ lockcore.Node = (*Model)(nil)

// NewModel makes a node that holds nothing and is not admitted.
func NewModel(opts ModelOptions) *Model {
	if opts.Name == "" {
		opts.Name = "model"
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.CounterTTL == 0 {
		opts.CounterTTL = 24 * time.Hour
	}
	if opts.Page == 0 {
		opts.Page = 100
	}
	return &Model{opts: opts, data: newData()}
}

// data is what a node keeps.
type data struct {
	record   *record // nil on an empty node
	note     string  // of its quarantine
	locks    map[string]modelLock
	counters map[string]modelCounter
	scopes   map[string]modelScope // by owner: idempotency keys in use
	lines    map[string][]lockcore.Ticket
	sessions map[string]time.Time // by server: until when its tickets live
}

func newData() data {
	return data{
		locks: map[string]modelLock{}, counters: map[string]modelCounter{}, scopes: map[string]modelScope{},
		lines: map[string][]lockcore.Ticket{}, sessions: map[string]time.Time{},
	}
}

// record is the admission record and the marks.
type record struct {
	cluster  lockcore.Cluster
	admitted string // the incarnation
	view     lockcore.View
	founded  lockcore.View
	staged   lockcore.View
	maxTTL   time.Duration
	high     fencing.Token
}

type modelLock struct {
	grant fencing.Token
	ttl   time.Duration
	until time.Time
	owner string
	// attempts were told of it under an idempotency key; nil where there is
	// none, or were too many: then no attempt takes it back.
	attempts []string
	keyed    bool // made under an idempotency key
	meta     string
}

type modelCounter struct {
	value fencing.Token
	until time.Time
}

type modelScope struct {
	scope string
	until time.Time
}

func (d data) clone() data {
	c := d
	if d.record != nil {
		r := *d.record
		c.record = &r
	}
	c.locks, c.counters, c.scopes = maps.Clone(d.locks), maps.Clone(d.counters), maps.Clone(d.scopes)
	c.lines, c.sessions = maps.Clone(d.lines), maps.Clone(d.sessions)
	return c
}

// Faults.

// Restart ends this incarnation and begins another, with what the node kept or
// with nothing.
func (m *Model) Restart(keepState bool) {
	m.mu.Lock()
	m.lives++
	if !keepState {
		m.data = newData()
	}
	m.mu.Unlock()
	m.resubscribe()
}

// Wipe takes all data away without a restart, as FLUSHALL does.
func (m *Model) Wipe() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data = newData()
}

// Snapshot is what a node kept at some moment.
type Snapshot struct{ data data }

// Snapshot remembers what the node keeps now.
func (m *Model) Snapshot() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Snapshot{m.data.clone()}
}

// Restore rolls the node back. Only with a Restart does it look like what
// happens to servers; without one it is a fault that nobody can detect.
func (m *Model) Restore(s Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data = s.data.clone()
}

// SetReplica demotes or promotes the node; both change its incarnation.
func (m *Model) SetReplica(replica bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.replica != replica {
		m.replica = replica
		m.lives++
	}
}

// JumpClock moves the node's clock, which its locks end by.
func (m *Model) JumpClock(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.offset += by
}

// ExpireNow ends a resource's lock early.
func (m *Model) ExpireNow(resource string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, ok := m.data.locks[resource]
	if !ok {
		return
	}
	if l.keyed {
		delete(m.data.scopes, l.owner)
	}
	delete(m.data.locks, resource)
}

// DropCounter drops a resource's counter, which any node may do at any time.
func (m *Model) DropCounter(resource string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.data.counters, resource)
}

// What is there now.

// Clock is what its clock shows. A Model is no lockcore.Clocked by itself, so
// that a simulation need not hear of it.
func (m *Model) Clock() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now()
}

func (m *Model) now() time.Time { return m.opts.Now().Add(m.offset) }

func (m *Model) left(until time.Time) time.Duration { return max(0, until.Sub(m.now())) }

func (m *Model) lock(resource string) (l modelLock, held bool) {
	l, ok := m.data.locks[resource]
	return l, ok && m.left(l.until) > 0
}

// effective is rule 4: a missing counter reads as high.
func (m *Model) effective(resource string) fencing.Token {
	if c, ok := m.data.counters[resource]; ok && m.left(c.until) > 0 {
		return c.value
	}
	if m.weak(ForgetsHigh) {
		return 0
	}
	return m.data.record.high
}

// count writes a counter, and raises high to it.
func (m *Model) count(resource string, value fencing.Token) {
	m.data.counters[resource] = modelCounter{value: value, until: m.now().Add(m.opts.CounterTTL)}
	m.data.record.high = max(m.data.record.high, value)
}

func (m *Model) incarnation() string { return m.opts.Name + "#" + strconv.Itoa(m.lives) }

// open is the gate (rule 6), but for the caller's view.
func (m *Model) open() bool {
	r := m.data.record
	return r != nil && !m.replica && m.admits(r) && r.cluster == m.cluster
}

func (m *Model) admits(r *record) bool {
	return r.admitted == m.incarnation() || m.weak(OpensForAnyLife) && r.admitted != ""
}

func (m *Model) view() lockcore.View {
	if m.data.record == nil {
		return 0
	}
	return m.data.record.view
}

// Reader and Admittee.

// Name is the name it was given.
func (m *Model) Name() string { return m.opts.Name }

// Join names the cluster that asks.
func (m *Model) Join(c lockcore.Cluster) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cluster = c
}

// Observe looks at the node.
func (m *Model) Observe(context.Context) (lockcore.Observation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := lockcore.Observation{Incarnation: m.incarnation(), Note: m.data.note}
	if m.weak(NotesNothing) {
		seen.Note = "one and the same"
	}
	if m.replica {
		seen.Unfit = "it is a replica"
	}
	r := m.data.record
	if r == nil {
		seen.Empty = true
		return seen, nil
	}
	seen.Admitted = !m.replica && m.admits(r)
	seen.Cluster, seen.View, seen.Staged, seen.Marks = r.cluster, r.view, r.staged, r.marks()
	return seen, nil
}

func (r *record) marks() lockcore.Marks {
	return lockcore.Marks{High: r.high, MaxTTL: r.maxTTL, Founded: r.founded}
}

// Fence installs a view and returns the marks.
func (m *Model) Fence(_ context.Context, view lockcore.View) (lockcore.Marks, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.open() {
		return lockcore.Marks{}, lockcore.ErrNotAdmitted
	}
	if m.view() > view || m.view() == view && !m.weak(SharesViews) {
		return lockcore.Marks{}, &lockcore.StaleViewError{View: m.view()}
	}
	if !m.weak(FencesWithoutView) {
		m.data.record.view = view
	}
	return m.data.record.marks(), nil
}

// reading is the gate of fenced reads.
func (m *Model) reading(view lockcore.View) error {
	if !m.open() {
		return lockcore.ErrNotAdmitted
	}
	if m.view() != view && !m.weak(ReadsInAnyView|FencesWithoutView) {
		return &lockcore.StaleViewError{View: m.view()}
	}
	return nil
}

// Survey lists a page of locks.
func (m *Model) Survey(_ context.Context, view lockcore.View, cursor string) ([]lockcore.CarriedLock, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.reading(view); err != nil {
		return nil, "", err
	}
	resources, next, err := m.page("", cursor, m.opts.Page)
	var locks []lockcore.CarriedLock
	for _, resource := range resources {
		l, _ := m.lock(resource)
		locks = append(locks, lockcore.CarriedLock{
			Resource: resource, Owner: l.owner, Grant: l.grant, Remaining: m.left(l.until), TTL: l.ttl, Meta: l.meta, Keyed: l.keyed,
		})
	}
	return locks, next, err
}

// Scan lists a page of locked resources.
func (m *Model) Scan(_ context.Context, prefix, cursor string, limit int) ([]string, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.open() {
		return nil, "", lockcore.ErrNotAdmitted
	}
	return m.page(prefix, cursor, min(limit, m.opts.Page))
}

// page lists locked resources behind the cursor, the last one's name quoted.
func (m *Model) page(prefix, cursor string, limit int) (resources []string, next string, err error) {
	after := ""
	if cursor != "" {
		if after, err = strconv.Unquote(cursor); err != nil {
			return nil, "", &lockcore.FieldError{Field: "cursor", Reason: "must be the next_cursor of an earlier page"}
		}
	}
	for _, resource := range slices.Sorted(maps.Keys(m.data.locks)) {
		if _, held := m.lock(resource); !held || resource <= after || !hasPrefix(resource, prefix) {
			continue
		}
		if len(resources) == limit {
			return resources, strconv.Quote(resources[limit-1]), nil
		}
		resources = append(resources, resource)
	}
	return resources, "", nil
}

func hasPrefix(text, prefix string) bool {
	return len(text) >= len(prefix) && text[:len(prefix)] == prefix
}

// Counters reads effective counters.
func (m *Model) Counters(_ context.Context, view lockcore.View, resources []string) ([]fencing.Token, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.reading(view); err != nil {
		return nil, err
	}
	counters := make([]fencing.Token, len(resources))
	for i, resource := range resources {
		if _, present := m.data.counters[resource]; present || !m.weak(SkipsMissing) {
			counters[i] = m.effective(resource)
		}
	}
	return counters, nil
}

// Quarantine notes that the node's silence has begun.
func (m *Model) Quarantine(_ context.Context, note string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch r := m.data.record; {
	case r != nil && r.cluster != m.cluster:
		return lockcore.ErrForeign
	case m.replica, r != nil && m.admits(r):
		return lockcore.ErrRaced
	}
	if m.data.note == "" {
		m.data.note = note
	}
	return nil
}

// Expel takes the admission back.
func (m *Model) Expel(_ context.Context, incarnation string, view lockcore.View, note string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.data.record
	if m.replica || r == nil || r.cluster != m.cluster || !m.admits(r) || r.view != view || incarnation != m.incarnation() {
		return lockcore.ErrRaced
	}
	r.admitted, m.data.note = "", note
	return nil
}

// Stage purges the node for an admission.
func (m *Model) Stage(_ context.Context, a lockcore.Admission) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.data.record
	switch {
	case m.replica || !m.pinned(a):
		return lockcore.ErrRaced
	case old == nil:
		old = &record{cluster: a.Cluster}
	case a.OnlyIfEmpty:
		return lockcore.ErrRaced
	case old.cluster != a.Cluster:
		return lockcore.ErrForeign
	case m.admits(old) && old.view >= a.Founded:
		return lockcore.ErrRaced
	case old.staged > a.View && !m.weak(ForgetsStaging):
		return lockcore.ErrRaced
	}
	if !m.noted(a) {
		return lockcore.ErrRaced
	}
	if a.View == a.Founded && m.weak(ForgetsFloor) {
		a.Floor = 0
	}
	note := m.note()
	if !m.weak(KeepsOnStaging) {
		m.data = newData()
	}
	m.data.note = note
	m.data.record = &record{
		cluster: a.Cluster, staged: a.View, high: max(old.high, a.Floor), maxTTL: old.maxTTL,
	}
	return nil
}

// staged: this very incarnation was staged for this admission (rule 10).
func (m *Model) staged(a lockcore.Admission) bool {
	r := m.data.record
	return r != nil && !m.replica && m.pinned(a) && r.staged == a.View
}

// pinned: this is the incarnation that the admission is about (rule 10).
func (m *Model) pinned(a lockcore.Admission) bool {
	return a.Incarnation == m.incarnation() || m.weak(AdmitsAnyLife)
}

// noted: the silence is the one that the admission waited for (rule 13).
func (m *Model) noted(a lockcore.Admission) bool {
	weak := NotesNothing | AdmitsAnyLife
	if m.admitted() {
		weak = StagesAdmitted
	}
	return a.Note == m.note() || m.weak(weak)
}

// note is what an admission must name: of the quarantine, or that it is away.
func (m *Model) note() string {
	if m.admitted() {
		return lockcore.AwayNote(m.data.record.view)
	}
	return m.data.note
}

func (m *Model) admitted() bool { return m.data.record != nil && m.admits(m.data.record) }

// Load writes carried counters and locks.
func (m *Model) Load(_ context.Context, a lockcore.Admission, locks []lockcore.CarriedLock) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if late := m.weak(LoadsAdmitted) && m.open(); !m.staged(a) && !late {
		return lockcore.ErrRaced
	}
	for _, l := range locks {
		m.count(l.Resource, l.Counter)
		if l.Owner != "" {
			m.data.locks[l.Resource] = modelLock{
				grant: l.Grant, ttl: l.TTL, until: m.now().Add(max(l.Remaining, time.Millisecond)),
				owner: l.Owner, keyed: l.Keyed, meta: l.Meta,
			}
		}
	}
	return nil
}

// Admit opens the gate.
func (m *Model) Admit(_ context.Context, a lockcore.Admission) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.staged(a) {
		return lockcore.ErrRaced
	}
	r := m.data.record
	r.admitted, r.view, r.founded, r.staged = m.incarnation(), a.View, a.Founded, 0
	r.maxTTL = max(r.maxTTL, a.MaxTTL)
	m.data.note = ""
	return nil
}

// RaiseMaxTTL records a longer TTL.
func (m *Model) RaiseMaxTTL(_ context.Context, ttl time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.open() {
		return lockcore.ErrNotAdmitted
	}
	m.data.record.maxTTL = max(m.data.record.maxTTL, ttl)
	return nil
}

var errReplica = errors.New("READONLY the node is a replica")

// String tells what the node keeps, for the message of a test that failed.
func (m *Model) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	record := "no record"
	if m.data.record != nil {
		record = fmt.Sprintf("%+v", *m.data.record)
	}
	return fmt.Sprintf("%s %s locks %+v counters %+v scopes %+v lines %+v",
		m.incarnation(), record, m.data.locks, m.data.counters, m.data.scopes, m.data.lines)
}
