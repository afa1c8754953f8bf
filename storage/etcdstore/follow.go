package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/fencelock/fencelock/storage/optimistic"
)

const (
	pageRows    = 5000
	leaseReads  = 16 // at once
	rowsMissing = time.Microsecond
)

// service is an optimistic.Service in etcd.
type service struct {
	conn   *conn
	prefix string
	leases leases
}

var _ optimistic.Service = (*service)(nil)

func newService(c *conn, prefix string) *service {
	s := &service{conn: c, prefix: prefix}
	s.leases.grant = func(ctx context.Context, seconds int64) (granted *clientv3.LeaseGrantResponse, err error) {
		err = c.try(ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
			granted, err = client.Grant(ctx, seconds)
			return err
		})
		return granted, err
	}
	return s
}

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
	snap, err := s.load(ctx)
	if err != nil {
		return err
	}
	if err := m.Load(snap); err != nil {
		return err
	}
	news, cancel := s.conn.watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(snap.Version+1), clientv3.WithFragment())
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
	return snap, s.loadRows(ctx, snap)
}

// recognise says what is known of the data's history.
func (s *service) recognise(ctx context.Context, member uint64, snap *optimistic.Snapshot) error {
	began, err := optimistic.Origin(snap.Head)
	if err != nil {
		return err
	}
	now, err := s.conn.origin(ctx, member)
	if err != nil {
		return err
	}
	snap.Origin, snap.Restored = now.String(), now.restored()
	if snap.Head != "" {
		snap.Lost, err = now.follows(began)
	}
	return err
}

func (s *service) loadRows(ctx context.Context, snap *optimistic.Snapshot) error {
	generation, err := optimistic.Generation(snap.Head)
	if err != nil {
		return err
	}
	var kvs []*mvccpb.KeyValue
	for from := s.prefix; ; {
		resp, err := s.conn.get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.prefix)),
			clientv3.WithRev(snap.Version), clientv3.WithLimit(pageRows))
		if err != nil {
			return err
		}
		kvs = append(kvs, resp.Kvs...)
		if !resp.More {
			break
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
	left := s.left(ctx, kvs)
	for _, kv := range kvs {
		row, slack, isRow := s.row(kv)
		switch {
		case isRow && row.Generation == generation:
			if of := left[kv.Lease]; of > 0 {
				row.Left = max(of-slack, rowsMissing)
			}
			snap.Rows = append(snap.Rows, row)
		case string(kv.Key) == s.prefix+claimName:
			snap.Claim = string(kv.Value)
		}
	}
	return nil
}

// left asks what is left of the rows' leases. Of one that it gets no answer for, nothing
// is known.
func (s *service) left(ctx context.Context, kvs []*mvccpb.KeyValue) map[int64]time.Duration {
	left := make(map[int64]time.Duration)
	for _, kv := range kvs {
		if kv.Lease != 0 {
			left[kv.Lease] = 0
		}
	}
	var group errgroup.Group
	group.SetLimit(leaseReads)
	answers := make(chan lease, len(left))
	began := time.Now()
	for id := range left {
		group.Go(func() error {
			var resp *clientv3.LeaseTimeToLiveResponse
			err := s.conn.try(ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
				resp, err = client.TimeToLive(ctx, clientv3.LeaseID(id))
				return err
			})
			switch {
			case err != nil: // not known: its rows last from when they are seen
			case resp.TTL < 0: // it has ended
				answers <- lease{clientv3.LeaseID(id), began.Add(rowsMissing)}
			default: // whole seconds, cut off
				answers <- lease{clientv3.LeaseID(id), began.Add(time.Duration(resp.TTL+1) * time.Second)}
			}
			return nil //nolint:nilerr // an estimate less
		})
	}
	_ = group.Wait()
	close(answers)
	for l := range answers {
		left[int64(l.id)] = l.ends.Sub(began)
	}
	return left
}

// row reads a row. One that was deleted has no value.
func (s *service) row(kv *mvccpb.KeyValue) (row optimistic.Row, slack time.Duration, isRow bool) {
	rest, isRow := bytes.CutPrefix(kv.Key, []byte(s.prefix+rowsName))
	if !isRow {
		return row, 0, false
	}
	number, key, isRow := bytes.Cut(rest, []byte("/"))
	if !isRow {
		return row, 0, false
	}
	generation, err := strconv.ParseUint(string(number), generationBase, 64)
	if err != nil {
		return row, 0, false
	}
	slack, value, _ := decode(kv.Value) // what is malformed has no time to live either, which the mirror refuses
	return optimistic.Row{Generation: generation, Key: string(key), Value: value}, slack, true
}

// apply applies events, those of one revision together.
func (s *service) apply(m *optimistic.Mirror, events []*clientv3.Event) error {
	for len(events) > 0 {
		c := &optimistic.Change{Version: events[0].Kv.ModRevision}
		n := 0
		for n < len(events) && events[n].Kv.ModRevision == c.Version {
			s.add(c, events[n])
			n++
		}
		if err := m.Apply(c); err != nil {
			return fmt.Errorf("revision %d: %w", c.Version, err)
		}
		events = events[n:]
	}
	return nil
}

func (s *service) add(c *optimistic.Change, e *clientv3.Event) {
	value := string(e.Kv.Value) // "" for a key that was deleted
	switch key := string(e.Kv.Key); key {
	case s.prefix + headName:
		c.Head = &value
	case s.prefix + claimName:
		c.Claim = &value
	default:
		row, _, isRow := s.row(e.Kv)
		switch {
		case !isRow:
		case e.Type == clientv3.EventTypeDelete:
			c.Deleted = append(c.Deleted, row)
		default:
			c.Put = append(c.Put, row)
		}
	}
}
