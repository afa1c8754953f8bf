package etcdstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"
)

// conn is a client that talks to one member at a time, and to the next one after a
// request that was not answered. A client with all members would send every third
// request to one that is frozen, and the protocol's own keep-alive takes ten seconds to
// find that out.
type conn struct {
	client  *clientv3.Client
	login   *login
	target  *target
	hosts   []string
	attempt time.Duration // a request to one member

	mu      sync.Mutex
	current int
	left    chan struct{} // is closed when another member is current
}

func dial(t *target, attempt time.Duration) (*conn, error) {
	c := &conn{login: &login{user: t.user}, target: t, hosts: t.hosts, attempt: attempt, left: make(chan struct{})}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: t.hosts[:1], TLS: t.tls,
		DialTimeout: attempt, Logger: zap.NewNop(), DialOptions: c.login.options(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: attempt,
	})
	if err != nil {
		return nil, err
	}
	c.client = client
	c.login.ask = func(ctx context.Context) (string, error) { return c.authenticate(ctx, t.user, t.password) }
	return c, nil
}

// authenticate asks the current member for a token.
func (c *conn) authenticate(ctx context.Context, user, password string) (token string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.client.Ctx(), cancel)() //nolint:contextcheck // it ends with the connection, too
	member := c.member()
	resp, err := c.client.Authenticate(ctx, user, password)
	if err != nil {
		if unanswered(err) {
			c.leave(member)
		}
		return "", err
	}
	return resp.Token, nil
}

// next goes to the next member.
func (c *conn) next() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = (c.current + 1) % len(c.hosts)
	c.client.SetEndpoints(c.hosts[c.current])
	close(c.left)
	c.left = make(chan struct{})
}

// leave goes to the next member unless another request did.
func (c *conn) leave(member int) {
	c.mu.Lock()
	stay := c.current != member
	c.mu.Unlock()
	if !stay {
		c.next()
	}
}

// watch watches keys at the current member until ctx ends, cancel is called or another
// member is current. The client would share one stream among all watches, and keep it: a
// member that is frozen closes none, and the protocol's keep-alive takes eleven seconds.
func (c *conn) watch(ctx context.Context, key string, options ...clientv3.OpOption) (news clientv3.WatchChan, cancel func()) {
	c.mu.Lock()
	left := c.left
	c.mu.Unlock()
	own := metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "watch", rand.Text()) // makes a stream of its own
	own, cancel = context.WithCancel(own)
	go func() {
		defer cancel()
		select {
		case <-left:
		case <-own.Done():
		}
	}()
	return c.client.Watch(own, key, options...), cancel
}

func (c *conn) member() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// try sends a request to one member, and again after a login if etcd asks for one.
func (c *conn) try(ctx context.Context, send func(context.Context, *clientv3.Client) error) error {
	return c.tryFor(ctx, c.attempt, send)
}

// tryFor is try with another limit than usual for the member's answer.
func (c *conn) tryFor(ctx context.Context, attempt time.Duration, send func(context.Context, *clientv3.Client) error) error {
	for {
		if err := c.login.await(ctx); err != nil {
			return err
		}
		if err := c.send(ctx, attempt, send); !errors.Is(err, errToken) {
			return c.target.permitted(err)
		}
	}
}

func (c *conn) send(ctx context.Context, attempt time.Duration, send func(context.Context, *clientv3.Client) error) error {
	member := c.member()
	limited, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	err := send(limited, c.client)
	if unanswered(err) {
		c.leave(member)
	}
	return err
}

// get reads keys, from one member after the other.
func (c *conn) get(ctx context.Context, key string, options ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	for {
		err = c.try(ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
			resp, err = client.Get(ctx, key, options...)
			return err
		})
		if !unanswered(err) || !pause(ctx, retryPause) {
			return resp, err
		}
	}
}

const retryPause = 20 * time.Millisecond

// pause waits a little; it returns false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// origin is how data are recognised.
type origin struct {
	cluster uint64
	// ahead is how far the raft index is ahead of the revision: at least, and at most.
	atLeast, atMost int64
}

func (o origin) String() string { return fmt.Sprintf("%016x/%d", o.cluster, o.atLeast) }

// restored: the raft log is shorter than the data's history.
func (o origin) restored() bool { return o.atMost < 0 }

var errOrigin = errors.New("the head's origin cannot be read")

// follows tells whether commits may be lost since the text was written.
func (o origin) follows(text string) (lost bool, err error) {
	var then origin
	if _, err := fmt.Sscanf(text, "%x/%d", &then.cluster, &then.atLeast); err != nil {
		return false, errOrigin
	}
	return o.cluster != then.cluster || o.atMost < then.atLeast, nil
}

// origin asks the member that answered a linearizable read, since one that lags behind
// is less ahead.
func (c *conn) origin(ctx context.Context, member uint64) (o origin, err error) {
	first, err := c.status(ctx, member)
	if err != nil {
		return o, err
	}
	second, err := c.status(ctx, member)
	if err != nil {
		return o, err
	}
	return origin{
		cluster: second.Header.ClusterId,
		atLeast: int64(first.RaftAppliedIndex) - second.Header.Revision,
		atMost:  int64(second.RaftIndex) - first.Header.Revision,
	}, nil
}

var errNoMember = errors.New("the member that responded earlier does not respond now")

// status asks a member for its state.
func (c *conn) status(ctx context.Context, member uint64) (found *clientv3.StatusResponse, err error) {
	err = errNoMember
	now := c.member()
	for i := range c.hosts {
		limited, cancel := context.WithTimeout(ctx, c.attempt)
		status, failed := c.client.Status(limited, c.hosts[(now+i)%len(c.hosts)])
		cancel()
		switch {
		case failed != nil:
			err = failed
		case status.Header.MemberId == member:
			return status, nil
		}
	}
	return nil, err
}
