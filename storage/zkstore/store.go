package zkstore

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/optimistic"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// Options tune a Store. The zero value of a field takes its default.
type Options struct {
	// Timeout bounds a transaction whose context has no deadline; default 2s.
	Timeout time.Duration
	// Patience is how long Open waits for a server that opens a session, and then for progress in reading the
	// log; default 10s.
	Patience time.Duration
	Logger   *slog.Logger // default discards
	// Credentials, if not nil, returns the user and the password of the moment, instead of those of
	// the URL, which must have some. A connection also has the earlier ones of this process, so that
	// what it makes can be read by servers that still have those. It must not block.
	Credentials func() (user, password string)
}

const (
	defaultTimeout  = 2 * time.Second
	defaultPatience = 10 * time.Second
	retryPause      = 20 * time.Millisecond
	vainPause       = 100 * time.Millisecond // after no server opened a session
	lastWords       = time.Second            // time limit for the requests of Close
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

// Store is a replica.Store in ZooKeeper. Several Stores, also in other processes, may share a path.
type Store struct {
	*optimistic.Store

	service *service
	logger  *slog.Logger
	told    told
	young   bool
}

var _ replica.Store = (*Store)(nil)

// Open connects, creates the path if it is missing, and reads its content. The error says what to do, and
// never contains the URL. Open changes nothing if the path holds something else, or if the user has too few
// rights.
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

// connect opens a session and checks that the servers are new enough.
func connect(ctx context.Context, url string, opts Options) (s *service, versions string, err error) {
	t, err := parse(url)
	if err != nil {
		return nil, "", err
	}
	if versions, err = checkVersions(t.hosts); err != nil {
		return nil, "", err
	}
	session, err := openSession(ctx, t, opts)
	if err != nil {
		return nil, "", err
	}
	return newService(ctx, session, t), versions, nil
}

// patiently repeats do while it fails for a temporary reason, until ctx ends.
func patiently(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !passing(err) || !pause.For(ctx, retryPause) {
			return err
		}
	}
}

// Found is the result of Look.
type Found struct {
	Versions  string // versions of the servers that report them
	Servers   int    // number of servers in the URL
	Protected bool   // whether the URL has a user and a password
}

// Look connects and inspects the path. It changes nothing. Its errors are those of Open, except that it does
// not need the right to write.
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

// takesLarge refuses servers that do not accept a request of a commit's maximum size: they would close the
// connection at every such commit. It sends one that changes nothing. A request that does not get through in
// time proves nothing.
func (s *service) takesLarge(ctx context.Context) error {
	const none = math.MaxInt32 // a version that does not exist
	for range 2 {              // twice, because the connection may close once for another reason
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

// Young reports whether it is certain that the rows never lost anything. Then an empty store was always empty.
func (s *Store) Young() bool { return s.young }

// Place names the servers and the path.
func (s *Store) Place() string {
	return strings.Join(s.service.target.hosts, ",") + s.service.target.path
}

// Close stops following the rows and ends the session.
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

// Admits returns the error of a path that the URL's user may not read. It returns nil where no
// server responds, and never shows the URL.
func Admits(ctx context.Context, url string) error {
	if _, err := Look(ctx, url); errors.Is(err, zk.ErrNoAuth) || errors.Is(err, errMalformedURL) {
		return err
	}
	return nil
}
