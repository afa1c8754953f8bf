// Package peer puts one face on everything that is compared: fencelock over
// HTTP and in-process, the Redis lock libraries, etcd and Postgres.
package peer

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/bench/internal/rawhttp"
)

// ErrBusy says that somebody else holds the resource.
var ErrBusy = errors.New("held by another")

// Claim asks for a resource.
type Claim struct {
	Resource string
	TTL      time.Duration
	Wait     time.Duration // 0 tries once
}

// Peer is one contender.
type Peer interface {
	// Name is short and names it in tables and flags.
	Name() string
	// Open makes what one worker uses.
	Open(ctx context.Context) (Session, error)
	// Close ends what the sessions share.
	Close() error
}

// Session is what one worker uses; it holds at most one resource.
type Session interface {
	// Acquire takes the resource. Errors: ErrBusy, or what went wrong.
	Acquire(ctx context.Context, c Claim) error
	// Use does what is done while holding: extending, or a guarded write.
	Use(ctx context.Context) error
	// Release gives it back.
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

// Dialect writes one client's requests and reads their answers.
type Dialect interface {
	// Setup prepares the client, Teardown takes back what that left.
	Setup(ctx context.Context, c *rawhttp.Conn) error
	Teardown(ctx context.Context, c *rawhttp.Conn) error

	Acquire(buf []byte, c Claim) []byte
	// Acquired remembers the grant. Errors: ErrBusy, or what the answer says.
	Acquired(resp *rawhttp.Response) error
	Use(buf []byte) []byte
	Used(resp *rawhttp.Response) error
	Release(buf []byte) []byte
	Released(resp *rawhttp.Response) error
}

// errNoUse is what a peer says that has nothing to do while holding.
var errNoUse = errors.New("this peer cannot do that")

// spoken is a Session that speaks a dialect over a connection of its own.
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

// session is an interface without a value after an error.
func session(s *spoken, err error) (Session, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *spoken) Acquire(ctx context.Context, c Claim) error {
	return s.exchange(ctx, s.dialect.Acquire(s.conn.Buffer(), c), s.dialect.Acquired)
}

func (s *spoken) Use(ctx context.Context) error {
	return s.exchange(ctx, s.dialect.Use(s.conn.Buffer()), s.dialect.Used)
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
