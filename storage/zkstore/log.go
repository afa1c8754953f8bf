package zkstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sync/errgroup"
)

// readers is how many entries are read at once, at most.
const readers = 32

// data is what a znode holds.
type data struct {
	raw  []byte
	stat *zk.Stat
}

func (s *Store) get(ctx context.Context, path string) (data, error) {
	return call(ctx, s.session, func(c *zk.Conn) (data, error) {
		raw, stat, err := c.Get(path)
		return data{raw, stat}, err
	})
}

// catchUp reads what was committed after what the mirror has. Where the ensemble has said
// that the entry which was seen is not the last, and none follows it, the log is read from
// its beginning.
func (s *Store) catchUp(ctx context.Context, seen string) error {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		s.mu.Lock()
		last, id := s.mirror.last, s.mirror.id
		s.mu.Unlock()
		e, err := s.read(ctx, last+1)
		switch {
		case err == nil && (s.advance(e) || s.isPast(id)):
		case err != nil && !errors.Is(err, zk.ErrNoNode):
			return err
		case err == nil || id == seen:
			return s.reload(ctx)
		default:
			return nil
		}
	}
}

// isPast tells whether a commit of this server has taken the mirror past an entry.
func (s *Store) isPast(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mirror.id != id
}

// read reads an entry whole.
func (s *Store) read(ctx context.Context, number int64) (*entry, error) {
	d, err := s.get(ctx, s.entryPath(number))
	if err != nil {
		return nil, err
	}
	e, err := decodeFront(d.raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.entryPath(number), err)
	}
	if e.pieces == 0 {
		return e, nil
	}
	var body []byte
	for piece := range e.pieces {
		part, err := s.get(ctx, s.piecePath(e.id, piece))
		if err != nil {
			return nil, err
		}
		body = append(body, part.raw...)
	}
	err = e.decodeBody(body)
	return e, err
}

// begin reads the log for the first time.
func (s *Store) begin(ctx context.Context) error {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	begun := s.mirror != nil
	s.mu.Unlock()
	if begun {
		return nil
	}
	return s.reload(ctx)
}

// reload reads the whole log. If that is not the continuation of what this server has
// seen, committed rows were lost, and the incarnation is drawn again. After a failure fewer
// entries are read at once: so many may take longer than a server may not answer. The caller
// has s.reading.
func (s *Store) reload(ctx context.Context) error {
	if err := s.sync(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	var old *header // as it is known before it is read
	if s.mirror != nil {
		h := s.mirror.header
		old = &h
	}
	s.mu.Unlock()
	m, clock, err := s.loadOrRenew(ctx, old)
	if err != nil {
		s.readers = max(1, s.readers/2)
		return err
	}
	s.readers = readers
	if s.opts.read != nil {
		s.opts.read()
	}
	s.mu.Lock()
	if old != nil && s.mirror.id != old.id { // a commit was answered meanwhile: nothing before it was missing
		s.mu.Unlock()
		return nil
	}
	if old == nil || old.correction != m.correction {
		s.clock.forget()
		s.step = 0
	}
	s.mirror = m
	s.lost = old != nil && (m.lacks(old) || s.lost && m.name() == old.name())
	s.mu.Unlock()
	if old == nil {
		err = s.resume(ctx, clock)
	}
	s.local.Resubscribed()
	return err
}

// loadOrRenew reads the log, and begins it again where it was deleted, wholly or in part.
func (s *Store) loadOrRenew(ctx context.Context, old *header) (m *mirror, clock int64, err error) {
	for {
		m, clock, err = s.load(ctx)
		if !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, errIncomplete) {
			return m, clock, err
		}
		if err := s.renew(ctx, old); err != nil {
			return nil, 0, err
		}
	}
}

// sync has this server's connection see what was committed before.
func (s *Store) sync(ctx context.Context) error {
	_, err := call(ctx, s.session, func(c *zk.Conn) (string, error) { return c.Sync(s.target.path) })
	return err
}

// lacks tells whether this log is not the continuation of one that was seen before,
// unless it is another incarnation's anyway. That of a server that took the path for new is
// not: it knows of nothing that can have been lost.
func (m *mirror) lacks(old *header) bool {
	switch {
	case m.incarnation != old.incarnation && m.generation == 1:
		return true
	case m.incarnation != old.incarnation || m.generation != old.generation || old.last == 0:
		return false
	case m.last < old.last:
		return true
	case old.last < m.first: // it cannot be seen any more, and this log is longer
		return false
	}
	return m.Entries[old.last-m.first].ID != old.id
}

