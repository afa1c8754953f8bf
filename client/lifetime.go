package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrClosed: the client was closed, or is closing.
var ErrClosed = errors.New("client is closed")

var errZero = errors.New("a zero Client knows no servers: use client.New")

// lifetime counts the activities of a client until Close. A counted activity may start others.
type lifetime struct {
	closing context.Context // ends when Close begins, with the cause ErrClosed
	close   context.CancelCauseFunc
	ended   context.Context // ends when Close stops waiting
	end     context.CancelFunc

	mu     sync.Mutex
	active int
	idle   chan struct{} // closed when no activity is left; nil before Close
}

func newLifetime() *lifetime {
	l := &lifetime{}
	l.closing, l.close = context.WithCancelCause(context.Background())
	l.ended, l.end = context.WithCancel(context.Background())
	return l
}

// made returns an error for a Client that New did not make.
func (c *Client) made() error {
	if c == nil || c.life == nil {
		return errZero
	}
	return nil
}

// enter counts one more activity, unless the client is closed. leave ends it.
func (c *Client) enter() error {
	if err := c.made(); err != nil {
		return err
	}
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	if c.life.idle != nil {
		return ErrClosed
	}
	c.life.active++
	return nil
}

func (c *Client) leave() {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	c.life.active--
	if c.life.active == 0 && c.life.idle != nil {
		close(c.life.idle)
	}
}

// background runs f for at most limit, even if ctx ends. Its caller is a counted activity, so Close waits for
// f.
func (c *Client) background(ctx context.Context, limit time.Duration, f func(context.Context)) {
	c.life.mu.Lock()
	c.life.active++
	c.life.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	unhook := context.AfterFunc(c.life.ended, cancel) //nolint:contextcheck // two contexts: the caller's, and the client's
	go func() {
		defer c.leave()
		defer cancel()
		defer unhook()
		f(ctx)
	}()
}

// Close ends a client. Calls that wait in Acquire or Do return ErrClosed, and so do later calls of them. The
// contexts of work under Do and KeepAlive are cancelled with the cause ErrClosed. Close then waits until the
// work has ended, that is, until each Do has released its lease and each KeepAlive was stopped, and until
// cancelled requests have released what they were granted. The leases are kept alive meanwhile.
//
// If ctx ends before that, Close stops the rest and returns ctx's error: releases are cancelled, and leases are
// not kept alive any longer, so they expire. Work that calls Close waits for itself until ctx ends. Close may
// be called again, and by several goroutines at once.
//
// Other calls still work, so that a program can release a lease that it acquired itself. A program that exits
// need not call Close: its leases expire.
func (c *Client) Close(ctx context.Context) error {
	if err := c.made(); err != nil {
		return failed("close", "", err)
	}
	idle := c.life.shut()
	c.life.close(ErrClosed)
	if c.ownsTransport {
		defer c.http.CloseIdleConnections()
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		c.life.end()
		return failed("close", "", fmt.Errorf("work under a lease, or a release, has not ended: %w", ctx.Err()))
	}
}

// shut lets no new activity begin, and returns a channel that is closed when none is left.
func (l *lifetime) shut() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.idle == nil {
		l.idle = make(chan struct{})
		if l.active == 0 {
			close(l.idle)
		}
	}
	return l.idle
}
