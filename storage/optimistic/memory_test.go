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

// memory is a Service in memory, with the faults of a real one.
type memory struct {
	mu      sync.Mutex
	version int64
	head    string
	wrote   int64 // version of the head
	claim   string
	entries map[int64]written
	log     []*Change
	changed chan struct{}

	latency time.Duration // of a commit and of a claim: three quarters before it takes effect
	limit   int           // of a commit's rows; 0 for none
	slow    int           // a commit that deletes more than so many rows does not end in time; 0 for none
	before  func(*Commit) // is called before a commit is judged
	read    func()        // is called when all was read for a copy, before that has it
	lag     chan struct{} // changes are not delivered until it is closed
	lost    error         // the answer to a commit that took effect
	dropped error         // the answer to a commit that did not
	origin  string        // of the data
	early   bool          // it says that entries are older than they are: a weakness
	deaf    bool          // it judges no commit: a weakness
	keeps   bool          // it leaves the deletions of rows out whose time has passed: a weakness
	breaks  int           // how often all was read
	commits int           // that took effect
	refused int           // that did not
	went    int           // how often it went back
}

// written is an entry of the log, with the time at which it came.
type written struct {
	value []byte
	at    time.Time
}

var errBroken = errors.New("the connection broke")

func newMemory() *memory {
	return &memory{entries: make(map[int64]written), changed: make(chan struct{}), origin: "memory"}
}

func (s *memory) Commit(ctx context.Context, c *Commit) (int64, error) {
	s.mu.Lock()
	before := s.before
	s.before = nil
	s.mu.Unlock()
	if before != nil {
		before(c)
	}
	if s.slow > 0 && deletedIn(c.Value) > s.slow {
		<-ctx.Done()
		return 0, ctx.Err()
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
	case s.limit > 0 && rowsIn(c.Value) > s.limit:
		return 0, replica.ErrTooLarge
	case !s.deaf && c.Former != s.head:
		s.refused++
		return 0, &ConflictError{Version: s.wrote}
	}
	change := &Change{Head: &c.Head}
	if c.Claim == s.claim {
		s.claim, change.Claim = "", new(string)
	}
	maps.DeleteFunc(s.entries, func(number int64, _ written) bool { return number >= c.From && number < c.First })
	if c.Value != nil {
		value := slices.Clone(c.Value)
		if s.keeps {
			value = s.withoutEnded(value)
		}
		s.entries[c.Number] = written{value, time.Now()}
		change.Entry = &Entry{Number: c.Number, Value: value}
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

func rowsIn(value []byte) int {
	if value == nil {
		return 0
	}
	t, _ := decodeEntry(value)
	return len(t.put)
}

func deletedIn(value []byte) int {
	if value == nil {
		return 0
	}
	t, _ := decodeEntry(value)
	return len(t.deleted)
}

// withoutEnded leaves out the deletions of rows whose time has passed.
func (s *memory) withoutEnded(value []byte) []byte {
	until := make(map[string]time.Time)
	for _, number := range slices.Sorted(maps.Keys(s.entries)) {
		before, _ := decodeEntry(s.entries[number].value)
		for _, row := range before.put {
			until[row.key] = time.Time{}
			if row.left > 0 {
				until[row.key] = s.entries[number].at.Add(row.left)
			}
		}
	}
	t, _ := decodeEntry(value)
	t.deleted = slices.DeleteFunc(t.deleted, func(key string) bool {
		return !until[key].IsZero() && time.Until(until[key]) <= 0
	})
	return t.encode()
}

// snapshot is what a mirror loads.
func (s *memory) snapshot() *Snapshot {
	snap := &Snapshot{Version: s.version, Head: s.head, HeadVersion: s.wrote, Claim: s.claim, Origin: s.origin}
	if began, err := ReadHead(s.head); s.head != "" {
		snap.Lost = err != nil || began.Origin != s.origin
	}
	for _, number := range slices.Sorted(maps.Keys(s.entries)) {
		one := s.entries[number]
		age := time.Since(one.at)
		if s.early {
			age = 2*age + time.Second
		}
		snap.Log = append(snap.Log, Entry{Number: number, Value: one.value, Age: age})
	}
	return snap
}

// loadInto loads the changes into the mirror. It returns how many the mirror has, and how often the service had gone
// back.
func (s *memory) loadInto(m *Mirror) (at, went int, err error) {
	_, err = m.Load(func() (*Snapshot, error) {
		s.mu.Lock()
		snap, read := s.snapshot(), s.read
		at, went, s.read = len(s.log), s.went, nil
		s.breaks++
		s.mu.Unlock()
		if read != nil {
			read()
		}
		return snap, nil
	})
	return at, went, err
}

func (s *memory) Follow(ctx context.Context, m *Mirror) error {
	at, went, err := s.loadInto(m)
	if err != nil {
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

// remove removes entries of the log in a way that no server does.
func (s *memory) remove(from, to int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := int64(0)
	maps.DeleteFunc(s.entries, func(number int64, _ written) bool {
		gone := number >= from && number <= to
		if gone {
			last = max(last, number)
		}
		return gone
	})
	s.publish(&Change{Removed: last})
}

// removeHead removes the head in a way that no server does.
func (s *memory) removeHead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.head, s.wrote = "", 0
	s.publish(&Change{Head: new(string)})
}

// saved is a copy of the state.
type saved struct {
	version, wrote int64
	head           string
	entries        map[int64]written
}

func (s *memory) save() saved {
	s.mu.Lock()
	defer s.mu.Unlock()
	return saved{version: s.version, wrote: s.wrote, head: s.head, entries: maps.Clone(s.entries)}
}

// restore returns to the saved state.
func (s *memory) restore(to saved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.wrote, s.head, s.entries, s.log, s.claim = to.version, to.wrote, to.head, maps.Clone(to.entries), nil, ""
	s.went++
	close(s.changed)
	s.changed = make(chan struct{})
}
