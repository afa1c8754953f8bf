package zkstore

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/go-zookeeper/zk"
)

// make makes what the path needs, if the clock is not there.
func (s *Store) make(ctx context.Context) error {
	for {
		_, err := s.get(ctx, s.path("clock"))
		if !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		if err := s.renew(ctx, nil); err != nil {
			return err
		}
	}
}

// found is what there is below the path.
type found struct {
	clock    *zk.Stat // nil if it is not there
	header   header   // in it
	children []string
	heads    []string
	last     int64 // entry of the log
}

// renew begins a log without entries: the first, or another generation where it was deleted,
// wholly or in part. Known is what this server has seen of it, nil for nothing. If another
// server does, or commits, the caller looks again.
func (s *Store) renew(ctx context.Context, known *header) error {
	f, err := s.look(ctx)
	if err != nil {
		return err
	}
	h := header{incarnation: newID(), generation: f.header.generation + 1, id: newID()}
	if f.clock == nil && len(f.children) > 0 {
		h.generation = 2 // what is there had a clock
	}
	h.last = max(f.last, f.header.last)
	if known != nil {
		h.generation, h.last = max(h.generation, known.generation+1), max(h.last, known.last)
	}
	h.first = h.last + 1
	if h.generation > 1 {
		s.opts.Logger.Warn("znodes of the store were deleted, and not by fencelock: the locks are given up, nothing is granted for the longest TTL, and then tokens rise; find out who deletes znodes there", "path", s.target.path)
	}
	ops, err := s.renewal(ctx, f, &h)
	if err != nil {
		return err
	}
	if _, err = s.multi(ctx, ops...); isConflict(err) {
		pause(ctx, retryPause)
		return ctx.Err()
	}
	return err
}

// look finds out what there is. It refuses a path that holds something of others.
func (s *Store) look(ctx context.Context) (f found, err error) {
	if f.children, err = s.children(ctx, s.target.path); err != nil {
		return f, err
	}
	clock, err := s.get(ctx, s.path("clock"))
	switch {
	case err == nil:
		f.clock = clock.stat
		if f.header, err = decodeHeader(clock.raw); err != nil {
			return f, err
		}
	case !errors.Is(err, zk.ErrNoNode):
		return f, err
	default:
		if err := s.mustBeFree(ctx, f.children); err != nil {
			return f, err
		}
	}
	if f.heads, err = s.children(ctx, s.path("head")); err != nil {
		return f, err
	}
	entries, err := s.children(ctx, s.path("log"))
	for _, name := range entries {
		if number, err := strconv.ParseInt(name, 10, 64); err == nil {
			f.last = max(f.last, number)
		}
	}
	return f, err
}

// children are the names below a path: none if it is not there.
func (s *Store) children(ctx context.Context, path string) ([]string, error) {
	names, err := call(ctx, s.session, func(c *zk.Conn) ([]string, error) {
		names, _, err := c.Children(path)
		return names, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return names, err
}

// folders are the znodes of the path that have others.
func folders() []string { return []string{"head", "log", "pieces"} }

// mustBeFree refuses a path that holds something else than a log without its clock.
func (s *Store) mustBeFree(ctx context.Context, children []string) error {
	for _, name := range children {
		if !slices.Contains(folders(), name) {
			return &foreignError{s.target.path, name}
		}
	}
	d, err := s.get(ctx, s.target.path)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil
	case err == nil && len(d.raw) > 0:
		return &foreignError{s.target.path, ""}
	}
	return err
}

// renewal are the operations: the version of the clock, or that there is none, is what they
// depend on.
func (s *Store) renewal(ctx context.Context, f found, h *header) (ops []any, err error) {
	if f.clock == nil {
		if ops, err = s.missing(ctx); err != nil {
			return nil, err
		}
		ops = append(ops, &zk.CreateRequest{Path: s.path("clock"), Data: h.encode(), Acl: s.acl})
	} else {
		ops = append(ops, &zk.SetDataRequest{Path: s.path("clock"), Data: h.encode(), Version: f.clock.Version})
	}
	for _, name := range folders() {
		if !slices.Contains(f.children, name) {
			ops = append(ops, &zk.CreateRequest{Path: s.path(name), Acl: s.acl})
		}
	}
	for _, id := range f.heads {
		ops = append(ops, &zk.DeleteRequest{Path: s.headPath(id), Version: -1})
	}
	return append(ops, &zk.CreateRequest{Path: s.headPath(h.id), Acl: s.acl}), nil
}

// missing creates the znodes on the way to the path.
func (s *Store) missing(ctx context.Context) (ops []any, err error) {
	whole := s.target.path + "/"
	for at := range whole {
		path := whole[:at]
		if at == 0 || whole[at] != '/' {
			continue
		}
		_, err := s.get(ctx, path)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			ops = append(ops, &zk.CreateRequest{Path: path, Acl: s.acl})
		case err != nil && !errors.Is(err, zk.ErrNoAuth): // which may still allow to create below
			return nil, err
		}
	}
	return ops, nil
}
