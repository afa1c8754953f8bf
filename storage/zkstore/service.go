package zkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/storage/optimistic"
)

// service is an optimistic.Service in ZooKeeper.
type service struct {
	session *session
	target  target
	acl     []zk.ACL
	clock   clock
	again   chan struct{} // signals that something is missing and everything must be read again

	ctx  context.Context // ends with close
	stop context.CancelFunc
	done sync.WaitGroup

	got, of atomic.Int64 // number of entries in the present or last load

	mu    sync.Mutex
	known headNode // the newest head that was seen
}

var _ optimistic.Service = (*service)(nil)

// headNode is the head as ZooKeeper stores it. If there is none, it is the zero headNode.
type headNode struct {
	raw  string
	zxid int64 // of the commit
	optimistic.Head
}

func newService(ctx context.Context, s *session, t target) *service {
	service := &service{session: s, target: t, acl: zk.WorldACL(zk.PermAll), again: make(chan struct{}, 1)}
	if t.user != "" {
		service.acl = zk.AuthACL(zk.PermAll)
	}
	service.ctx, service.stop = context.WithCancel(context.WithoutCancel(ctx))
	return service
}

func (s *service) close() {
	s.stop()
	s.done.Wait()
	s.session.close()
}

// progress returns how many entries the load has read, and their total.
func (s *service) progress() (read, of int) { return int(s.got.Load()), int(s.of.Load()) }

// The znodes, below the path.
const (
	headName   = "head"   // the head; it has one child, named by the commit's id
	logName    = "log"    // a reading of the clock; its children are the entries, named by their numbers
	claimsName = "claims" // below it the servers that claim a turn
	topicsName = "topics"
)

func names() []string { return []string{headName, logName, claimsName, topicsName} }

func (s *service) path(parts ...string) string {
	return s.target.path + "/" + strings.Join(parts, "/")
}

func (s *service) entryPath(number int64) string {
	return s.path(logName, strconv.FormatInt(number, 10))
}

// persistently repeats a request that failed for a temporary reason, until ctx ends.
func persistently[T any](ctx context.Context, s *session, do func(*zk.Conn) (T, error)) (T, error) {
	for {
		value, err := call(ctx, s, do)
		if !passing(err) || !pause.For(ctx, retryPause) {
			return value, err
		}
	}
}

// saw records a head that was read or written, if it is newer than the known one.
func (s *service) saw(raw string, zxid int64) (headNode, error) {
	h, err := optimistic.ReadHead(raw)
	if err != nil {
		return headNode{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := headNode{raw, zxid, h}
	if zxid > s.known.zxid {
		s.known = now
	}
	return now, nil
}

func (s *service) newest() headNode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

// forget drops the known head, because the service may have gone back to an older state.
func (s *service) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = headNode{}
}

// Head reads the head; see optimistic.Service. The known head is current if the leader confirms it. If the
// leader refuses, the connection has seen all earlier commits. After any other error it may not have.
func (s *service) Head(ctx context.Context) (head string, version int64, err error) {
	known := s.newest()
	got, err := persistently(ctx, s.session, func(c *zk.Conn) (headNode, error) {
		err := s.confirm(c, known)
		if isConflict(err) {
			return s.getHead(c)
		}
		return known, err
	})
	if err != nil || got.raw == "" {
		return "", 0, err
	}
	_, err = s.saw(got.raw, got.zxid)
	return got.raw, got.zxid, err
}

// confirm makes the leader verify that a head is the newest. It also leaves a reading of the clock for servers
// that start later.
func (s *service) confirm(c *zk.Conn, h headNode) error {
	if h.raw == "" {
		_, err := c.Multi(s.barrier())
		return cmp.Or(err, zk.ErrNoNode)
	}
	ops := []any{&zk.CheckVersionRequest{Path: s.path(headName, h.Commit), Version: -1}}
	if r, known := s.clock.read(); known {
		ops = append(ops, &zk.SetDataRequest{Path: s.path(logName), Data: r.encode(), Version: -1})
	}
	_, err := c.Multi(ops...)
	return err
}

// barrier changes nothing. But as part of a Multi it goes through the leader, so that the connection then sees
// all earlier commits.
func (s *service) barrier() *zk.CheckVersionRequest {
	return &zk.CheckVersionRequest{Path: s.path(logName), Version: -1}
}

// getHead reads the head through one connection.
func (s *service) getHead(c *zk.Conn) (headNode, error) {
	raw, stat, err := c.Get(s.path(headName))
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return headNode{}, nil
	case err != nil:
		return headNode{}, err
	}
	return headNode{raw: string(raw), zxid: stat.Mzxid}, nil
}

