package zkstore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sync/errgroup"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/storage/optimistic"
)

const (
	// readers is the maximum number of concurrent reads of entries.
	readers = 32
	// followPause is the minimum time for which a server that commits alone does not read the head, so that
	// following does not cost a request for each of its own commits.
	followPause = 2 * time.Millisecond
)

// errBehind says that entries were removed before this server had read them.
var errBehind = errors.New("the log went on too fast")

// Follow loads the rows, and then reads what other servers commit; see optimistic.Service.
func (s *service) Follow(ctx context.Context, m *optimistic.Mirror) error {
	if _, err := m.Load(func() (*optimistic.Snapshot, error) { return s.load(ctx) }); err != nil {
		return err
	}
	var heads, claims <-chan zk.Event
	for {
		var err error
		if heads == nil {
			heads, err = s.followHead(ctx, m)
		}
		if claims == nil && err == nil {
			claims, err = s.followClaims(ctx, m)
		}
		if err != nil {
			return err
		}
		select {
		case <-heads:
			heads = nil
		case <-claims:
			claims = nil
		case <-s.again:
			return errMissing
		case <-ctx.Done():
			return ctx.Err()
		}
		if !s.newest().Shared { // if it is shared, another server commits next, or waits for this one
			pause.For(ctx, followPause)
		}
	}
}

// watched is the result of a read, and the channel that reports the next change.
type watched[T any] struct {
	value T
	event <-chan zk.Event
}

// followHead applies the commits since the last call, and returns the channel that reports the next commit.
func (s *service) followHead(ctx context.Context, m *optimistic.Mirror) (<-chan zk.Event, error) {
	before, _ := m.Newest()
	w, err := persistently(ctx, s.session, func(c *zk.Conn) (w watched[headNode], err error) {
		raw, stat, event, err := c.GetW(s.path(headName))
		if errors.Is(err, zk.ErrNoNode) && before == 0 { // no life has begun yet
			_, _, event, err = c.ExistsW(s.path(headName))
			return watched[headNode]{event: event}, err
		}
		if err == nil {
			w = watched[headNode]{headNode{raw: string(raw), zxid: stat.Mzxid}, event}
		}
		return w, err
	})
	if err != nil || w.value.raw == "" {
		return w.event, err // also if the head was deleted
	}
	head, err := s.saw(w.value.raw, w.value.zxid)
	if err != nil {
		return nil, err
	}
	version, last := m.Newest()
	if head.zxid <= version {
		return w.event, nil
	}
	if last < head.First-1 && head.First <= head.Last {
		return nil, errBehind
	}
	var numbers []int64
	for number := max(head.First, last+1); number <= head.Last; number++ {
		numbers = append(numbers, number)
	}
	entries, err := s.entries(ctx, numbers)
	if err != nil {
		return nil, err
	}
	seen := time.Now()
	for _, e := range entries {
		if e == nil {
			return nil, errBehind
		}
		s.clock.saw(e.number, e.noted, seen) // before the copy contains it
		one := e.of(0)
		if err := m.Apply(&optimistic.Change{Version: e.zxid, Head: &e.head, Entry: &one}); err != nil {
			return nil, err
		}
	}
	return w.event, m.Apply(&optimistic.Change{Version: head.zxid, Head: &head.raw})
}

// followClaims applies the first claim, and returns the channel that reports another claim.
func (s *service) followClaims(ctx context.Context, m *optimistic.Mirror) (<-chan zk.Event, error) {
	type children struct {
		names []string
		zxid  int64
	}
	w, err := persistently(ctx, s.session, func(c *zk.Conn) (w watched[children], err error) {
		names, stat, event, err := c.ChildrenW(s.path(claimsName))
		if err == nil {
			w = watched[children]{children{names, stat.Pzxid}, event}
		}
		return w, err
	})
	if errors.Is(err, zk.ErrNoNode) { // somebody has deleted it
		return nil, errors.Join(errMissing, s.make(ctx))
	}
	if err != nil {
		return nil, err
	}
	claim := ""
	if len(w.value.names) > 0 {
		claim = slices.Min(w.value.names)
	}
	return w.event, m.Apply(&optimistic.Change{Version: w.value.zxid, Claim: &claim})
}

// entries reads entries of the log. A missing entry is nil.
func (s *service) entries(ctx context.Context, numbers []int64) ([]*entry, error) {
	read := make([]*entry, len(numbers))
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(readers)
	for i, number := range numbers {
		all.Go(func() (err error) {
			read[i], err = persistently(ctx, s.session, func(c *zk.Conn) (*entry, error) { return s.getEntry(c, number) })
			s.got.Add(1)
			if errors.Is(err, zk.ErrNoNode) {
				return nil
			}
			return err
		})
	}
	return read, all.Wait()
}

