package zkstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// Options tune a Store. The zero value of a field takes its default.
type Options struct {
	// Timeout bounds a transaction whose context has no deadline; default 2s.
	Timeout time.Duration
	// Patience is how long Open waits for a server that opens a session, and then for more of the log; default 10s.
	Patience time.Duration
	Logger   *slog.Logger // default discards

	sweep sweeping
	skew  func() int64 // added to what the leader's clock shows, in microseconds, for tests
	read  func()       // is called when the log was read, before the mirror is replaced, for tests
}

const (
	defaultTimeout  = 2 * time.Second
	defaultPatience = 10 * time.Second
	retryPause      = 20 * time.Millisecond
)

func (o Options) withDefaults() Options {
	defaultTo(&o.Timeout, defaultTimeout)
	defaultTo(&o.Patience, defaultPatience)
	defaultTo(&o.Logger, slog.New(slog.DiscardHandler))
	defaultTo(&o.sweep.rows, 5000)
	defaultTo(&o.sweep.pause, 100*time.Millisecond)
	defaultTo(&o.sweep.rest, 2*time.Second)
	return o
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Store is a replica.Store in ZooKeeper. Several, also of other processes, may share a
// path.
type Store struct {
	local  replica.Listeners // of this process
	topics topics

	session *session
	target  target
	opts    Options
	acl     []zk.ACL

	turn    chan struct{}    // one commit at a time
	reading chan struct{}    // one reader of the log at a time
	readers int              // how many entries it reads at once; whoever reads has it
	partial map[int64]*entry // what it has read of a log that is not whole yet; the same
	length  int              // of that log

	mu        sync.Mutex
	mirror    *mirror // nil until it is read
	clock     clock
	step      int64 // a jump of the leader's clock that is to be taken out
	advanced  chan struct{}
	lost      bool // the log is without an entry that this server has seen
	yield     bool // another server has made a claim
	contended bool // this one has

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	done sync.WaitGroup
}

var _ replica.Store = (*Store)(nil)

// Open connects, makes the path if it is not there, and reads what is in it. The error
// says what to do, and never contains the URL. Nothing is changed where the path holds
// something else, or the user has too few rights.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	t, err := parse(url)
	if err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	if _, err := checkVersions(t.hosts); err != nil {
		return nil, err
	}
	s := &Store{
		target: t, opts: opts, acl: zk.WorldACL(zk.PermAll), clock: newClock(),
		turn: make(chan struct{}, 1), reading: make(chan struct{}, 1), readers: readers, advanced: make(chan struct{}),
	}
	if t.user != "" {
		s.acl = zk.AuthACL(zk.PermAll)
	}
	if s.session, err = openSession(ctx, t, opts.Timeout/2); err != nil {
		return nil, err
	}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.prepare(ctx); err != nil {
		s.stop()
		s.session.close()
		return nil, s.explained(err)
	}
	s.done.Go(s.follow)
	s.done.Go(s.sweep)
	return s, nil
}

// Found is what Look sees.
type Found struct {
	Versions  string // of the servers that say it
	Servers   int    // that the URL names
	Protected bool   // by a user and a password
}

// Look connects and looks at the path, and changes nothing. Its errors are those of Open,
// but for rights that are not needed to read.
func Look(ctx context.Context, url string) (found Found, err error) {
	t, err := parse(url)
	if err != nil {
		return found, err
	}
	versions, err := checkVersions(t.hosts)
	if err != nil {
		return found, err
	}
	s := &Store{target: t, opts: Options{}.withDefaults()}
	s.opts.Patience /= 3
	if s.session, err = openSession(ctx, t, s.opts.Timeout/2); err != nil {
		return found, err
	}
	defer s.session.close()
	ctx, cancel := context.WithTimeout(ctx, s.opts.Patience)
	defer cancel()
	if _, _, err = s.head(ctx); errors.Is(err, zk.ErrNoNode) {
		_, err = s.look(ctx)
	}
	if err != nil {
		return found, s.explained(err)
	}
	return Found{Versions: versions, Servers: len(t.hosts), Protected: t.user != ""}, nil
}

