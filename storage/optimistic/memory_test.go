package optimistic

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
)

// memory is a Service with the faults of one.
type memory struct {
	mu      sync.Mutex
	version int64
	head    string
	wrote   int64 // version of the head
	claim   string
	rows    map[rowName]kept
	log     []*Change
	changed chan struct{}

	latency time.Duration // of a commit and of a claim: three quarters before it takes effect
	limit   int           // of a commit's rows; 0 for none
	before  func(*Commit) // is called before a commit is judged
	lag     chan struct{} // changes are not delivered until it is closed
	lost    error         // the answer to a commit that took effect
	dropped error         // the answer to a commit that did not
	origin  string        // of the data
	early   bool          // it removes rows before their time: a weakness
	deaf    bool          // it judges no commit: a weakness
	keeps   bool          // it does not delete rows whose time has passed: a weakness
	breaks  int           // how often Follow has begun
	commits int           // that took effect
	refused int           // that did not
	went    int           // how often it went back
}

// rowName is the name of a row.
type rowName struct {
	generation uint64
	key        string
}

type kept struct {
	value []byte
	until time.Time
}

var errBroken = errors.New("the connection broke")

func newMemory() *memory {
	return &memory{rows: make(map[rowName]kept), changed: make(chan struct{}), origin: "memory"}
}

func (s *memory) Commit(_ context.Context, c *Commit) (int64, error) {
	s.mu.Lock()
	before := s.before
	s.before = nil
	s.mu.Unlock()
	if before != nil {
		before(c)
	}
	time.Sleep(s.latency * 3 / 4)
	defer time.Sleep(s.latency / 4)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.dropped != nil:
		err := s.dropped
		s.dropped = nil
		return 0, err
	case s.limit > 0 && len(c.Put) > s.limit:
		return 0, replica.ErrTooLarge
	case !s.deaf && c.Former != s.head:
		s.refused++
		return 0, &ConflictError{Version: s.wrote}
	}
	change := &Change{Head: &c.Head}
	if c.Claim == s.claim {
		s.claim, change.Claim = "", new(string)
	}
	for _, p := range c.Put {
		row := kept{value: slices.Clone(p.Value)}
		if p.TTL > 0 {
			row.until = c.At.Add(p.TTL)
			if s.early {
				time.AfterFunc(p.TTL/2, func() { s.removeEarly(rowName{c.Generation, p.Key}, row.value) })
			}
		}
		s.rows[rowName{c.Generation, p.Key}] = row
		change.Put = append(change.Put, Row{Generation: c.Generation, Key: p.Key, Value: row.value})
	}
	for _, key := range c.Delete {
		if until := s.rows[rowName{c.Generation, key}].until; s.keeps && !until.IsZero() && time.Until(until) <= 0 {
			continue
		}
		delete(s.rows, rowName{c.Generation, key})
		change.Deleted = append(change.Deleted, Row{Generation: c.Generation, Key: key})
	}
	s.head = c.Head
	s.commits++
	s.wrote = s.publish(change)
	err := s.lost
	s.lost = nil
	return s.wrote, err
}

// publish gives a change its version.
func (s *memory) publish(c *Change) int64 {
	s.version++
	c.Version = s.version
	s.log = append(s.log, c)
	close(s.changed)
	s.changed = make(chan struct{})
	return s.version
}

func (s *memory) Claim(_ context.Context, server string) error {
	time.Sleep(s.latency * 3 / 4)
	defer time.Sleep(s.latency / 4)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim == "" {
		s.claim = server
		s.publish(&Change{Claim: &server})
	}
	return nil
}

func (s *memory) Head(context.Context) (string, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head, s.wrote, nil
}

// snapshot is what a mirror loads; time has taken some rows.
func (s *memory) snapshot() *Snapshot {
	generation, _ := Generation(s.head)
	snap := &Snapshot{Version: s.version, Head: s.head, HeadVersion: s.wrote, Claim: s.claim, Origin: s.origin}
	if began, err := Origin(s.head); s.head != "" {
		snap.Lost = err != nil || began != s.origin
	}
	for name, row := range s.rows {
		left := time.Until(row.until)
		if name.generation != generation || !row.until.IsZero() && left <= 0 {
			continue
		}
		snap.Rows = append(snap.Rows, Row{Generation: generation, Key: name.key, Value: row.value, Left: max(left, 0)})
	}
	return snap
}

func (s *memory) Follow(ctx context.Context, m *Mirror) error {
	s.mu.Lock()
	snap, at, went := s.snapshot(), len(s.log), s.went
	s.breaks++
	s.mu.Unlock()
	if err := m.Load(snap); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		if went != s.went {
			s.mu.Unlock()
			return errBroken // it was restored
		}
		news, changed, lag := s.log[at:], s.changed, s.lag
		s.mu.Unlock()
		if lag != nil {
			select {
			case <-lag:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for _, c := range news {
			if err := m.Apply(c); err != nil {
				return err
			}
		}
		if at += len(news); len(news) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// expire removes a row, as a service does that counts times to live itself.
func (s *memory) expire(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	generation, _ := Generation(s.head)
	delete(s.rows, rowName{generation, key})
	s.publish(&Change{Deleted: []Row{{Generation: generation, Key: key}}})
}

// removeEarly removes the row with this value, unless it was written again.
func (s *memory) removeEarly(name rowName, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if row, there := s.rows[name]; there && &row.value[0] == &value[0] {
		delete(s.rows, name)
		s.publish(&Change{Deleted: []Row{{Generation: name.generation, Key: name.key}}})
	}
}

// saved is a copy of the state.
type saved struct {
	version, wrote int64
	head           string
	rows           map[rowName]kept
}

func (s *memory) save() saved {
	s.mu.Lock()
	defer s.mu.Unlock()
	return saved{version: s.version, wrote: s.wrote, head: s.head, rows: maps.Clone(s.rows)}
}

// restore goes back to it.
func (s *memory) restore(to saved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.wrote, s.head, s.rows, s.log, s.claim = to.version, to.wrote, to.head, to.rows, nil, ""
	s.went++
	close(s.changed)
	s.changed = make(chan struct{})
}
