package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/optimistic"
)

const (
	// maxRequest is the maximum size of a request. A server accepts 1 MiB by default.
	maxRequest = 1_000_000
	// maxRemoved is the maximum number of entries that a commit removes itself.
	maxRemoved = 100
)

// Commit writes c in one request; see optimistic.Service. If the response is lost, Commit sends the request
// again. It takes effect at most once.
func (s *service) Commit(ctx context.Context, c *optimistic.Commit) (version int64, err error) {
	sent := time.Now()
	at, _ := s.clock.read()
	e := &entry{number: c.Number, noted: at.now, head: c.Head, value: c.Value}
	request, err := s.requestOf(c, e)
	if err != nil {
		return 0, err
	}
	version, err = s.send(ctx, c, request)
	if err != nil {
		return 0, err
	}
	if c.Value != nil {
		s.clock.saw(c.Number, at.now, sent) // before the copy contains the entry
	}
	if request.leaves {
		s.clean(c.First)
	}
	_, err = s.saw(c.Head, version)
	return version, err
}

// request is the request of a commit.
type request struct {
	ops    []any
	claim  int  // index of the operation that removes the claim, which is the last; 0 for none
	leaves bool // the commit leaves old entries for clean to delete
}

func (s *service) requestOf(c *optimistic.Commit, e *entry) (r request, err error) {
	former, err := optimistic.ReadHead(c.Former)
	if err != nil {
		return r, err
	}
	next, err := optimistic.ReadHead(c.Head)
	if err != nil {
		return r, err
	}
	size := len(c.Head)
	if c.Former == "" {
		r.ops = append(r.ops, &zk.CreateRequest{Path: s.path(headName), Acl: s.acl})
	} else {
		r.ops = append(r.ops, &zk.DeleteRequest{Path: s.path(headName, former.Commit), Version: -1})
	}
	r.ops = append(r.ops, &zk.SetDataRequest{Path: s.path(headName), Data: []byte(c.Head), Version: -1},
		&zk.CreateRequest{Path: s.path(headName, next.Commit), Acl: s.acl})
	if c.Value != nil {
		raw := e.encode()
		size += len(raw)
		r.ops = append(r.ops, &zk.CreateRequest{Path: s.entryPath(c.Number), Data: raw, Acl: s.acl})
	}
	r.leaves = former.Life != next.Life || c.First-c.From > maxRemoved // some entries of an earlier life may be missing
	for number := c.From; number < c.First && !r.leaves; number++ {
		r.ops = append(r.ops, &zk.DeleteRequest{Path: s.entryPath(number), Version: -1})
	}
	if c.Claim != "" {
		r.claim = len(r.ops)
		r.ops = append(r.ops, &zk.DeleteRequest{Path: s.path(claimsName, c.Claim), Version: -1})
	}
	if size+100*len(r.ops) > maxRequest {
		return r, replica.ErrTooLarge
	}
	return r, nil
}

func (s *service) send(ctx context.Context, c *optimistic.Commit, r request) (version int64, err error) {
	return persistently(ctx, s.session, func(conn *zk.Conn) (int64, error) { return s.sendOnce(conn, c, r) })
}

func (s *service) sendOnce(conn *zk.Conn, c *optimistic.Commit, r request) (version int64, err error) {
	results, err := conn.Multi(r.ops...)
	switch {
	case err == nil && len(results) == len(r.ops):
		return results[1].Stat.Mzxid, nil
	case err == nil: // it is asked again
		return 0, fmt.Errorf("the server answers %d operations of %d", len(results), len(r.ops))
	case isConflict(err) && r.claim > 0 && failed(results) == r.claim: // the claim was taken back
		r.ops, r.claim = r.ops[:r.claim], 0
		return s.sendOnce(conn, c, r)
	case isConflict(err):
		return s.overtaken(conn, c, err)
	}
	return 0, err
}

// failed returns the index of the operation at which a request failed; -1 for none.
func failed(results []zk.MultiResponse) int {
	for i, r := range results {
		if r.Error != nil {
			return i
		}
	}
	return -1
}

var (
	errUncertain = errors.New("too many later commits hide whether this one succeeded")
	errMissing   = errors.New("a znode of the log is missing, or there is one too many: the log is read again")
)

// overtaken finds out which head exists after a conflict. It may be this commit's own, from a request whose
// response was lost. The connection was refused the commit, so it has seen the head that caused the conflict.
func (s *service) overtaken(conn *zk.Conn, c *optimistic.Commit, why error) (version int64, err error) {
	h, err := s.getHead(conn)
	if err == nil && h.raw != "" {
		h, err = s.saw(h.raw, h.zxid)
	}
	switch {
	case err != nil:
		return 0, err
	case h.raw == c.Head:
		return h.zxid, nil
	case h.raw == c.Former:
		s.readAgain()
		return 0, fmt.Errorf("%w (%w)", errMissing, why)
	case c.Value == nil:
		return 0, &optimistic.ConflictError{Version: h.zxid}
	case c.Number < h.First: // the log is cleaned up to there
		return 0, errUncertain
	}
	e, err := s.getEntry(conn, c.Number)
	switch {
	case err == nil && e.head == c.Head:
		return e.zxid, nil
	case err == nil || errors.Is(err, zk.ErrNoNode):
		return 0, &optimistic.ConflictError{Version: h.zxid}
	}
	return 0, err
}

// getEntry reads an entry of the log through one connection.
func (s *service) getEntry(c *zk.Conn, number int64) (*entry, error) {
	raw, stat, err := c.Get(s.entryPath(number))
	if err != nil {
		return nil, err
	}
	e, ok := decodeEntry(number, stat.Czxid, raw)
	if !ok {
		return nil, fmt.Errorf("%s: %w", s.entryPath(number), errCorrupt)
	}
	return &e, nil
}

// readAgain makes Follow read everything again.
func (s *service) readAgain() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// clean deletes the entries before first: entries of an earlier log, and those that were too many for one
// commit. If it leaves any, the next call deletes them.
func (s *service) clean(first int64) {
	s.done.Go(func() {
		names, err := s.children(s.ctx, s.path(logName))
		for _, name := range names {
			if number, bad := strconv.ParseInt(name, 10, 64); bad == nil && number < first && err == nil {
				err = s.remove(s.ctx, s.path(logName, name))
			}
		}
	})
}