// prepare waits for the ensemble, makes the path or checks it, and reads the log.
func (s *Store) prepare(ctx context.Context) error {
	return rowlog.Patiently(ctx, s.opts.Patience, s.opts.Logger, func() (int, int) { return len(s.partial), s.length }, s.tryPrepare)
}

func (s *Store) tryPrepare(ctx context.Context) error {
	for {
		err := s.make(ctx)
		if err == nil {
			err = s.fits(ctx)
		}
		if err == nil {
			err = s.View(ctx, func(replica.Tx) error { return nil })
		}
		if err == nil || !passing(err) || !pause(ctx, retryPause) {
			return err
		}
	}
}

// fits refuses servers that take no request as large as a commit may be: they would close
// the connection whenever one is. It sends one that changes nothing. One that does not get
// through in time proves nothing.
func (s *Store) fits(ctx context.Context) error {
	const none = math.MaxInt32 // a version that there is not
	for range 2 {              // else the connection was closed for another reason
		_, err := call(ctx, s.session, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(s.path("clock"), make([]byte, maxRequest), none) })
		if errors.Is(err, zk.ErrBadVersion) || errors.Is(err, errSlow) {
			return nil
		}
		if !errors.Is(err, zk.ErrConnectionClosed) {
			return err
		}
		if _, err := s.get(ctx, s.path("clock")); err != nil {
			return err
		}
	}
	return errBuffer
}

// Young tells whether the log never lost an entry. Then a store that holds nothing never
// held anything.
func (s *Store) Young() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mirror.generation == 1
}

// Place names the servers and the path.
func (s *Store) Place() string { return strings.Join(s.target.hosts, ",") + s.target.path }

// Close ends the session.
func (s *Store) Close() error {
	s.stop()
	s.done.Wait()
	s.session.close()
	return nil
}

// Listen calls w for the server's tickets until ctx ends; see replica.Store.
func (s *Store) Listen(ctx context.Context, server string, w node.Listener) {
	s.local.Listen(ctx, server, w)
}

// Update runs fn in a transaction that writes; see replica.Store.
func (s *Store) Update(ctx context.Context, fn func(replica.Tx) error) error {
	return s.update(ctx, func(t *tx) error { return fn(t) })
}

