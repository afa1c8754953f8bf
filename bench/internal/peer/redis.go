package peer

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// poolSize is the maximum number of connections of a library to a node. The libraries can use
// more than their default, ten for each processor.
const poolSize = 64

func client(url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.PoolSize = poolSize
	return redis.NewClient(options), nil
}

// Redsync is redsync v4 over go-redis, in this process.
type Redsync struct {
	sync    *redsync.Redsync
	clients []*redis.Client
}

// NewRedsync returns a peer over the nodes.
func NewRedsync(urls []string) (*Redsync, error) {
	r := &Redsync{}
	pools := make([]syncredis.Pool, 0, len(urls))
	for _, url := range urls {
		c, err := client(url)
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		r.clients, pools = append(r.clients, c), append(pools, goredis.NewPool(c))
	}
	r.sync = redsync.New(pools...)
	return r, nil
}

// Name returns the name in tables.
func (*Redsync) Name() string { return "redsync" }

// Open makes a session.
func (r *Redsync) Open(context.Context) (Session, error) { return &redsyncSession{sync: r.sync}, nil }

// Close closes the connections.
func (r *Redsync) Close() error { return closeAll(r.clients) }

func closeAll(clients []*redis.Client) error {
	errs := make([]error, 0, len(clients))
	for _, c := range clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

type redsyncSession struct {
	sync  *redsync.Redsync
	mutex *redsync.Mutex
	ttl   time.Duration
}

func (s *redsyncSession) Acquire(ctx context.Context, c Claim) error {
	if s.mutex == nil || s.mutex.Name() != c.Resource || s.ttl != c.TTL {
		// More tries than the default 32, so that only the caller ends a wait.
		s.mutex = s.sync.NewMutex(c.Resource, redsync.WithExpiry(c.TTL), redsync.WithTries(1<<20))
		s.ttl = c.TTL
	}
	if c.Wait > 0 {
		return s.mutex.LockContext(ctx)
	}
	err := s.mutex.TryLockContext(ctx)
	if taken := new(redsync.ErrTaken); errors.As(err, &taken) {
		return ErrBusy
	}
	return err
}

// Release ignores an error if the lock was given back, because redsync reports one failed node of
// five as an error even if the quorum agreed.
func (s *redsyncSession) Release(ctx context.Context) error {
	ok, err := s.mutex.UnlockContext(ctx)
	if ok {
		return nil
	}
	return errors.Join(errGone, err)
}

func (*redsyncSession) Close() error { return nil }

// Redislock is bsm/redislock on one node.
type Redislock struct {
	client *redis.Client
	locks  *redislock.Client
}

// NewRedislock returns a peer over one node.
func NewRedislock(url string) (*Redislock, error) {
	c, err := client(url)
	if err != nil {
		return nil, err
	}
	return &Redislock{client: c, locks: redislock.New(c)}, nil
}

// Name returns the name in tables.
func (*Redislock) Name() string { return "redislock" }

// Open makes a session.
func (r *Redislock) Open(context.Context) (Session, error) {
	return &redislockSession{locks: r.locks}, nil
}

// Close closes the connections.
func (r *Redislock) Close() error { return r.client.Close() }

type redislockSession struct {
	locks *redislock.Client
	lock  *redislock.Lock
}

func (s *redislockSession) Acquire(ctx context.Context, c Claim) error {
	lock, err := s.locks.Obtain(ctx, c.Resource, c.TTL, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return ErrBusy
	}
	s.lock = lock
	return err
}

func (s *redislockSession) Release(ctx context.Context) error { return s.lock.Release(ctx) }

func (*redislockSession) Close() error { return nil }