// load reads every entry. Clock is when any server was last known to run, on the leader's
// clock. What is removed while it reads is in newer entries again, so it reads these, too.
// What is missing though nothing newer was committed was deleted by somebody else. It
// continues what an attempt before has read in vain. The caller has s.reading.
func (s *Store) load(ctx context.Context) (m *mirror, clock int64, err error) {
	continued := s.partial != nil
	if !continued {
		s.partial = make(map[int64]*entry)
	}
	for missed := ""; ; {
		h, clock, err := s.head(ctx)
		if err == nil {
			s.length = int(h.last - h.first + 1)
			err = s.loadEntries(ctx, h, s.partial)
		}
		read := s.partial
		if err == nil || errors.Is(err, errRemoved) && continued {
			s.partial = nil
		}
		switch {
		case err == nil && (!continued || isChain(h, read)):
			return mirrorOf(h, read), clock, nil
		case s.partial == nil: // the log may be another one, that continues from a backup
			return s.load(ctx)
		case !errors.Is(err, errRemoved):
			return nil, 0, err
		case missed == h.id:
			s.partial = nil
			return nil, 0, errIncomplete
		}
		missed = h.id
		if err := s.sync(ctx); err != nil { // another server of the ensemble may lag behind
			return nil, 0, err
		}
	}
}

// errRemoved: an entry was removed since the log's header was read, or is not there yet.
var errRemoved = errors.New("an entry of the log is missing")

// errIncomplete: a part of the log was deleted, by no fencelock.
var errIncomplete = errors.New("a part of the log was deleted")

// head reads the header that the last commit left.
func (s *Store) head(ctx context.Context) (h header, clock int64, err error) {
	d, err := s.get(ctx, s.path("clock"))
	if err != nil {
		return h, 0, err
	}
	if h, err = decodeHeader(d.raw); err != nil {
		err = fmt.Errorf("%s %w", s.path("clock"), err)
	}
	return h, d.stat.Mtime * 1000, err
}

// loadEntries reads those of the log that were not read yet.
func (s *Store) loadEntries(ctx context.Context, h header, read map[int64]*entry) error {
	var mu sync.Mutex
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(s.readers)
	for number := h.first; number <= h.last; number++ {
		mu.Lock()
		known := read[number] != nil
		mu.Unlock()
		if known {
			continue
		}
		all.Go(func() error {
			e, err := s.read(ctx, number)
			if errors.Is(err, zk.ErrNoNode) {
				return errRemoved
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			read[number] = e
			return nil
		})
	}
	all.Go(func() error { // the condition of the next commit
		_, err := s.get(ctx, s.headPath(h.id))
		if errors.Is(err, zk.ErrNoNode) {
			return errRemoved
		}
		return err
	})
	return all.Wait()
}

// isChain tells whether entries that were read at different times are of one log.
func isChain(h header, read map[int64]*entry) bool {
	for number := h.first + 1; number <= h.last; number++ {
		if read[number].previous != read[number-1].id {
			return false
		}
	}
	return h.last < h.first || read[h.last].id == h.id
}

func mirrorOf(h header, read map[int64]*entry) *mirror {
	start := h
	start.last = h.first - 1
	m := newMirror(start)
	for number := h.first; number <= h.last; number++ {
		e := *read[number]
		e.first = h.first // those before are not here
		m.apply(&e)
	}
	m.header = h
	return m
}

// counted is how long no server may have been heard of for the time to count: each that
// runs reads the clock four times a second.
const counted = 300 * time.Millisecond

// resume continues the rows' time after one in which no server ran: that does not count,
// since the leader's clock may have been set meanwhile.
func (s *Store) resume(ctx context.Context, last int64) error {
	s.mu.Lock()
	h, sent := s.mirror.header, s.clock.mono()
	s.mu.Unlock()
	stat, err := s.tick(ctx, h)
	if isConflict(err) {
		return nil // another server runs
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.shown(sent, stat)
	passed := now.shown - last
	s.clock.assume(now, min(max(passed, 0), counted.Microseconds())-passed)
	s.step = s.clock.take(now)
	return nil
}

// followPause is how long this server leaves what others commit unread at least, so that
// reading it does not cost a request for each of its own commits.
const followPause = 2 * time.Millisecond

// maxDoublings bounds how often a time limit is doubled.
const maxDoublings = 5

// follow reads what other servers commit, as soon as they do. Its time limit doubles with
// each failure: a log that takes longer to read is not cut off where it was the last time.
func (s *Store) follow() {
	for failures := 0; pause(s.ctx, followPause); {
		if s.followOne(s.opts.Timeout << min(failures, maxDoublings)) {
			failures = 0
			continue
		}
		failures++
		pause(s.ctx, 250*time.Millisecond)
	}
}

func (s *Store) followOne(limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	if s.lock(ctx) != nil {
		return false
	}
	next := s.mirror.last + 1
	s.mu.Unlock()
	type watched struct {
		there bool
		event <-chan zk.Event
	}
	w, err := call(ctx, s.session, func(c *zk.Conn) (w watched, err error) {
		w.there, _, w.event, err = c.ExistsW(s.entryPath(next))
		return w, err
	})
	if err != nil {
		return false
	}
	if w.there {
		return s.catchUp(ctx, "") == nil
	}
	select {
	case <-w.event:
	case <-s.ctx.Done():
	}
	return true
}
