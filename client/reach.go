package client

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// probeEvery is how often a server is probed while requests wait there.
const probeEvery = 5 * time.Second

// peer is the endpoint behind one of the client's URLs: a server, or a load balancer in front of several
// servers.
type peer struct {
	url     string
	batcher *batcher

	waits, calls, renewals, batches lane

	mu      sync.Mutex
	name    string          // the name of the server that responded last (Fencelock-Server)
	names   map[string]bool // the names of the servers that responded before
	shared  bool            // several servers respond at this URL
	last    time.Time       // the time of the last response
	silent  time.Time       // the last time that a probe got no response
	probing chan struct{}   // has capacity 1: only one probe is under way
}

// maxNames bounds the number of names that a peer remembers. A server has a new name after each start.
const maxNames = 16

// answered records which server responded. If an earlier name returns, several servers are behind the URL; a
// name that only changes means a restart.
func (p *peer) answered(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
	if name == "" || name == p.name {
		return
	}
	p.shared = p.shared || p.names[name]
	if p.names == nil || len(p.names) >= maxNames {
		p.names = make(map[string]bool)
	}
	p.names[p.name], p.names[name], p.name = true, true, name
}

// watch probes the server while a request waits there, and cancels the request if the server does not respond,
// because a frozen server would keep the request until the poll's time limit. The first probe is sent after
// first, and each has the same time to get a response. Behind a load balancer a probe may reach another server
// than the request, so it proves nothing there. ended stops probing and waits for a probe that is under way.
func (c *Client) watch(ctx context.Context, p *peer, first time.Duration, cancel context.CancelFunc) (ended func()) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Add(1)
	timer := time.AfterFunc(first, func() {
		defer running.Done()
		for pause := first; ; pause = probeEvery {
			since := time.Now()
			if !c.alive(ctx, p, since.Add(-pause), first) && ctx.Err() == nil {
				cancel()
			}
			if sleep(ctx, probeEvery) != nil {
				return
			}
		}
	})
	return func() {
		stop()
		if timer.Stop() {
			running.Done()
		}
		running.Wait()
	}
}

// alive reports whether the server has responded since the given time, to any request, or responds to a probe
// now. All requests that wait there share one probe.
func (c *Client) alive(ctx context.Context, p *peer, since time.Time, limit time.Duration) bool {
	asked := time.Now()
	select {
	case p.probing <- struct{}{}:
		defer func() { <-p.probing }()
	case <-ctx.Done():
		return true
	}
	p.mu.Lock()
	heard, silent, shared := p.last.After(since), p.silent.After(asked), p.shared
	p.mu.Unlock()
	switch {
	case heard || shared:
		return true
	case silent:
		return false
	case c.answers(ctx, p, limit):
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = time.Now()
	return p.shared
}

// answers probes a server. Any response counts, even one that is a proxy's: it only says that the proxy reaches
// no server now, and nothing about requests under way.
func (c *Client) answers(ctx context.Context, p *peer, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/healthz", nil)
	if err != nil {
		return false
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody)); err != nil {
		return false
	}
	if resp.StatusCode == http.StatusOK {
		p.answered(resp.Header.Get(wire.HeaderServer))
	}
	return true
}
