package peer

import (
	"context"
	"errors"

	goclient "github.com/fencelock/fencelock/client"
)

// Client is fencelock's Go client as applications use it: one for all workers of this process.
type Client struct {
	name  string
	locks *goclient.Client
}

// NewClient is for the server at addr.
func NewClient(name, addr string) (*Client, error) {
	locks, err := goclient.New([]string{"http://" + addr})
	return &Client{name, locks}, err
}

// NewSingleClient is such a client that sends no batches.
func NewSingleClient(name, addr string) (*Client, error) {
	locks, err := goclient.New([]string{"http://" + addr}, goclient.WithBatchAfter(-1))
	return &Client{name, locks}, err
}

// Name is how tables call it.
func (c *Client) Name() string { return c.name }

// Open makes a session, which is next to nothing.
func (c *Client) Open(context.Context) (Session, error) { return &clientSession{locks: c.locks}, nil }

// Close closes the connections.
func (c *Client) Close() error { return c.locks.Close(context.Background()) }

type clientSession struct {
	locks *goclient.Client
	lease *goclient.Lease
}

func (s *clientSession) Acquire(ctx context.Context, c Claim) (err error) {
	s.lease, err = s.locks.Acquire(ctx, c.Resource, goclient.TTL(c.TTL), goclient.Wait(c.Wait))
	if errors.Is(err, goclient.ErrHeld) {
		return ErrBusy
	}
	return err
}

func (s *clientSession) Use(ctx context.Context) error { return s.lease.Extend(ctx) }

func (s *clientSession) Release(ctx context.Context) error { return s.lease.Release(ctx) }

func (*clientSession) Close() error { return nil }
