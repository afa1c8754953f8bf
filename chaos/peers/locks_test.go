package peers

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// ttl is the TTL of every lease.
const ttl = 4 * time.Second

// lock is one of the contenders.
type lock interface {
	// acquire tries once.
	acquire(ctx context.Context, resource string) (lease, error)
}

// lease is what the holder of a lease knows of it.
type lease interface {
	token() int64 // 0 if the lock has none
	until() time.Time
	extend(ctx context.Context) error
	release(ctx context.Context) error
	// write is what a careful client of this lock does to storage: with the
	// token where there is one and the storage checks it.
	write(ctx context.Context, value string) error
}

// records is storage that does not check tokens, as most storage does not.
type records map[string]string

// --- fencelock, over HTTP ---

type fencelock struct{ url string }

type fenced struct {
	lock  *fencelock
	sent  time.Time
	Name  string `json:"resource"`
	ID    string `json:"lease_id"`
	Token int64  `json:"fencing_token"`
	Valid int64  `json:"validity_ms"`
}

func (f *fencelock) call(ctx context.Context, method, path, body string, token int64, into any, header ...string) error {
	req, err := http.NewRequestWithContext(ctx, method, f.url+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	if token > 0 {
		req.Header.Set("Fencing-Token", strconv.FormatInt(token, 10))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%d %s", resp.StatusCode, text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

func (f *fencelock) acquire(ctx context.Context, resource string) (lease, error) {
	l := &fenced{lock: f, sent: time.Now()}
	body := fmt.Sprintf(`{"resource":%q,"ttl_ms":%d}`, resource, ttl.Milliseconds())
	if err := f.call(ctx, http.MethodPost, "/locks", body, 0, l); err != nil {
		return nil, err
	}
	// The first read is a claim, which carries the token.
	return l, f.call(ctx, http.MethodPost, "/guarded/"+url.PathEscape(resource), "", l.Token, nil)
}

func (l *fenced) token() int64     { return l.Token }
func (l *fenced) until() time.Time { return l.sent.Add(time.Duration(l.Valid) * time.Millisecond) }

func (l *fenced) extend(ctx context.Context) error {
	return l.lock.call(ctx, http.MethodPost, "/leases/current/extend", `{}`, 0, nil, "Fencelock-Lease: "+l.ID)
}

func (l *fenced) release(ctx context.Context) error {
	return l.lock.call(ctx, http.MethodDelete, "/leases/current", "", 0, nil, "Fencelock-Lease: "+l.ID)
}

func (l *fenced) write(ctx context.Context, value string) error {
	return l.lock.call(ctx, http.MethodPut, "/guarded/"+url.PathEscape(l.Name), strconv.Quote(value), l.Token, nil)
}

// --- redsync, on all nodes ---

type redsyncLock struct {
	sync    *redsync.Redsync
	options []redsync.Option
	stored  records
}

func newRedsync(clients []*redis.Client, options ...redsync.Option) *redsyncLock {
	pools := make([]redsyncredis.Pool, 0, len(clients))
	for _, c := range clients {
		pools = append(pools, goredis.NewPool(c))
	}
	return &redsyncLock{sync: redsync.New(pools...), options: options, stored: records{}}
}

type redsyncLease struct {
	lock  *redsyncLock
	name  string
	mutex *redsync.Mutex
}

func (r *redsyncLock) acquire(ctx context.Context, resource string) (lease, error) {
	options := append([]redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(1)}, r.options...)
	l := &redsyncLease{lock: r, name: resource, mutex: r.sync.NewMutex(resource, options...)}
	return l, l.mutex.TryLockContext(ctx)
}

func (l *redsyncLease) token() int64     { return 0 }
func (l *redsyncLease) until() time.Time { return l.mutex.Until() }

func (l *redsyncLease) extend(ctx context.Context) error {
	ok, err := l.mutex.ExtendContext(ctx)
	if err == nil && !ok {
		err = errors.New("not extended")
	}
	return err
}

func (l *redsyncLease) release(ctx context.Context) error {
	_, err := l.mutex.UnlockContext(ctx)
	return err
}

func (l *redsyncLease) write(_ context.Context, value string) error {
	l.lock.stored[l.name] = value
	return nil
}

// --- SET NX PX on one node ---

type setnx struct {
	client *redis.Client
	stored records
}

type setnxLease struct {
	lock        *setnx
	name, value string
	end         time.Time
}

func (s *setnx) acquire(ctx context.Context, resource string) (lease, error) {
	l := &setnxLease{lock: s, name: resource, value: rand.Text(), end: time.Now().Add(ttl)}
	err := s.client.SetArgs(ctx, resource, l.value, redis.SetArgs{Mode: "NX", TTL: ttl}).Err()
	return l, err
}

func (l *setnxLease) token() int64     { return 0 }
func (l *setnxLease) until() time.Time { return l.end }

// ifMine does something to the key if it still has this lease's value.
func (l *setnxLease) ifMine(ctx context.Context, command string, args ...any) error {
	script := `if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call(ARGV[2], KEYS[1], unpack(ARGV, 3)) end return 0`
	done, err := l.lock.client.Eval(ctx, script, []string{l.name}, append([]any{l.value, command}, args...)...).Int()
	if err == nil && done == 0 {
		err = errors.New("not held")
	}
	return err
}

func (l *setnxLease) extend(ctx context.Context) error {
	return l.ifMine(ctx, "pexpire", ttl.Milliseconds())
}
func (l *setnxLease) release(ctx context.Context) error { return l.ifMine(ctx, "del") }

func (l *setnxLease) write(_ context.Context, value string) error {
	l.lock.stored[l.name] = value
	return nil
}

// --- etcd's own recipe ---

type etcdLock struct {
	client *clientv3.Client
	stored records
}

type etcdLease struct {
	lock    *etcdLock
	name    string
	session *concurrency.Session
	mutex   *concurrency.Mutex
	end     time.Time
}

func (e *etcdLock) acquire(ctx context.Context, resource string) (lease, error) {
	began := time.Now()
	session, err := concurrency.NewSession(e.client, concurrency.WithTTL(int(ttl/time.Second)), concurrency.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	session.Orphan() // its holder is paused: nobody keeps the session alive
	l := &etcdLease{
		lock: e, name: resource, session: session, end: began.Add(ttl),
		mutex: concurrency.NewMutex(session, resource),
	}
	return l, l.mutex.TryLock(ctx)
}

// token returns the revision at which the holder came: it is larger for each later holder.
func (l *etcdLease) token() int64     { return l.mutex.Header().Revision }
func (l *etcdLease) until() time.Time { return l.end }

func (l *etcdLease) extend(ctx context.Context) error {
	_, err := l.lock.client.KeepAliveOnce(ctx, l.session.Lease())
	return err
}
func (l *etcdLease) release(ctx context.Context) error { return l.mutex.Unlock(ctx) }

func (l *etcdLease) write(_ context.Context, value string) error {
	l.lock.stored[l.name] = value
	return nil
}
