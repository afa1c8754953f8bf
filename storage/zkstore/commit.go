package zkstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	// maxInline is how much of an entry is in its own znode. A server takes requests of
	// 1 MB at most by default (jute.maxbuffer).
	maxInline = 600 << 10
	// maxRequest is how large a request may be.
	maxRequest = maxInline + 40<<10
	// claimAfter is how often a transaction is overtaken before the server asks the others
	// to let it pass, and claimPause how long they do at most.
	claimAfter = 2
	claimPause = 30 * time.Millisecond
)

func newID() string { return rand.Text()[:16] }

// commitError is one of the commit itself: it may have taken effect.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }

// commit makes an attempt the next entry of the log. It returns false if another server's
// transaction is that. Whatever is not certain is asked again with the very same request,
// which takes effect at most once.
func (s *Store) commit(ctx context.Context, a attempt) (committed bool, err error) {
	body := a.entry.body()
	if len(body) > maxInline {
		a.entry.pieces = (len(body) + maxInline - 1) / maxInline
		if err := s.writePieces(ctx, a.entry, body); err != nil {
			return false, err
		}
		body = nil
	}
	ops := s.operations(a, body)
	for {
		s.mu.Lock()
		sent := s.clock.mono()
		s.mu.Unlock()
		results, err := s.multi(ctx, ops...)
		switch {
		case err == nil:
			s.committed(a, sent, results[clockResult].Stat)
			return true, nil
		case isConflict(err):
			return s.overtaken(ctx, a.entry)
		case !passing(err):
			return false, err
		case !pause(ctx, retryPause):
			return false, &commitError{fmt.Errorf("commit: %w", err)}
		}
	}
}

// overtaken finds out who has made the next entry: perhaps this server, by a request whose
// answer was lost.
func (s *Store) overtaken(ctx context.Context, e *entry) (mine bool, err error) {
	if err := s.catchUp(ctx, e.previous); err != nil {
		return false, &commitError{fmt.Errorf("commit: %w", err)}
	}
	s.mu.Lock()
	at := e.last - s.mirror.first
	if at < 0 { // its place was cleaned meanwhile
		s.mu.Unlock()
		return false, &commitError{errUncertain}
	}
	mine = at < int64(len(s.mirror.Entries)) && s.mirror.Entries[at].ID == e.id
	s.mu.Unlock()
	if !mine {
		s.deletePieces(ctx, e.id, e.pieces)
	}
	return mine, nil
}

var errUncertain = errors.New("too many later commits hide whether this one succeeded")

// clockResult is which of the operations shows the leader's clock.
const clockResult = 2

// operations are those of one request: all of them are done, or none.
func (s *Store) operations(a attempt, body []byte) []any {
	ops := []any{
		&zk.DeleteRequest{Path: s.headPath(a.entry.previous), Version: -1}, // nothing newer was committed
		&zk.CreateRequest{Path: s.headPath(a.entry.id), Acl: s.acl},
		&zk.SetDataRequest{Path: s.path("clock"), Data: a.entry.encode(), Version: -1},
		&zk.CreateRequest{Path: s.entryPath(a.entry.last), Data: append(a.entry.front(), body...), Acl: s.acl},
	}
	for i, old := range a.removed {
		ops = append(ops, &zk.DeleteRequest{Path: s.entryPath(a.first + int64(i)), Version: -1})
		for piece := range old.Pieces {
			ops = append(ops, &zk.DeleteRequest{Path: s.piecePath(old.ID, piece), Version: -1})
		}
	}
	return ops
}

// committed notes what was committed.
func (s *Store) committed(a attempt, sent int64, clock *zk.Stat) {
	s.advance(a.entry)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clock.known {
		s.learn(sent, clock)
	}
	s.yield = clock.NumChildren > 0 && !s.contended
}

// advance applies an entry and delivers its messages, if it is the next one.
func (s *Store) advance(e *entry) (next bool) {
	s.mu.Lock()
	next = e.previous == s.mirror.id
	if next {
		if e.correction != s.mirror.correction {
			s.clock.forget()
			s.step = 0
		}
		s.lost = s.lost && e.generation == s.mirror.generation
		s.mirror.apply(e)
		close(s.advanced)
		s.advanced = make(chan struct{})
	}
	s.mu.Unlock()
	if next {
		s.deliver(e.messages)
	}
	return next
}

func (s *Store) headPath(id string) string { return s.path("head", id) }

func (s *Store) entryPath(number int64) string {
	return s.path("log", strconv.FormatInt(number, 10))
}

func (s *Store) piecePath(id string, piece int) string {
	return s.path("pieces", id+"-"+strconv.Itoa(piece))
}

// writePieces writes a large entry's body ahead. Pieces of no entry are deleted by who
// comes next (deleteStrays).
func (s *Store) writePieces(ctx context.Context, e *entry, body []byte) error {
	for piece := range e.pieces {
		part := body[piece*maxInline : min((piece+1)*maxInline, len(body))]
		_, err := call(ctx, s.session, func(c *zk.Conn) (string, error) {
			return c.Create(s.piecePath(e.id, piece), part, zk.FlagPersistent, s.acl)
		})
		if err != nil && err != zk.ErrNodeExists { //nolint:errorlint // the client does not wrap its errors
			return err
		}
	}
	return nil
}

func (s *Store) deletePieces(ctx context.Context, id string, pieces int) {
	for piece := range pieces {
		_ = s.remove(ctx, s.piecePath(id, piece)) // else deleteStrays does
	}
}

func (s *Store) remove(ctx context.Context, path string) error {
	_, err := call(ctx, s.session, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(path, -1) })
	return err
}

// claim asks the others to let this server pass, once it was overtaken too often: they see
// that the clock has a child.
func (s *Store) claim(ctx context.Context) {
	s.mu.Lock()
	s.contended = true
	s.mu.Unlock()
	_, _ = call(ctx, s.session, func(c *zk.Conn) (string, error) { // without it, this server tries on
		return c.Create(s.path("clock", "claim"), nil, zk.FlagEphemeral, s.acl)
	})
}

// giveWay ends this server's claim, or waits until one of another server's had its turn.
func (s *Store) giveWay(ctx context.Context) {
	s.mu.Lock()
	contended, yield, advanced := s.contended, s.yield, s.advanced
	s.contended, s.yield = false, false
	s.mu.Unlock()
	if contended {
		s.done.Go(func() { _ = s.remove(s.ctx, s.path("clock", "claim")) }) // or it ends with the session
	}
	if !yield {
		return
	}
	timer := time.NewTimer(claimPause)
	defer timer.Stop()
	select {
	case <-advanced:
	case <-timer.C:
	case <-ctx.Done():
	}
}
