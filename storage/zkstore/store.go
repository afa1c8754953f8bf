package zkstore

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/optimistic"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// Options tune a Store. The zero value of a field takes its default.
type Options struct {
	// Timeout bounds a transaction whose context has no deadline; default 2s.
	Timeout time.Duration
	// Patience is how long Open waits for a server that opens a session, and then for more of the log; default 10s.
	Patience time.Duration
	Logger   *slog.Logger // default discards
}

const (
	defaultTimeout  = 2 * time.Second
	defaultPatience = 10 * time.Second
	retryPause      = 20 * time.Millisecond
	lastWords       = time.Second // for what Close sends
)

func (o Options) withDefaults() Options {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Store is a replica.Store in ZooKeeper. Several, also of other processes, may share a
// path.
type Store struct {
	*optimistic.Store

	service *service
	logger  *slog.Logger
	told    told
	young   bool
}

var _ replica.Store = (*Store)(nil)

// Open connects, makes the path if it is not there, and reads what is in it. The error
// says what to do, and never contains the URL. Nothing is changed where the path holds
// something else, or the user has too few rights.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	s, _, err := connect(ctx, url, opts)
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, opts.Patience)
	defer cancel()
	if err := patiently(waiting, func() error { return s.prepare(waiting) }); err != nil {
		s.close()
		return nil, s.explained(err, opts.Patience)
	}
	store := &Store{Store: optimistic.New(s, optimistic.Options{Timeout: opts.Timeout, Logger: opts.Logger}), service: s, logger: opts.Logger}
	err = rowlog.Patiently(ctx, opts.Patience, opts.Logger, s.progress, func(ctx context.Context) (err error) {
		store.young, err = store.Store.Young(ctx)
		return err
	})
	if err != nil {
		return nil, errors.Join(s.explained(err, opts.Patience), store.Close()) //nolint:contextcheck // ctx may be over
	}
	return store, nil
}

func (s *service) prepare(ctx context.Context) error {
	if err := s.make(ctx); err != nil {
		return err
	}
	return s.takesLarge(ctx)
}

// connect opens a session with servers that are new enough.
func connect(ctx context.Context, url string, opts Options) (s *service, versions string, err error) {
	t, err := parse(url)
	if err != nil {
		return nil, "", err
	}
	if versions, err = checkVersions(t.hosts); err != nil {
		return nil, "", err
	}
	session, err := openSession(ctx, t, opts.Timeout/2)
	if err != nil {
		return nil, "", err
	}
	return newService(ctx, session, t), versions, nil
}

// patiently repeats what fails for a reason that passes, until ctx ends.
func patiently(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !passing(err) || !pause(ctx, retryPause) {
			return err
		}
	}
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
	opts := Options{}.withDefaults()
	opts.Patience /= 3
	s, versions, err := connect(ctx, url, opts)
	if err != nil {
		return found, err
	}
	defer s.close()
	waiting, cancel := context.WithTimeout(ctx, opts.Patience)
	defer cancel()
	if err := patiently(waiting, func() error { return s.fit(waiting) }); err != nil {
		return found, s.explained(err, opts.Patience)
	}
	return Found{Versions: versions, Servers: len(s.target.hosts), Protected: s.target.user != ""}, nil
}

// takesLarge refuses servers that take no request as large as a commit may be: they would
// close the connection whenever one is. It sends one that changes nothing. One that does not
// get through in time proves nothing.
func (s *service) takesLarge(ctx context.Context) error {
	const none = math.MaxInt32 // a version that there is not
	for range 2 {              // else the connection was closed for another reason
		_, err := call(ctx, s.session, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(s.path(logName), make([]byte, maxRequest), none) })
		if errors.Is(err, zk.ErrBadVersion) || errors.Is(err, errSlow) {
			return nil
		}
		if !errors.Is(err, zk.ErrConnectionClosed) {
			return err
		}
		if _, err := s.data(ctx, s.path(logName)); err != nil {
			return err
		}
	}
	return errBuffer
}

// Young tells whether the rows never held anything that can have been lost. Then a store
// that holds nothing never held anything.
func (s *Store) Young() bool { return s.young }

// Place names the servers and the path.
func (s *Store) Place() string {
	return strings.Join(s.service.target.hosts, ",") + s.service.target.path
}

// Close stops to follow the rows and ends the session.
func (s *Store) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	_, err := call(ctx, s.service.session, func(c *zk.Conn) (struct{}, error) { return struct{}{}, s.service.confirm(c, s.service.newest()) })
	if err != nil {
		s.logger.Debug("no reading of the clock is left: leases last longer for servers that start", "error", err)
	}
	err = s.Store.Close()
	s.service.close()
	return err
}
