package optimistic

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// Options tune a Store. The zero value of a field takes its default.
type Options struct {
	// Timeout bounds a transaction whose context has no deadline; default 2s.
	Timeout time.Duration
	// Patience is how long other servers wait for the server whose turn it is. It is also how long a change
	// may take to reach the copy before everything is loaded again. Default 250ms.
	Patience time.Duration
	// Pause is the time before Follow is called again; default 250ms.
	Pause  time.Duration
	Logger *slog.Logger // default discards
}

func (o Options) withDefaults() Options {
	for field, value := range map[*time.Duration]time.Duration{
		&o.Timeout: 2 * time.Second, &o.Patience: 250 * time.Millisecond, &o.Pause: 250 * time.Millisecond,
	} {
		if *field == 0 {
			*field = value
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Store is a replica.Store over a Service. Several Stores, also in other processes, may share one service.
type Store struct {
	replica.Listeners

	service Service
	opts    Options
	name    string // name of this server
	mirror  *Mirror
	writer  chan struct{} // a slot of one: this server's updates run one at a time
	claimed string        // owned by the goroutine in the writer's slot: this server's name, if the claim may be its own

	ctx    context.Context // ends with Close
	stop   context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	reload context.CancelFunc // ends the present call of Follow
}

var _ replica.Store = (*Store)(nil)

// New starts following the service. It does not wait for it.
func New(service Service, opts Options) *Store {
	s := &Store{service: service, opts: opts.withDefaults(), name: rand.Text(), writer: make(chan struct{}, 1)}
	s.mirror = newMirror(s.wake)
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.done.Go(s.follow)
	s.done.Go(s.leaveTurns)
	s.done.Go(s.sweep)
	return s
}

// Close stops following the service.
func (s *Store) Close() error {
	s.stop()
	s.done.Wait()
	return nil
}

// Young reports whether it is certain that the rows never lost anything. It waits for the copy.
func (s *Store) Young(ctx context.Context) (young bool, err error) {
	err = s.View(ctx, func(replica.Tx) error {
		young = s.mirror.state.head.young // the copy does not change while a transaction runs
		return nil
	})
	return young, err
}

func (s *Store) wake(h *head) {
	if h.wakeAll {
		s.Resubscribed()
	}
	s.Notify(h.wakes)
}

// follow keeps the copy up to date.
func (s *Store) follow() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for was := false; ; {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		err := s.followOnce()
		s.mirror.unload()
		failing := err != nil && s.ctx.Err() == nil
		if failing && !was {
			s.opts.Logger.Warn("the copy of the store's rows is not kept up to date: it is loaded again", "error", err)
		}
		was = failing
		timer.Reset(s.opts.Pause)
	}
}

func (s *Store) followOnce() error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	s.mu.Lock()
	s.reload = cancel
	s.mu.Unlock()
	err := s.service.Follow(ctx, s.mirror)
	s.Resubscribed() // notifications may be lost from this moment on
	return err
}

// loadAgain makes follow load the copy again.
func (s *Store) loadAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reload != nil {
		s.reload()
	}
	s.mirror.unload()
}

