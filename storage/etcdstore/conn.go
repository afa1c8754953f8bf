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
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/metadata"

	"github.com/fencelock/fencelock/internal/pause"
)

// conn is a client that talks to one member at a time. It changes to the next member after a request without a
// response. A client with all members would send every third request to a frozen member, and the protocol's
// own keep-alive needs ten seconds to detect that.
type conn struct {
	client  *clientv3.Client
	login   *login
	target  *target
	hosts   []string
	attempt time.Duration // time limit of a request to one member

	mu      sync.Mutex
	current int
	left    chan struct{} // closed when another member becomes current
}

func dial(t *target, attempt time.Duration) (*conn, error) {
	c := &conn{login: &login{credentials: func() (string, string) { return t.user, t.password }, needed: t.user != ""}, target: t, hosts: t.hosts, attempt: attempt, left: make(chan struct{})}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: t.hosts[:1], TLS: t.tls,
		DialTimeout: attempt, Logger: zap.NewNop(), DialOptions: append(c.login.options(), grpc.WithConnectParams(reconnects(attempt))),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: attempt,
	})
	if err != nil {
		return nil, err
	}
	c.client = client
	c.login.ask = c.authenticate
	return c, nil
}

// reconnects sets the pauses between attempts to connect to a member. gRPC's own pauses grow to two minutes,
// so a member would stay unused for up to half as long again as it was down.
func reconnects(attempt time.Duration) grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
		MinConnectTimeout: attempt,
	}
}

// authenticate logs in at the current member and returns the token.
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

// next changes to the next member.
func (c *conn) next() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = (c.current + 1) % len(c.hosts)
	c.client.SetEndpoints(c.hosts[c.current])
	close(c.left)
	c.left = make(chan struct{})
}

// leave changes to the next member, unless another request has already left this one.
func (c *conn) leave(member int) {
	c.mu.Lock()
	stay := c.current != member
	c.mu.Unlock()
	if !stay {
		c.next()
	}
}

// watch watches keys at the current member until ctx ends, cancel is called or another member becomes current.
// By default the client shares one stream among all watches and keeps it. A frozen member does not close that
// stream, and the protocol's keep-alive takes eleven seconds.
func (c *conn) watch(ctx context.Context, key string, options ...clientv3.OpOption) (news clientv3.WatchChan, cancel func()) {
	c.mu.Lock()
	left := c.left
	c.mu.Unlock()
	own := metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "watch", rand.Text()) // gives the watch a stream of its own
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

// try sends a request to one member. It repeats the request after a login if etcd demands one.
func (c *conn) try(ctx context.Context, send func(context.Context, *clientv3.Client) error) error {
	return c.tryFor(ctx, c.attempt, send)
}

// tryFor is try with a different limit for the member's response.
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

// get reads keys. It tries the members one after the other.
func (c *conn) get(ctx context.Context, key string, options ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	for {
		err = c.try(ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
			resp, err = client.Get(ctx, key, options...)
			return err
		})
		if !unanswered(err) || !pause.For(ctx, retryPause) {
			return resp, err
		}
	}
}

const retryPause = 20 * time.Millisecond

// origin identifies the data's history.
type origin struct {
	cluster uint64
	// atLeast and atMost bound how far the raft index is ahead of the revision.
	atLeast, atMost int64
}

func (o origin) String() string { return fmt.Sprintf("%016x/%d", o.cluster, o.atLeast) }

// restored reports that the raft log is shorter than the data's history.
func (o origin) restored() bool { return o.atMost < 0 }

var errOrigin = errors.New("the head's origin cannot be read")

// follows reports whether commits may have been lost since the text was written.
func (o origin) follows(text string) (lost bool, err error) {
	var then origin
	if _, err := fmt.Sscanf(text, "%x/%d", &then.cluster, &then.atLeast); err != nil {
		return false, errOrigin
	}
	return o.cluster != then.cluster || o.atMost < then.atLeast, nil
}

// origin reads the state of the member that served a linearizable read, because a member that lags behind
// shows a smaller distance.
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

// status returns a member's state.
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
