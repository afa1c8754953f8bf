package peer

import (
	"context"
	"errors"

	goclient "github.com/fencelock/fencelock/client"
)

// Client is fencelock's Go client as applications use it: all workers of this process share it.
type Client struct {
	name  string
	locks *goclient.Client
}

// NewClient returns a client of the server at addr.
func NewClient(name, addr string) (*Client, error) {
	locks, err := goclient.New([]string{"http://" + addr})
	return &Client{name, locks}, err
}

// NewSingleClient returns a client that sends no batches.
func NewSingleClient(name, addr string) (*Client, error) {
	locks, err := goclient.New([]string{"http://" + addr}, goclient.WithBatchAfter(-1))
	return &Client{name, locks}, err
}

// Name returns the name in tables.
func (c *Client) Name() string { return c.name }

// Open makes a session, which costs next to nothing.
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

func (s *clientSession) Release(ctx context.Context) error { return s.lease.Release(ctx) }

func (*clientSession) Close() error { return nil }