// Update runs fn in a transaction that writes; see replica.Store.
func (s *Store) Update(ctx context.Context, fn func(replica.Tx) error) error {
	ctx, cancel := replica.Limit(ctx, s.opts.Timeout)
	defer cancel()
	select {
	case s.writer <- struct{}{}:
		defer func() { <-s.writer }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.update(ctx, fn)
}

// update repeats fn until no other commit comes between the run and its own commit.
func (s *Store) update(ctx context.Context, fn func(replica.Tx) error) error {
	for fresh := false; ; {
		late, err := s.awaitTurn(ctx)
		if err != nil {
			return err
		}
		t, failed := s.mirror.run(fn)
		on := &t.on
		if t.changes.Nothing() && !t.cleans && on.head.turn() != s.name { // if it is this server's turn, the commit ends the turn
			if fresh {
				return failed
			}
			same, err := s.refresh(ctx)
			switch {
			case err != nil:
				return err
			case same(on):
				return failed
			}
			fresh = true
			continue
		}
		err = s.commit(ctx, t, late)
		if err == nil {
			return failed
		}
		if again, err := s.conflict(ctx, on, err); !again {
			return err
		}
		if err := s.claim(ctx); err != nil {
			return err
		}
	}
}

// View runs fn on a copy that is no older than the call; see replica.Store.
func (s *Store) View(ctx context.Context, fn func(replica.Tx) error) error {
	ctx, cancel := replica.Limit(ctx, s.opts.Timeout)
	defer cancel()
	for {
		if err := s.alive(ctx); err != nil {
			return err
		}
		if _, err := s.refresh(ctx); err != nil {
			return err
		}
		t, err := s.mirror.run(fn)
		if !t.on.ailing() {
			return err
		} // the refresh found that commits are lost, and fn saw the earlier life
	}
}

// refresh returns when the copy has every commit from before the call. same reports whether an earlier state
// of the copy already had them.
func (s *Store) refresh(ctx context.Context) (same func(*state) bool, err error) {
	for {
		before, err := s.loaded(ctx)
		if err != nil {
			return nil, err
		}
		head, version, err := s.service.Head(ctx)
		if err != nil {
			return nil, err
		}
		if version < before.headVersion || version == before.headVersion && head != before.rawHead {
			s.loadAgain() // the service went back
			continue
		}
		same = func(on *state) bool { return on.rawHead == head }
		err = s.reaches(ctx, func(now *state) bool { return now.loaded && now.headVersion >= version })
		return same, err
	}
}

// conflict waits for the commit that was first, if there was one.
func (s *Store) conflict(ctx context.Context, on *state, err error) (again bool, _ error) {
	earlier, ok := errors.AsType[*ConflictError](err)
	if !ok {
		return false, err
	}
	if earlier.Version < on.headVersion {
		s.loadAgain() // the service went back
	}
	err = s.reaches(ctx, func(now *state) bool {
		return now.loaded && now.version >= earlier.Version && now.rawHead != on.rawHead
	})
	return err == nil, err
}

// reaches waits until the copy satisfies wanted. After Patience, everything is loaded again.
func (s *Store) reaches(ctx context.Context, wanted func(*state) bool) error {
	soon, cancel := context.WithTimeout(ctx, s.opts.Patience)
	defer cancel()
	_, err := s.mirror.await(soon, wanted)
	if err != nil && ctx.Err() == nil {
		s.loadAgain()
		_, err = s.mirror.await(ctx, wanted)
	}
	return err
}

// unreadError says that the service has not sent its rows, and what to check.
type unreadError struct{ error }

func (e unreadError) Error() string {
	if !errors.Is(e.error, context.DeadlineExceeded) {
		return "the locks were not read: " + e.error.Error()
	}
	return "no answer: check that it runs, that it has a majority, and that this machine reaches it"
}

func (e unreadError) Unwrap() error { return e.error }

// loaded waits until the copy is loaded.
func (s *Store) loaded(ctx context.Context) (state, error) {
	now, err := s.mirror.await(ctx, func(now *state) bool { return now.loaded })
	if err != nil {
		return now, unreadError{err}
	}
	return now, nil
}

// alive waits for the copy, and begins a life if there is none.
func (s *Store) alive(ctx context.Context) error {
	now, err := s.loaded(ctx)
	if err != nil || !now.ailing() {
		return err
	}
	select {
	case s.writer <- struct{}{}:
		defer func() { <-s.writer }()
		return s.live(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// live does the same as alive, for a caller that is already in the writer's slot.
func (s *Store) live(ctx context.Context) error {
	for {
		now, err := s.loaded(ctx)
		if err != nil || !now.ailing() {
			return err
		}
		if again, err := s.conflict(ctx, &now, s.beginLife(ctx, &now)); !again && err != nil {
			return err
		}
	}
}

func (s *Store) beginLife(ctx context.Context, on *state) error {
	h := on.head
	if on.rawHead == "" { // so that no number is used twice
		h.last = time.Now().UnixMicro()
		h.first = h.last + 1
	}
	if on.gap {
		h.first, h.entry = h.last+1, "" // no row is sure
		s.opts.Logger.Warn("keys of the store were deleted, and not by fencelock: the locks are given up, nothing is granted for the longest TTL, and then tokens rise; find out who deletes keys there")
	} else if on.lost {
		s.opts.Logger.Warn("the store was restored, or has lost commits: nothing is granted for the longest TTL, and then tokens rise")
	}
	h.life, h.origin, h.young = rand.Text(), on.origin, on.rawHead == "" && !on.restored && !on.lost && !on.gap
	h.turns, h.wakes, h.wakeAll = nil, nil, false
	return s.put(ctx, on, h, nil, nil)
}

// commit commits the changes of a transaction.
func (s *Store) commit(ctx context.Context, t *tx, late string) error {
	h := t.on.head
	h.turns = s.turnsAfter(&t.on, late)
	if len(h.turns) > 0 {
		h.turns = append(h.turns, s.name)
	}
	h.wake(t.changes.Wakes)
	deleted, put := slices.Concat(t.changes.Deleted, t.Ended()), t.carried
	for _, row := range t.changes.Put {
		put = append(put, rowlog.Row{Key: row.Key, Row: *row.Row})
	}
	if len(deleted) == 0 && len(put) == 0 && len(t.changes.Wakes) == 0 && t.first == h.first {
		return s.put(ctx, &t.on, h, nil, nil)
	}
	h.first, h.last = t.first, h.last+1
	return s.put(ctx, &t.on, h, deleted, put)
}

// put makes h the head. It adds an entry to the log if h names a new last entry.
func (s *Store) put(ctx context.Context, on *state, h head, deleted []string, rows []rowlog.Row) error {
	h.commit = rand.Text()
	c := &Commit{Former: on.rawHead, Claim: cmp.Or(on.claim, s.claimed), From: on.head.first, First: h.first}
	if on.rawHead != "" && h.last != on.head.last {
		h.entry = h.commit
		c.Number, c.Value = h.last, (&transaction{h.commit, on.head.entry, deleted, s.mirror.left(rows)}).encode()
	}
	c.Head = h.encode()
	version, err := s.service.Commit(ctx, c)
	switch {
	case errors.As(err, new(*ConflictError)), errors.Is(err, replica.ErrTooLarge):
		return err
	case err != nil:
		return fmt.Errorf("commit: %w", err)
	}
	s.claimed = ""
	s.mirror.committed(version, c, h, deleted, rows)
	return nil
}
