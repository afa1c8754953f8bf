package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/storage/optimistic"
)

// pageEntries is the maximum number of log entries in one read.
const pageEntries = 100

// maxPageTime bounds the time for one entry.
const maxPageTime = 10 * time.Second

// service is an optimistic.Service in etcd.
type service struct {
	conn   *conn
	prefix string
	clock  clock
	others []string // other prefixes with locks, set by fit if this prefix has none

	got, of atomic.Int64 // keys of the present or last load
}

var _ optimistic.Service = (*service)(nil)

func newService(c *conn, prefix string) *service {
	return &service{conn: c, prefix: prefix, clock: clock{conn: c, key: prefix + clockName}}
}

// progress returns how many keys the load has read, and their total.
func (s *service) progress() (read, of int) { return int(s.got.Load()), int(s.of.Load()) }

// Head reads the head; see optimistic.Service.
func (s *service) Head(ctx context.Context) (head string, version int64, err error) {
	resp, err := s.conn.get(ctx, s.prefix+headName)
	if err != nil || len(resp.Kvs) == 0 {
		return "", 0, err
	}
	return string(resp.Kvs[0].Value), resp.Kvs[0].ModRevision, nil
}

var errWatchEnded = errors.New("etcd ended the watch")

// Follow loads the rows and watches them; see optimistic.Service.
func (s *service) Follow(ctx context.Context, m *optimistic.Mirror) error {
	version, err := m.Load(func() (*optimistic.Snapshot, error) { return s.load(ctx) })
	if err != nil {
		return err
	}
	news, cancel := s.conn.watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(version+1), clientv3.WithFragment())
	defer cancel()
	for resp := range news {
		if err := resp.Err(); err != nil {
			s.conn.next()
			return err
		}
		if err := s.apply(m, resp.Events); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errWatchEnded
}

// load reads everything at one revision.
func (s *service) load(ctx context.Context) (*optimistic.Snapshot, error) {
	first, err := s.conn.get(ctx, s.prefix+headName)
	if err != nil {
		return nil, err
	}
	snap := &optimistic.Snapshot{Version: first.Header.Revision}
	for _, kv := range first.Kvs {
		snap.Head, snap.HeadVersion = string(kv.Value), kv.ModRevision
	}
	if err := s.recognise(ctx, first.Header.MemberId, snap); err != nil {
		return nil, err
	}
	return snap, s.loadLog(ctx, snap)
}

// recognise compares the data with what is known of their history.
func (s *service) recognise(ctx context.Context, member uint64, snap *optimistic.Snapshot) error {
	began, err := optimistic.ReadHead(snap.Head)
	if err != nil {
		return err
	}
	now, err := s.conn.origin(ctx, member)
	if err != nil {
		return err
	}
	snap.Origin, snap.Restored = now.String(), now.restored()
	if snap.Head != "" {
		snap.Lost, err = now.follows(began.Origin)
	}
	return err
}

func (s *service) loadLog(ctx context.Context, snap *optimistic.Snapshot) error {
	kvs, err := s.readAll(ctx, snap.Version)
	if err != nil {
		return err
	}
	at, err := s.clock.now(ctx)
	if err != nil {
		at = reading{} // rows last from the moment they are seen
	}
	for _, kv := range kvs {
		switch one, err := s.read(kv, at); {
		case err != nil:
			return err
		case one != nil:
			snap.Log = append(snap.Log, *one)
		case string(kv.Key) == s.prefix+claimName:
			snap.Claim = string(kv.Value)
		}
	}
	return nil
}

// readAll reads the keys at a revision, page by page. If no member sends a page in time, readAll requests a
// smaller page. It allows more time only for a single key, because the time limit is also what detects a
// frozen member.
func (s *service) readAll(ctx context.Context, revision int64) (kvs []*mvccpb.KeyValue, err error) {
	for from, page, limit := s.prefix, int64(pageEntries), s.conn.attempt; ; {
		var resp *clientv3.GetResponse
		err := s.conn.tryFor(ctx, limit, func(ctx context.Context, client *clientv3.Client) (err error) {
			resp, err = client.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.prefix)),
				clientv3.WithRev(revision), clientv3.WithLimit(page))
			return err
		})
		switch {
		case unanswered(err) && pause.For(ctx, retryPause):
			if page == 1 {
				limit = min(2*limit, maxPageTime)
			}
			page = max(1, page/2)
			continue
		case err != nil:
			return nil, err
		}
		s.of.Store(int64(len(kvs)) + resp.Count)
		kvs = append(kvs, resp.Kvs...)
		s.got.Store(int64(len(kvs)))
		if !resp.More {
			return kvs, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// number returns the number of a log entry; ok is false if the key is not one of a log entry.
func (s *service) number(key []byte) (number int64, ok bool) {
	text, ok := bytes.CutPrefix(key, []byte(s.prefix+logName))
	if !ok {
		return 0, false
	}
	number, err := strconv.ParseInt(string(text), 16, 64)
	return number, err == nil
}

// read decodes an entry of the log; it returns nil for any other key.
func (s *service) read(kv *mvccpb.KeyValue, at reading) (*optimistic.Entry, error) {
	number, ok := s.number(kv.Key)
	if !ok {
		return nil, nil //nolint:nilnil // not an entry
	}
	one := &optimistic.Entry{Number: number}
	if one.Age, one.Value, ok = at.age(kv.Value); !ok {
		return nil, fmt.Errorf("the key %s cannot be read", kv.Key)
	}
	return one, nil
}

// apply applies events; the events of one revision are applied together.
func (s *service) apply(m *optimistic.Mirror, events []*clientv3.Event) error {
	for len(events) > 0 {
		c := &optimistic.Change{Version: events[0].Kv.ModRevision}
		n := 0
		for n < len(events) && events[n].Kv.ModRevision == c.Version {
			if err := s.add(c, events[n]); err != nil {
				return err
			}
			n++
		}
		if err := m.Apply(c); err != nil {
			return fmt.Errorf("revision %d: %w", c.Version, err)
		}
		events = events[n:]
	}
	return nil
}

func (s *service) add(c *optimistic.Change, e *clientv3.Event) (err error) {
	value := string(e.Kv.Value) // "" for a key that was deleted
	switch key := string(e.Kv.Key); {
	case key == s.prefix+headName:
		c.Head = &value
	case key == s.prefix+claimName:
		c.Claim = &value
	case e.Type == clientv3.EventTypePut:
		c.Entry, err = s.read(e.Kv, reading{})
	default:
		number, _ := s.number(e.Kv.Key)
		c.Removed = max(c.Removed, number)
	}
	return err
}