func (s *Store) update(ctx context.Context, fn func(*tx) error) error {
	ctx, cancel := replica.Limit(ctx, s.opts.Timeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	for lost := 0; ; lost++ {
		if err := s.lock(ctx); err != nil {
			return err
		}
		a, failed := s.attempt(fn)
		s.mu.Unlock()
		if a.entry == nil {
			// It stands only if it has seen all that was committed.
			newest, err := s.confirm(ctx)
			switch {
			case err != nil:
				return err
			case newest:
				return failed
			}
			continue
		}
		if lost == claimAfter {
			s.claim(ctx)
		}
		committed, err := s.commit(ctx, a)
		if committed || err != nil {
			s.giveWay(ctx)
			return err
		}
	}
}

// View runs fn on what was committed when View began, or later; see replica.Store.
func (s *Store) View(ctx context.Context, fn func(replica.Tx) error) error {
	ctx, cancel := replica.Limit(ctx, s.opts.Timeout)
	defer cancel()
	if err := s.lock(ctx); err != nil {
		return err
	}
	s.mu.Unlock()
	if _, err := s.confirm(ctx); err != nil {
		return err
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	low, high := s.clock.now(s.mirror.correction)
	return fn(newTx(s.mirror, low, high))
}

// attempt is a transaction that was run and may be committed.
type attempt struct {
	entry   *entry // nil if it changes nothing
	removed []rowlog.Entry
	first   int64 // of removed
}

// attempt runs fn over the mirror. What it changes is to be committed unless it failed.
// The caller has s.mu.
func (s *Store) attempt(fn func(*tx) error) (attempt, error) {
	low, high := s.clock.now(s.mirror.correction)
	t := newTx(s.mirror, low, high)
	if err := fn(t); err != nil {
		return attempt{}, err
	}
	e := t.entry()
	if e == nil {
		return attempt{}, nil
	}
	return s.attemptOf(t, e), nil
}

// attemptOf completes an entry that is to be the next one. The caller has s.mu.
func (s *Store) attemptOf(t *tx, e *entry) attempt {
	a := attempt{entry: e, first: s.mirror.first}
	var carried []rowlog.Row
	a.removed, carried = s.mirror.Carry(s.budget(e), func(row rowlog.Row) bool {
		_, own := t.Writes[row.Key]
		return !own && !e.purge && row.Ends > t.low
	})
	e.puts = append(e.puts, carried...)
	e.header, e.previous, e.id = s.mirror.header, s.mirror.id, newID()
	e.first += int64(len(a.removed))
	e.last++
	return a
}

func (*Store) budget(e *entry) int {
	bytes := rowlog.CarryBytes
	for _, row := range e.puts {
		bytes += 2 * rowlog.Size(row.Key, row.Value)
	}
	return min(bytes, maxInline/2)
}

// lock locks s.mu once the mirror and the clock can be relied on: the log was read, no
// entry of it was lost, and the leader's clock runs as before.
func (s *Store) lock(ctx context.Context) error {
	for {
		s.mu.Lock()
		loaded, known, wrong := s.mirror != nil, s.clock.known, s.lost || s.step != 0
		if loaded && known && !wrong {
			return nil
		}
		s.mu.Unlock()
		var err error
		switch {
		case !loaded:
			err = s.begin(ctx)
		case wrong:
			err = s.correct(ctx)
		default:
			_, err = s.confirm(ctx)
		}
		if err != nil && (!passing(err) || !pause(ctx, retryPause)) {
			return err
		}
	}
}

// learn takes a reading of the leader's clock. The caller has s.mu.
func (s *Store) learn(sent int64, stat *zk.Stat) {
	s.step = s.clock.take(s.shown(sent, stat))
}

func (s *Store) shown(sent int64, stat *zk.Stat) reading {
	r := reading{sent: sent, received: s.clock.mono(), shown: stat.Mtime * 1000}
	if s.opts.skew != nil {
		r.shown += s.opts.skew()
	}
	return r
}

// correct commits, for all servers, what this one found wrong: a log without an entry
// that was there is another incarnation, and a jump of the leader's clock is taken out of
// the rows' time. If another server was first, the caller looks again.
func (s *Store) correct(ctx context.Context) error {
	s.mu.Lock()
	a := s.attemptOf(newTx(s.mirror, 0, 0), &entry{})
	if s.lost {
		s.opts.Logger.Warn("the store was restored, or has lost commits: nothing is granted for the longest TTL, and then tokens rise")
		a.entry.incarnation, a.entry.generation = newID(), a.entry.generation+1
	}
	a.entry.correction += s.step
	wrong := s.lost || s.step != 0
	s.mu.Unlock()
	if !wrong { // another goroutine was first
		return nil
	}
	_, err := s.commit(ctx, a)
	return err
}

// confirm makes the leader confirm that nothing was committed since what the mirror has.
// If there was, it reads that: the mirror is then as new as if it had been confirmed.
func (s *Store) confirm(ctx context.Context) (newest bool, err error) {
	for {
		s.mu.Lock()
		h, sent := s.mirror.header, s.clock.mono()
		s.mu.Unlock()
		stat, err := s.tick(ctx, h)
		switch {
		case err == nil:
			s.mu.Lock()
			s.learn(sent, stat)
			s.mu.Unlock()
			return true, nil
		case isConflict(err):
			return false, s.catchUp(ctx, h.id)
		case !passing(err) || !pause(ctx, retryPause):
			return false, err
		}
	}
}

// tick makes the leader show its clock, if the entry of that header is the last.
func (s *Store) tick(ctx context.Context, h header) (*zk.Stat, error) {
	results, err := s.multi(ctx,
		&zk.CheckVersionRequest{Path: s.headPath(h.id), Version: -1},
		&zk.SetDataRequest{Path: s.path("clock"), Data: h.encode(), Version: -1})
	if err != nil {
		return nil, err
	}
	return results[1].Stat, nil
}

func (s *Store) path(parts ...string) string {
	return s.target.path + "/" + strings.Join(parts, "/")
}

func (s *Store) multi(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	results, err := call(ctx, s.session, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
	if err == nil && len(results) != len(ops) {
		return nil, fmt.Errorf("the server answers %d operations of %d", len(results), len(ops))
	}
	return results, err
}
