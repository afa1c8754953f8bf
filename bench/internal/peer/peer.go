// Package peer is one interface to all contenders: fencelock over HTTP and in-process, the Redis
// lock libraries, etcd, ZooKeeper and Postgres.
package peer

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/bench/internal/rawhttp"
)

// ErrBusy says that another worker holds the resource.
var ErrBusy = errors.New("held by another")

// errGone says that the lock was not held any more when it was released.
var errGone = errors.New("lock is gone")

// Claim asks for a resource.
type Claim struct {
	Resource string
	TTL      time.Duration
	Wait     time.Duration // 0 tries once
}

// Peer is one contender.
type Peer interface {
	// Name returns the short name for tables and flags.
	Name() string
	// Open makes the session of one worker.
	Open(ctx context.Context) (Session, error)
	// Close closes what the sessions share.
	Close() error
}

// Session belongs to one worker; it holds at most one resource.
type Session interface {
	// Acquire acquires the resource. The error is ErrBusy if another worker holds it.
	Acquire(ctx context.Context, c Claim) error
	// Release releases the resource.
	Release(ctx context.Context) error
	Close() error
}

// Remote is a peer that is reached by HTTP/1.1, so that one thread can drive
// any number of its clients.
type Remote interface {
	Peer
	Addrs() []string // host:port; clients are spread over them
	Dialect() Dialect
}

// Dialect writes one client's requests and reads the responses.
type Dialect interface {
	// Setup prepares the client on the server; Teardown undoes that.
	Setup(ctx context.Context, c *rawhttp.Conn) error
	Teardown(ctx context.Context, c *rawhttp.Conn) error

	Acquire(buf []byte, c Claim) []byte
	// Acquired remembers the grant. It returns ErrBusy, or an error that quotes the response.
	Acquired(resp *rawhttp.Response) error
	Release(buf []byte) []byte
	Released(resp *rawhttp.Response) error
}

// spoken is a Session that uses a dialect over its own connection.
type spoken struct {
	dialect Dialect
	conn    *rawhttp.Conn
}

// speak opens a Session for a dialect.
func speak(ctx context.Context, addr string, d Dialect) (*spoken, error) {
	conn, err := rawhttp.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if err := d.Setup(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &spoken{dialect: d, conn: conn}, nil
}

// session returns a nil interface after an error.
func session(s *spoken, err error) (Session, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *spoken) Acquire(ctx context.Context, c Claim) error {
	return s.exchange(ctx, s.dialect.Acquire(s.conn.Buffer(), c), s.dialect.Acquired)
}

func (s *spoken) Release(ctx context.Context) error {
	return s.exchange(ctx, s.dialect.Release(s.conn.Buffer()), s.dialect.Released)
}

func (s *spoken) exchange(ctx context.Context, request []byte, read func(*rawhttp.Response) error) error {
	resp, err := s.conn.Do(ctx, request)
	if err != nil {
		return err
	}
	return read(resp)
}

func (s *spoken) Close() error { return s.conn.Close() }