// load reads everything as of one commit: the last one, or that of the last entry that it read, since others
// may commit meanwhile. It reports missing entries only if it has read all that are listed and no commit came
// in between.
func (s *service) load(ctx context.Context) (*optimistic.Snapshot, error) {
	s.forget()
	s.got.Store(0)
	read := make(map[int64]*entry)
	for first, before := true, (headNode{}); ; {
		seen, err := s.look(ctx)
		if err != nil {
			return nil, err
		}
		if seen.head.zxid < before.zxid { // the data were restored during the read
			clear(read)
		}
		all, err := s.readLog(ctx, seen.log, read)
		if err != nil {
			return nil, err
		}
		head, err := lastHead(seen.head, read)
		if err != nil {
			return nil, err
		}
		if !isWhole(head, read) {
			if first || !all || seen.head.raw != before.raw {
				first, before = false, seen.head
				continue
			}
			head = seen.head
		}
		deleted, err := s.deleteBroken(ctx, head)
		if err != nil {
			return nil, err
		}
		if !deleted {
			return s.snapshot(head, read, seen.left), nil
		}
	}
}

// look is what one connection sees below the path, no older than the request.
type look struct {
	head headNode
	log  []int64   // the numbers of the entries, at the time of the head or later
	left []reading // the reading of the clock that a server left in ZooKeeper; at most one
}

// look reads the znodes below the path. It creates those that are missing.
func (s *service) look(ctx context.Context) (look, error) {
	for {
		seen, err := persistently(ctx, s.session, s.lookOnce)
		if !errors.Is(err, zk.ErrNoNode) {
			return seen, err
		}
		if err := s.make(ctx); err != nil && (!passing(err) || !pause.For(ctx, retryPause)) {
			return look{}, err
		}
	}
}

func (s *service) lookOnce(c *zk.Conn) (seen look, err error) {
	if _, err := c.Multi(s.barrier()); err != nil {
		return look{}, err
	}
	if seen.head, err = s.getHead(c); err != nil {
		return look{}, err
	}
	if seen.head.raw != "" {
		if seen.head, err = s.saw(seen.head.raw, seen.head.zxid); err != nil {
			return look{}, err
		}
	}
	raw, _, err := c.Get(s.path(logName))
	if err != nil {
		return look{}, err
	}
	if r, ok := decodeReading(raw); ok {
		seen.left = append(seen.left, r)
	}
	names, _, err := c.Children(s.path(logName))
	for _, name := range names {
		if number, bad := strconv.ParseInt(name, 10, 64); bad == nil {
			seen.log = append(seen.log, number)
		}
	}
	return seen, err
}

// lastHead returns the head that was read, or the head in the last entry if that one is newer.
func lastHead(head headNode, read map[int64]*entry) (headNode, error) {
	for _, e := range read {
		if head.raw == "" || e.zxid <= head.zxid {
			continue
		}
		h, err := optimistic.ReadHead(e.head)
		if err != nil {
			return headNode{}, err
		}
		head = headNode{e.head, e.zxid, h}
	}
	return head, nil
}

// isWhole reports whether all entries that a head names were read. Without a head there must be no entries.
func isWhole(h headNode, read map[int64]*entry) bool {
	if h.raw == "" {
		return len(read) == 0
	}
	for number := h.First; number <= h.Last; number++ {
		if read[number] == nil {
			return false
		}
	}
	return true
}

// deleteBroken deletes a head whose child, on which the next commit depends, is missing because somebody has
// deleted it.
func (s *service) deleteBroken(ctx context.Context, h headNode) (deleted bool, err error) {
	if h.raw == "" {
		return false, nil
	}
	return persistently(ctx, s.session, func(c *zk.Conn) (bool, error) {
		there, _, err := c.Exists(s.path(headName, h.Commit))
		if there || err != nil {
			return false, err
		}
		_, stat, err := c.Get(s.path(headName))
		if err != nil || stat.Mzxid != h.zxid || stat.NumChildren > 0 { // another commit came in between
			return false, err
		}
		err = c.Delete(s.path(headName), stat.Version)
		if isConflict(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// snapshot assembles what was read, as of the given head.
func (s *service) snapshot(head headNode, read map[int64]*entry, left []reading) *optimistic.Snapshot {
	var log []entry
	strays := false // entries of a log that ended, or of commits that failed to delete them
	for _, number := range slices.Sorted(maps.Keys(read)) {
		if head.raw == "" || number >= head.First && number <= head.Last {
			log = append(log, *read[number])
		}
		strays = strays || number < head.First
	}
	if own, known := s.clock.read(); known {
		left = append(left, own)
	}
	snap := &optimistic.Snapshot{Version: head.zxid, Head: head.raw, HeadVersion: head.zxid}
	for i, age := range s.clock.begin(log, left) {
		snap.Log = append(snap.Log, log[i].of(age))
	}
	if strays {
		s.clean(head.First)
	}
	return snap
}

// readLog adds the listed entries to read. all reports that none of them is missing.
func (s *service) readLog(ctx context.Context, listed []int64, read map[int64]*entry) (all bool, err error) {
	s.of.Store(int64(len(listed)))
	var missing []int64
	for _, number := range listed {
		if read[number] == nil {
			missing = append(missing, number)
		}
	}
	entries, err := s.entries(ctx, missing)
	all = true
	for _, e := range entries {
		if e != nil {
			read[e.number] = e
		}
		all = all && e != nil
	}
	return all, err
}