// Claim lists this server among those that claim a turn, until the turn is given or the session ends; see
// optimistic.Service.
func (s *service) Claim(ctx context.Context, server string) error {
	_, err := persistently(ctx, s.session, func(c *zk.Conn) (string, error) {
		return c.Create(s.path(claimsName, server), nil, zk.FlagEphemeral, s.acl)
	})
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// make creates the znodes that must always exist. It refuses a path that holds anything else.
func (s *service) make(ctx context.Context) error {
	if err := s.fit(ctx); err != nil {
		return err
	}
	for _, path := range append(s.parents(), s.path(logName), s.path(claimsName), s.path(topicsName)) {
		_, err := call(ctx, s.session, func(c *zk.Conn) (string, error) {
			if there, _, err := c.Exists(path); there && err == nil {
				return path, nil
			}
			return c.Create(path, nil, zk.FlagPersistent, s.acl)
		})
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return nil
}

// parents returns the path and its parent znodes.
func (s *service) parents() (paths []string) {
	for at, char := range s.target.path + "/" {
		if char == '/' && at > 0 {
			paths = append(paths, s.target.path[:at])
		}
	}
	return paths
}

// fit refuses a path that holds data of other programs, or of another version of fencelock.
func (s *service) fit(ctx context.Context) error {
	children, err := s.children(ctx, s.target.path)
	if err != nil {
		return err
	}
	for _, name := range children {
		if !slices.Contains(names(), name) {
			return s.foreign(ctx, name)
		}
	}
	raw, err := s.data(ctx, s.path(headName))
	if err != nil {
		return err
	}
	if _, err := optimistic.ReadHead(string(raw)); err != nil {
		return fmt.Errorf("%s: %w", s.path(headName), err)
	}
	if raw != nil {
		return nil
	}
	if raw, err = s.data(ctx, s.target.path); err == nil && len(raw) > 0 {
		return &foreignError{s.target.path, ""}
	}
	return err
}

// formerName is the znode that an earlier version creates, and magic is how its content begins.
const (
	formerName = "clock"
	magic      = "fencelock "
)

func (s *service) foreign(ctx context.Context, name string) error {
	raw, err := s.data(ctx, s.path(formerName))
	if err == nil && strings.HasPrefix(string(raw), magic) {
		return errFormer
	}
	return errors.Join(&foreignError{s.target.path, name}, err)
}

// data returns the content of a znode, or nil if there is none.
func (s *service) data(ctx context.Context, path string) ([]byte, error) {
	raw, err := call(ctx, s.session, func(c *zk.Conn) ([]byte, error) {
		raw, _, err := c.Get(path)
		return raw, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return raw, err
}

// children returns the names below a path, none if it does not exist.
func (s *service) children(ctx context.Context, path string) ([]string, error) {
	names, err := call(ctx, s.session, func(c *zk.Conn) ([]string, error) {
		names, _, err := c.Children(path)
		return names, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return names, err
}

// remove deletes a znode, if it exists.
func (s *service) remove(ctx context.Context, path string) error {
	_, err := call(ctx, s.session, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(path, -1) })
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return err
}
