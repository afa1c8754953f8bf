// Package memstore is a replica.Store in memory that can simulate the faults of a real store: tests and the
// simulation run the replica on it.
package memstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// Options tune a Store. The zero value of a field takes its default.
type Options struct {
	Name string           // names the incarnations; default "memory"
	Now  func() time.Time // default time.Now, so that it works in testing/synctest
}

// Store is a replica.Store. Only Subscribe blocks.
type Store struct {
	replica.Listeners

	opts Options

	mu       sync.Mutex
	rows     map[string]row
	keys     []string      // the keys of the rows, sorted
	offset   time.Duration // how far its clock is off
	lives    int           // incarnations so far
	readOnly bool
}

var _ replica.Store = (*Store)(nil)

type row struct {
	value []byte
	until time.Time // zero: never ends
}

// New makes an empty store.
func New(opts Options) *Store {
	if opts.Name == "" {
		opts.Name = "memory"
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Store{opts: opts, rows: make(map[string]row)}
}

var errReadOnly = errors.New("READONLY the store is a replica")

// Update runs fn. If fn fails, its writes are undone.
func (s *Store) Update(_ context.Context, fn func(replica.Tx) error) error {
	s.mu.Lock()
	t := &tx{s: s, now: s.now()}
	err := errors.Join(fn(t), t.err)
	if err != nil {
		t.undo()
	}
	s.mu.Unlock()
	if err == nil {
		s.Notify(t.wakes)
	}
	return err
}

// View runs fn.
func (s *Store) View(ctx context.Context, fn func(replica.Tx) error) error { return s.Update(ctx, fn) }

func (s *Store) now() time.Time { return s.opts.Now().Add(s.offset) }

func (s *Store) incarnation() string { return s.opts.Name + "#" + strconv.Itoa(s.lives) }

// put sets a row, or removes it.
func (s *Store) put(key string, r row, there bool) {
	at, found := slices.BinarySearch(s.keys, key)
	switch {
	case there && !found:
		s.keys = slices.Insert(s.keys, at, key)
	case !there && found:
		s.keys = slices.Delete(s.keys, at, at+1)
	}
	if there {
		s.rows[key] = r
	} else {
		delete(s.rows, key)
	}
}

// tx is a transaction.
type tx struct {
	s      *Store
	now    time.Time
	wakes  []replica.Wake
	before []change // in order
	err    error
}

// change is the earlier value of a row.
type change struct {
	key   string
	row   row
	there bool
}

func (t *tx) undo() {
	for _, c := range slices.Backward(t.before) {
		t.s.put(c.key, c.row, c.there)
	}
}

func (t *tx) set(key string, r row, there bool) {
	if t.s.readOnly {
		t.err = errReadOnly
		return
	}
	old, was := t.s.rows[key]
	t.before = append(t.before, change{key, old, was})
	t.s.put(key, r, there)
}

// left returns a row's remaining time; ok is false if its time has passed.
func (t *tx) left(r row) (time.Duration, bool) {
	if r.until.IsZero() {
		return 0, true
	}
	left := r.until.Sub(t.now)
	return left, left > 0
}

func (t *tx) Get(key string) ([]byte, time.Duration) {
	r, there := t.s.rows[key]
	if left, live := t.left(r); there && live {
		return r.value, left
	}
	return nil, 0
}

func (t *tx) Put(key string, value []byte, ttl time.Duration) {
	r := row{value: append([]byte{}, value...)}
	if ttl > 0 {
		r.until = t.now.Add(ttl)
	}
	t.set(key, r, true)
}

func (t *tx) Delete(key string) {
	if _, there := t.s.rows[key]; there {
		t.set(key, row{}, false)
	}
}

func (t *tx) Range(from, to string, limit int) (rows []replica.Row) {
	at, _ := slices.BinarySearch(t.s.keys, from)
	for ; at < len(t.s.keys) && t.s.keys[at] < to && len(rows) < limit; at++ {
		r := t.s.rows[t.s.keys[at]]
		if left, live := t.left(r); live {
			rows = append(rows, replica.Row{Key: t.s.keys[at], Value: r.value, Left: left})
		}
	}
	return rows
}

func (t *tx) Purge() {
	for _, key := range slices.Clone(t.s.keys) {
		t.set(key, row{}, false)
	}
}

func (t *tx) Notify(resource string, ticket node.Ticket) {
	t.wakes = append(t.wakes, replica.Wake{Resource: resource, Ticket: ticket})
}

func (t *tx) Now() time.Time { return t.now }

func (t *tx) Status() replica.Status {
	status := replica.Status{Incarnation: t.s.incarnation()}
	if t.s.readOnly {
		status.Unfit = "it is a replica"
	}
	return status
}

// Faults.

// Restart begins another incarnation, with the store's data or empty.
func (s *Store) Restart(keep bool) {
	s.mu.Lock()
	s.lives++
	if !keep {
		s.clear()
	}
	s.mu.Unlock()
	s.Resubscribed()
}

// Wipe deletes all rows without a restart, as FLUSHALL does.
func (s *Store) Wipe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
}

func (s *Store) clear() { s.rows, s.keys = make(map[string]row), nil }

// Snapshot is the content of a store at some moment.
type Snapshot struct {
	rows map[string]row
	keys []string
}

// Snapshot copies the store's present content.
func (s *Store) Snapshot() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Snapshot{maps.Clone(s.rows), slices.Clone(s.keys)}
}

// Restore rolls the store back. Together with a Restart, this is a fault of real servers; without one, it is a
// fault that nothing can detect.
func (s *Store) Restore(to Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows, s.keys = maps.Clone(to.rows), slices.Clone(to.keys)
}

// SetReplica demotes or promotes the store; both change its incarnation. A demoted store refuses writes.
func (s *Store) SetReplica(replica bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readOnly != replica {
		s.readOnly = replica
		s.lives++
	}
}

// JumpClock sets the store's clock, by which its rows expire.
func (s *Store) JumpClock(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += by
}

// Clock returns the time of the store's clock.
func (s *Store) Clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

// Lose removes a row, as if its time had passed.
func (s *Store) Lose(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(key, row{}, false)
}

// String lists the rows, for the message of a test that failed.
func (s *Store) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var text strings.Builder
	text.WriteString(s.incarnation())
	for _, key := range s.keys {
		r := s.rows[key]
		fmt.Fprintf(&text, "\n  %q %q", key, r.value)
		if !r.until.IsZero() {
			fmt.Fprintf(&text, " for %s", r.until.Sub(s.now()))
		}
	}
	return text.String()
}
